"""A frozen ``torch.export`` program, whose embedding is found in its graph."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from fedgraph.fusion.owner_models.local_model import BATCH, BatchedModel, fingerprint_of_file
from fedgraph.models import TaskSpec
from fedgraph.support.errors import ExperimentError

_LINEAR = {torch.ops.aten.linear.default: 0, torch.ops.aten.addmm.default: 1, torch.ops.aten.mm.default: 0}
"""Linear operations, and the position of the layer's input among their arguments."""


def load_exported(path: Path, task: TaskSpec, embedding_layer: str | None = None) -> BatchedModel:
    """Load the program in a ``.pt2`` file; a program exported for a fixed batch size is evaluated in such batches.

    Raises ExperimentError when the file is not such a program or contains pickled objects, the layer cannot be found,
    or the module was exported in training mode.
    """
    where = f"local model {path}"
    digest = fingerprint_of_file(path, embedding_layer, where)
    try:
        _check_no_pickles(path, where)
        program = torch.export.load(str(path))
        module = program.module()
    except ExperimentError:
        raise
    except Exception as error:
        raise ExperimentError(
            f"{where} cannot be read by torch.export ({str(error).splitlines()[0]}); save the model by "
            "torch.export.save(torch.export.export(module.eval(), (inputs,)), path)"
        ) from error
    _check_operations(module, where)
    _check_inference_only(module, where)
    node = _last_linear(module, where) if embedding_layer is None else _named(module, embedding_layer, where)
    smallest, largest = _batch_sizes(program, module, where)

    def run(inputs: Tensor) -> tuple[Tensor, Tensor]:
        reader = _Reader(module, node)
        outputs = reader.run(inputs)
        return reader.seen, outputs

    return BatchedModel(run, task, where, digest, smallest, largest)


class _Reader(fx.Interpreter):
    """Runs a graph and stores the value of one node."""

    def __init__(self, module: fx.GraphModule, wanted: fx.Node) -> None:
        super().__init__(module)
        self.wanted = wanted
        self.seen: Any = None

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n is self.wanted:
            self.seen = value
        return value


def _check_no_pickles(path: Path, where: str) -> None:
    """Refuse archives with pickles, whose code ``torch.export.load`` would execute."""
    reader = torch._C.PyTorchFileReader(str(path))
    names = reader.get_all_records()
    if "archive_format" not in names:
        raise ExperimentError(f"{where} is not a torch.export archive of PyTorch 2.8 or later; save it again by one")
    for name in names:
        if name.endswith("_config.json") and name.startswith("data/"):
            entries = json.loads(reader.get_record(name))["config"].values()
            plain = all(not each["use_pickle"] and "_obj_" not in each["path_name"] for each in entries)
        elif name.endswith(".pt"):
            plain = _holds_tensors(reader.get_record(name))
        else:
            plain = not name.startswith(("data/aotinductor/", "data/executorch"))
        if not plain:
            raise ExperimentError(
                f"{where}: its part {name} contains more than plain tensors, and could execute code; export a "
                "module whose weights, constants and example inputs are ordinary tensors"
            )


def _holds_tensors(record: bytes) -> bool:
    try:
        torch.load(io.BytesIO(record), weights_only=True)
    except Exception:
        return False
    return True


def _check_operations(module: fx.GraphModule, where: str) -> None:
    """Refuse operations that are not PyTorch's: a graph could call any imported function by name."""
    for node in module.graph.nodes:
        known = isinstance(node.target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator))
        name = getattr(node.target, "__module__", "")
        if node.op == "call_function" and not known and name not in ("_operator", "math"):
            raise ExperimentError(f"{where} calls {node.target}, which is not a PyTorch operation and is not executed")


def _check_inference_only(module: fx.GraphModule, where: str) -> None:
    for node in module.graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        names = [argument.name for argument in node.target._schema.arguments]
        arguments = dict(zip(names, node.args, strict=False)) | node.kwargs
        if arguments.get("train") is True or arguments.get("training") is True:
            raise ExperimentError(
                f"{where} was exported in training mode, which makes {node.target} permanent; call module.eval() "
                "before torch.export.export"
            )


def _last_linear(module: fx.GraphModule, where: str) -> fx.Node:
    for node in reversed(module.graph.nodes):
        place = _LINEAR.get(node.target) if node.op == "call_function" else None
        if place is not None and _is_parameter(node.args[place + 1]):
            found: fx.Node = node.args[place]
            return found
    raise ExperimentError(
        f"{where} has no linear layer whose input could be the embedding; name the layer whose input is the embedding, "
        f"one of: {', '.join(_layers(module)) or 'none'}"
    )


def _named(module: fx.GraphModule, layer: str, where: str) -> fx.Node:
    """Return the input, other than parameters, of the first operation of the layer ``layer``."""
    for node in module.graph.nodes:
        if node.op == "call_function" and layer in _stack(node):
            for read in node.all_input_nodes:
                if not _is_parameter(read):
                    return read
    raise ExperimentError(f"{where} has no layer '{layer}'; it has: {', '.join(_layers(module)) or 'none'}")


def _is_parameter(node: Any) -> bool:
    """Return whether a node is a parameter, possibly reshaped."""
    while isinstance(node, fx.Node) and node.op == "call_function" and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return isinstance(node, fx.Node) and node.op == "get_attr"


def _stack(node: fx.Node) -> list[str]:
    """Return the names of the layers that contain an operation."""
    return [name.removeprefix("L['self'].") for name, _ in node.meta.get("nn_module_stack", {}).values()]


def _layers(module: fx.GraphModule) -> list[str]:
    names = (name for node in module.graph.nodes if node.op == "call_function" for name in _stack(node))
    return list(dict.fromkeys(name for name in names if name))


def _batch_sizes(program: torch.export.ExportedProgram, module: fx.GraphModule, where: str) -> tuple[int, int]:
    """Return the smallest and the largest number of samples that the program takes."""
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    shape = getattr(inputs[0].meta.get("val"), "shape", ()) if len(inputs) == 1 else ()
    if not shape:
        raise ExperimentError(
            f"{where} must take one tensor [samples, ...], but takes {len(inputs)} arguments; export a module whose "
            "forward has one argument"
        )
    if isinstance(shape[0], int):
        return shape[0], shape[0]
    limits = program.range_constraints.get(shape[0].node.expr)
    if limits is None:
        return 1, BATCH
    return max(1, int(limits.lower)), BATCH if limits.upper > BATCH else int(limits.upper)
