"""A frozen ONNX model, such as one exported from another framework, whose embedding is found in its graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedgraph.fusion.owner_models.local_model import BatchedModel, fingerprint_of_file
from fedgraph.models import TaskSpec
from fedgraph.support.errors import ExperimentError

if TYPE_CHECKING:
    from onnx import ModelProto

_LINEAR = ("Gemm", "MatMul")
_STANDARD = ("", "ai.onnx", "ai.onnx.ml")


def load_onnx(path: Path, task: TaskSpec, embedding_layer: str | None = None) -> BatchedModel:
    """Load the ONNX model in a file.

    It takes one float tensor ``[samples, ...]``. Its last output is ``[samples, classes]``, logits or probabilities.
    Raises ExperimentError when the file is not such a model, the extra
    ``owner-models`` is not installed, or the layer cannot be found.

    Parameters
    ----------
    path : the file. Weights in separate files are not read.
    embedding_layer : name of the operation whose input is the embedding; by default the last matrix product with
        weights.
    """
    where = f"local model {path}"
    digest = fingerprint_of_file(path, embedding_layer, where)
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise ExperimentError(
            f"{where}: ONNX models need the packages onnx and onnxruntime: pip install 'fedgraph-flower[owner-models]'"
        ) from error
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:
        raise ExperimentError(f"{where} is not an ONNX model ({type(error).__name__})") from error
    _check_plain(model, where)
    embedding = _embedding(model, embedding_layer, where)
    outputs = [each.name for each in model.graph.output]
    if embedding not in outputs:
        model.graph.output.append(onnx.ValueInfoProto(name=embedding))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    except Exception as error:
        raise ExperimentError(f"{where} cannot be run: {_first_line(error)}") from error
    declared = session.get_inputs()
    if len(declared) != 1 or declared[0].type != "tensor(float)":
        listed = ", ".join(f"{each.name}: {each.type}" for each in declared)
        raise ExperimentError(f"{where} must take one float tensor [samples, ...], but takes {listed}")

    def run(inputs: Tensor) -> tuple[Tensor, Tensor]:
        found, predicted = session.run([embedding, outputs[-1]], {declared[0].name: inputs.numpy()})
        return torch.as_tensor(found), _numbers(torch.as_tensor(predicted), where)

    size = declared[0].shape[0] if declared[0].shape else None
    fixed = {"smallest": size, "largest": size} if isinstance(size, int) else {}
    return BatchedModel(run, task, where, digest, **fixed)


def _check_plain(model: ModelProto, where: str) -> None:
    """Raise ExperimentError for operations of other libraries and for external weights."""
    foreign = sorted({node.domain for node in model.graph.node} - set(_STANDARD))
    if foreign:
        raise ExperimentError(f"{where} has operations of {', '.join(foreign)}; only those of ONNX are executed")
    if any(tensor.data_location == tensor.EXTERNAL for tensor in model.graph.initializer):
        raise ExperimentError(f"{where} has weights in other files: save it as one file")


def _embedding(model: ModelProto, layer: str | None, where: str) -> str:
    """Return the name of the tensor that is the embedding."""
    weights = {each.name for each in model.graph.initializer}
    for node in model.graph.node:  # also what is computed from weights alone, such as a transposed one
        if all(name in weights for name in node.input if name):
            weights.update(node.output)

    def read(node: Any) -> list[str]:
        return [name for name in node.input if name and name not in weights]

    if layer is not None:
        named = [node for node in model.graph.node if node.name == layer]
        if not named or not read(named[0]):
            known = ", ".join(node.name for node in model.graph.node if node.name) or "none"
            raise ExperimentError(f"{where} has no operation '{layer}' that reads a tensor; it has {known}")
        return read(named[0])[0]
    for node in reversed(model.graph.node):
        if node.op_type in _LINEAR and len(read(node)) == 1 and len(node.input) > 1:
            return read(node)[0]
    raise ExperimentError(
        f"{where} has no matrix product with weights whose input could be the embedding: name the operation whose "
        "input is the embedding, model.onnx#name"
    )


def _numbers(outputs: Tensor, where: str) -> Tensor:
    """Check that outputs are floating-point numbers."""
    if not outputs.is_floating_point():
        raise ExperimentError(
            f"{where}: its last output must be numbers [samples, classes], without labels and maps (skl2onnx: "
            "zipmap=False)"
        )
    return outputs


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
