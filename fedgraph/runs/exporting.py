"""Export of a model with its scaling, as ONNX or safetensors."""

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
        tensors = {name: value.detach().contiguous().clone() for name, value in module.state_dict().items()}
        write_atomically(file, save(tensors, metadata={**metadata, "scaling": scaling}))
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
