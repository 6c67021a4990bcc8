"""Modules with ``forward(x, edge_index)`` as stacked models, one client after the other."""

from __future__ import annotations

import copy
import inspect
from typing import Any, Literal, Self

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from fedgraph.models.base import TaskSpec
from fedgraph.models.graphs.table import Graph, GraphTable, Surroundings
from fedgraph.models.user_module import Call, module_class
from fedgraph.models.vectorised import ModuleModel, ModuleSettings, last_called
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import Settings

_GIVEN = ("x", "edge_index", "edge_weight", "batch")
"""The parts of its graph that a module gets, by the names of PyTorch Geometric."""

_TRIED = 4
"""Graphs, and nodes of each, that a module is tried with."""


class GraphNetworkSettings(Settings):
    """``[model]`` with ``name = "gcn"``, ``"graphsage"`` or ``"gin"``: graph convolutions and a linear layer ``head``.

    Of whole graphs, the mean over their nodes goes into the head.

    Attributes
    ----------
    hidden  : width of each convolution.
    layers  : number of convolutions: how many edges away a node sees.
    dropout : share of the values behind each convolution that is set to 0 in training.
    """

    name: Literal["gcn", "graphsage", "gin"] = "gcn"
    hidden: PositiveInt = 32
    layers: PositiveInt = 2
    dropout: float = Field(0.0, ge=0.0, lt=1.0)


class GraphModel(ModuleModel):
    """A module class that is given whole graphs: ``forward(x, edge_index)``.

    Its forward names those that it uses of ``x`` float32 ``[nodes, features]``, ``edge_index`` int64 ``[2, edges]``,
    ``edge_weight`` float32 ``[edges]`` or None, and ``batch``, the graph of each node, int64 ``[nodes]``; or takes all
    of it as one ``data``. It returns ``[nodes, classes]``, or ``[graphs, classes]`` where graphs are the examples. A
    minibatch is the graphs that its examples lie in, whole: nodes that are no example of it are seen, and not counted.
    Raises ExperimentError as of :class:`ModuleModel`, and for a forward that needs anything else.
    """

    def __init__(self, settings: ModuleSettings, task: TaskSpec) -> None:
        self.wanted = _wanted(settings.name, module_class(settings.name), task)
        self._rings = self.graphs = _rings(task)
        self._on_device: dict[torch.device, GraphTable] = {}
        super().__init__(settings, task)
        self.vectorise = False

    def with_graphs(self, graphs: GraphTable) -> Self:
        """See :class:`fedgraph.models.base.StackedModel`."""
        # What is found out by trying holds for any graphs, and the module of a thread serves both.
        other = copy.copy(self)
        other.graphs, other._on_device = graphs, {}
        return other

    @property
    def sequential(self) -> bool:
        """Clients are computed one after the other: each has its own graphs."""
        return True

    def mixes_examples(self, training: bool) -> bool:
        """Nodes of a graph influence each other; of graphs it is determined by trying."""
        return self.task.level == "node" or super().mixes_examples(training)

    def _call(self, inputs: Tensor) -> Call:
        if inputs.device not in self._on_device:
            self._on_device[inputs.device] = self.graphs.to(inputs.device)
        return self._around(self._on_device[inputs.device], inputs)

    def _trial(self, inputs: Tensor) -> Call:
        return self._around(self._rings, inputs)

    def _around(self, graphs: GraphTable, inputs: Tensor) -> Call:
        found = graphs.around(inputs)
        return Call((), arguments(self.wanted, found), found.examples)

    def _zeros(self, count: int) -> Tensor:
        return self._drawn(count)

    def _drawn(self, count: int) -> Tensor:
        """Return the first nodes, or graphs, of those that a module is tried with."""
        return torch.arange(1, count + 1)[:, None]

    def _last_layer(self, module: nn.Module) -> str | None:
        """Return the last linear layer or convolution that is called, the outer one where one is within another."""
        from torch_geometric.nn import MessagePassing

        layers = {
            name: layer
            for name, layer in module.named_modules()
            if name and isinstance(layer, nn.Linear | MessagePassing)
        }
        outer = {
            name: layer for name, layer in layers.items() if not any(name.startswith(f"{other}.") for other in layers)
        }
        given = self._trial(self._zeros(2))
        return last_called(outer, lambda: given.of(module))

    @property
    def _two_inputs(self) -> str:
        return f"{_TRIED} nodes with {self.task.input_shape[0]} features" if self.task.level == "node" else "two graphs"


def arguments(wanted: tuple[str, ...], found: Surroundings) -> dict[str, Any]:
    """Return the arguments that a forward uses of some graphs, by name."""
    given = {name: getattr(found, name) for name in _GIVEN}
    if wanted == ("data",):
        from torch_geometric.data import Data

        return {"data": Data(**{name: value for name, value in given.items() if value is not None})}
    return {name: given[name] for name in wanted}


def graph_network(settings: GraphNetworkSettings, task: TaskSpec) -> GraphModel:
    """Return a built-in graph network. Raises ExperimentError where data are no graphs."""
    if not task.level:
        raise ExperimentError(
            f"[model] name: '{settings.name}' is a model of graphs, and [data] has none: set = \"graphs\" has one of "
            "each client"
        )
    options = settings.as_table()
    options |= {"kind": options.pop("name"), "level": task.level}
    return GraphModel(ModuleSettings(name="fedgraph.models.graphs.network:GraphNetwork", options=options), task)


def _wanted(name: str, kind: type[nn.Module], task: TaskSpec) -> tuple[str, ...]:
    """Return the arguments of a class's forward. Raises ExperimentError for one that needs anything else."""
    named = list(inspect.signature(kind.forward).parameters.values())[1:]
    needed = [
        each.name
        for each in named
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if needed == ["data"]:
        return ("data",)
    known = tuple(each.name for each in named if each.name in _GIVEN)
    lacking = [each for each in needed if each not in _GIVEN]
    if lacking or "x" not in known:
        wrong = f"needs '{lacking[0]}'" if lacking else "has no parameter 'x'"
        raise ExperimentError(
            f"[model] {name}: its forward {wrong}; a model of graphs is given {', '.join(_GIVEN)}, as far as its "
            "parameters are called so, or all of them as one 'data'"
        )
    if task.level == "graph" and "batch" not in known:
        raise ExperimentError(
            f"[model] {name}: its forward has no parameter 'batch', the graph of each node, without which it cannot "
            "return one row per graph: forward(x, edge_index, batch), with torch_geometric.nn.global_mean_pool"
        )
    return known


def _rings(task: TaskSpec) -> GraphTable:
    """Return rings with random features, always the same."""
    draws = torch.Generator().manual_seed(0)
    node = torch.arange(_TRIED)
    ring = torch.stack([node, node.roll(1)])
    graphs = [Graph(torch.randn(_TRIED, *task.input_shape, generator=draws), ring) for _ in range(_TRIED)]
    return GraphTable.of(graphs, task.level)
