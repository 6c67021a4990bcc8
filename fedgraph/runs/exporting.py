"""Export of a model with its scaling, as ONNX or safetensors."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from fedgraph.data.preprocessing import Answering, AnsweringOfGraphs
from fedgraph.support.checksums import as_stored
from fedgraph.support.errors import RunError
from fedgraph.support.files import replacing

_OPSET = 17

_TOLERANCE = 1e-3
"""Greatest difference between the answers of a model and of its file: of probabilities, relative to their scale."""


def export(module: Answering | AnsweringOfGraphs, file: Path, about: dict[str, str]) -> None:
    """Write a model that takes values in their original units.

    Parameters
    ----------
    module : Answering or AnsweringOfGraphs
        The model with its scaling; a model of graphs has no scaling.
    file : Path
        ``.onnx``: the whole computation, from the input ``values`` ``[batch, ...]``, NaN where missing, to the output
        ``answers``. ``.safetensors``: the tensors of the model (``model.``) and of its scaling (``centre``, ``spread``,
        ``fill``, ``mean``, ``std``). The metadata of both contain features, classes and units.
    about : dict of str to str
        Further metadata.

    Raises
    ------
    RunError
        For another suffix, a missing package ``onnx``, or a model that ONNX cannot express.
    """
    task = {**asdict(module.task), "answers": "probabilities" if module.task.classes else "numbers in the unit"}
    metadata = {**about, "task": json.dumps(task)}
    if file.suffix == ".safetensors":
        scaling = "none" if task["level"] else _SCALING
        with replacing(file) as temporary:
            save_file(as_stored(module.state_dict()), temporary, {**metadata, "scaling": scaling})
    elif file.suffix == ".onnx":
        if isinstance(module, AnsweringOfGraphs):
            raise RunError("models of graphs cannot be exported to ONNX: use .safetensors instead")
        _export_onnx(module, file, metadata)
    else:
        raise RunError(f"cannot export to {file}: the suffix must be .onnx or .safetensors")


_SCALING = (
    "inputs = (values - centre) / spread, fill where a value is missing (NaN); answers = outputs * std + mean, or the "
    "softmax of outputs where there are classes"
)


def _export_onnx(module: Answering, file: Path, metadata: dict[str, str]) -> None:
    try:
        import onnx
        import onnxruntime  # noqa: F401
    except ImportError:
        raise RunError("ONNX export needs an extra: pip install 'fedgraph-flower[owner-models]'") from None
    example = torch.zeros(2, *module.task.input_shape)
    with replacing(file) as temporary, warnings.catch_warnings():
        # PyTorch warns of a newer exporter, which needs further packages.
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                module, (example,), str(temporary), dynamo=False, opset_version=_OPSET, input_names=["values"],
                output_names=["answers"], dynamic_axes={"values": {0: "batch"}, "answers": {0: "batch"}},
            )  # fmt: skip
        except Exception as error:
            raise RunError(
                f"this model cannot be exported to ONNX ({str(error).splitlines()[0]}): use .safetensors instead"
            ) from error
        written = onnx.load(str(temporary))
        onnx.helper.set_model_props(written, metadata)
        onnx.save(written, str(temporary))
        _check_answers(module, temporary)


def _check_answers(module: Answering, file: Path) -> None:
    """Raise RunError if an ONNX file has other answers than its model, for batches of some sizes and values.

    The export follows the model for one batch: of a branch that depends on values or on the size of a batch, and of a
    size that is made a Python number, the file has what applied to that batch.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(file), options, ["CPUExecutionProvider"])
    unit = 1.0 if module.task.classes else float(module.get_buffer("std").abs())
    for values in _probes(module):
        try:
            with torch.no_grad():
                expected = module(values).numpy()
        except (IndexError, RuntimeError):  # such as numbers that stand for categories, which no training example has
            continue
        try:
            (found,) = session.run(None, {"values": values.numpy()})
            same = np.allclose(found, expected, _TOLERANCE, _TOLERANCE * unit, equal_nan=True)
        except Exception:  # of a shape that only fits one size
            same = False
        if not same:
            raise RunError(
                "this model cannot be exported to ONNX: for some values the file would have other answers than the "
                "model. Its forward must not branch by values or by the size of a batch (if x.sum() > 0), nor make "
                "them Python numbers (len(x), x.max().item()); or use .safetensors"
            )


def _probes(module: Answering) -> Iterator[Tensor]:
    """Yield batches of values like those of training, missing ones among them, and farther from the mean."""
    draws = torch.Generator().manual_seed(0)
    centre, spread = module.get_buffer("centre"), module.get_buffer("spread")
    for size, shift in ((2, 0.0), (1, 0.0), (7, 0.0), (3, 3.0), (3, -3.0)):
        values = centre + spread * (torch.randn(size, *module.task.input_shape, generator=draws) + shift)
        values[-1].flatten()[0] = torch.nan
        yield values
