"""A client's model with its scaling as a file that other programs read: ONNX, or safetensors."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save

from fedgraph.data.preprocessing import Answering, AnsweringOfGraphs
from fedgraph.support.errors import RunError
from fedgraph.support.files import replacing, write_atomically

_OPSET = 17


def export(module: Answering | AnsweringOfGraphs, file: Path, about: dict[str, str]) -> None:
    """Write a model that takes values in their own units.

    Parameters
    ----------
    module : Answering or AnsweringOfGraphs
        The model with its scaling; one of graphs has none.
    file : Path
        ``.onnx``: the whole computation, from the input ``values`` ``[batch, ...]``, NaN where missing, to the output
        ``answers``. ``.safetensors``: the tensors of the model (``model.``) and of its scaling (``centre``, ``spread``,
        ``fill``, ``mean``, ``std``). Both have features, classes and units as metadata.
    about : dict of str to str
        Further metadata.

    Raises
    ------
    RunError
        For another kind of file, without the package ``onnx``, and for a model that ONNX cannot express.
    """
    task = {**asdict(module.task), "answers": "probabilities" if module.task.classes else "numbers in the unit"}
    metadata = {**about, "task": json.dumps(task)}
    if file.suffix == ".safetensors":
        scaling = "none" if task["level"] else _SCALING
        tensors = {name: value.detach().contiguous().clone() for name, value in module.state_dict().items()}
        write_atomically(file, save(tensors, metadata={**metadata, "scaling": scaling}))
    elif file.suffix == ".onnx":
        if isinstance(module, AnsweringOfGraphs):
            raise RunError("a model of graphs is not written as ONNX: write .safetensors instead")
        _export_onnx(module, file, metadata)
    else:
        raise RunError(f"cannot export to {file}: the kinds of files are .onnx and .safetensors")


_SCALING = (
    "inputs = (values - centre) / spread, fill where a value is missing (NaN); answers = outputs * std + mean, or the "
    "softmax of outputs where there are classes"
)


def _export_onnx(module: Answering, file: Path, metadata: dict[str, str]) -> None:
    try:
        import onnx
    except ImportError:
        raise RunError("to write ONNX files, install the extra: pip install 'fedgraph-flower[owner-models]'") from None
    example = torch.zeros(2, *module.task.input_shape)
    with replacing(file) as temporary, warnings.catch_warnings():
        # It is told that there is a newer exporter, which needs packages of its own.
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                module, (example,), str(temporary), dynamo=False, opset_version=_OPSET, input_names=["values"],
                output_names=["answers"], dynamic_axes={"values": {0: "batch"}, "answers": {0: "batch"}},
            )  # fmt: skip
        except Exception as error:
            raise RunError(
                f"this model cannot be written as ONNX ({str(error).splitlines()[0]}): write .safetensors instead"
            ) from error
        written = onnx.load(str(temporary))
        onnx.helper.set_model_props(written, metadata)
        onnx.save(written, str(temporary))
