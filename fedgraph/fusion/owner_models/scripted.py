"""A frozen TorchScript program; its embedding is found in its graph.

The graph is inlined, and the input of the last linear operation becomes an output of it. That operation must not lie
within a branch or loop of the program.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgraph.fusion.owner_models.base import BatchedModel, fingerprint_of_file
from fedgraph.models import TaskSpec
from fedgraph.support.errors import ExperimentError

_LINEAR = {"aten::linear": 0, "aten::addmm": 1}
"""Linear operations, and the position of the layer's input among their inputs."""

_MODES = {"aten::dropout": 2, "aten::batch_norm": 5}
"""Operations that differ in training, and the position of the flag among their inputs."""


def load_scripted(path: Path, task: TaskSpec, embedding_layer: str | None = None) -> BatchedModel:
    """Load the TorchScript program in a file.

    ``embedding_layer`` is the name of a layer with parameters of its own, whose input is the embedding.

    Raises
    ------
    ExperimentError
        When the file is no TorchScript program (a pickle, say), the layer cannot be found, or the program was traced in
        training mode.
    """
    where = f"local model {path}"
    digest = fingerprint_of_file(path, embedding_layer, where)
    try:
        with warnings.catch_warnings():
            # PyTorch recommends torch.export, and so do messages here; existing programs are accepted.
            warnings.simplefilter("ignore", DeprecationWarning)
            module: Any = torch.jit.load(str(path), map_location="cpu").eval()
    except Exception as error:
        raise ExperimentError(
            f"{where} is no TorchScript program; pickled modules and weights are not read, as a pickle can run code. "
            "Save the model by torch.export.save (.pt2), or its weights by safetensors and name "
            f"package.module:factory@weights.safetensors ({str(error).splitlines()[0]})"
        ) from error
    graph = module.graph.copy()
    torch._C._jit_pass_inline(graph)
    _check_inference_only(graph, where)
    embedding = _last_linear(graph, where) if embedding_layer is None else _named(graph, embedding_layer, where)
    output = next(iter(graph.outputs()))
    both = graph.create("prim::TupleConstruct", [embedding, output], 1)
    graph.insertNode(both)
    both.output().setType(torch._C.TupleType([embedding.type(), output.type()]))
    graph.eraseOutput(0)
    graph.registerOutput(both.output())
    function: Any = torch._C._create_function_from_graph("represent", graph)

    def run(inputs: Tensor) -> tuple[Tensor, Tensor]:
        embeddings, outputs = function(module._c, inputs)
        return embeddings, outputs

    return BatchedModel(run, task, where, digest)


def _last_linear(graph: Any, where: str) -> Any:
    everywhere = sum(len(graph.findAllNodes(kind)) for kind in _LINEAR)
    nodes = [node for node in graph.nodes() if node.kind() in _LINEAR]
    if not nodes or len(nodes) < everywhere:
        found = "lies within a branch or loop" if everywhere else "is not there"
        raise ExperimentError(
            f"{where}: the last linear layer, whose input is the embedding, {found}; name a layer whose input is the "
            "embedding, or save the model by torch.export (.pt2)"
        )
    return _inputs(nodes[-1])[_LINEAR[nodes[-1].kind()]]


def _named(graph: Any, layer: str, where: str) -> Any:
    """Return what the first operation on parameters of the layer ``layer`` reads beside them."""
    known: dict[str, None] = {}
    for node in graph.nodes():
        owners = {_attribute(value).rpartition(".")[0] for value in _inputs(node) if node.kind() != "prim::GetAttr"}
        known |= dict.fromkeys(owner for owner in owners if owner)
        if layer in owners:
            for value in _inputs(node):
                if isinstance(value.type(), torch._C.TensorType) and not _attribute(value):
                    return value
    raise ExperimentError(
        f"{where}: no layer '{layer}' with parameters of its own can be found outside branches and loops; there are: "
        f"{', '.join(known) or 'none'}. Name one of them, or save the model by torch.export (.pt2)"
    )


def _attribute(value: Any) -> str:
    """Return ``layer.weight`` for the parameter of that name; empty for computed values."""
    node, parts = value.node(), list[str]()
    while node.kind() == "prim::GetAttr":
        parts.append(node.s("name"))
        node = _inputs(node)[0].node()
    return ".".join(reversed(parts))


def _inputs(node: Any) -> list[Any]:
    return list(node.inputs())


def _check_inference_only(graph: Any, where: str) -> None:
    for kind, place in _MODES.items():
        for node in graph.findAllNodes(kind):
            if _inputs(node)[place].toIValue() is True:
                raise ExperimentError(
                    f"{where} was traced in training mode: its {kind.removeprefix('aten::')} is switched on for good; "
                    "call eval() of the module before torch.jit.trace, or save it by torch.export (.pt2)"
                )
