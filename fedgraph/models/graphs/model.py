"""Modules with ``forward(x, edge_index)`` as stacked models, computed sequentially by client."""

from __future__ import annotations

import copy
import inspect
from typing import Any, Literal, Self

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from fedgraph.models.base import TaskSpec
from fedgraph.models.called_layers import last_called
from fedgraph.models.graphs.table import Graph, GraphTable, Surroundings
from fedgraph.models.user_module import Call, module_class
from fedgraph.models.vectorised import ModuleModel, ModuleSettings
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import Settings

_GIVEN = ("x", "edge_index", "edge_weight", "batch")
"""Inputs of a module, by the names of PyTorch Geometric."""

_TRIED = 4
"""Number of graphs, and of nodes of each, in a trial evaluation."""


class GraphNetworkSettings(Settings):
    """``[model]`` with ``name = "gcn"``, ``"graphsage"`` or ``"gin"``: graph convolutions and a linear layer ``head``.

    For whole graphs, the input of the head is the mean over their nodes.

    Attributes
    ----------
    hidden  : width of each convolution.
    layers : number of convolutions.
    dropout : dropout probability after each convolution.
    """

    name: Literal["gcn", "graphsage", "gin"] = "gcn"
    hidden: PositiveInt = 32
    layers: PositiveInt = 2
    dropout: float = Field(0.0, ge=0.0, lt=1.0)


class GraphModel(ModuleModel):
    """A module class for whole graphs: ``forward(x, edge_index)``.

    Parameters of its forward are any of ``x`` float32 ``[nodes, features]``, ``edge_index`` int64 ``[2, edges]``,
    ``edge_weight`` float32 ``[edges]`` or None, and ``batch``, the graph of each node, int64 ``[nodes]``; or one
    ``data`` with all of them. It returns ``[nodes, classes]``, or ``[graphs, classes]`` if examples are graphs. A
    minibatch contains the whole graphs of its examples; other nodes have no weight. Raises ExperimentError as
    :class:`ModuleModel`, and for other parameters of forward.
    """

    def __init__(self, settings: ModuleSettings, task: TaskSpec) -> None:
        self.wanted = _wanted(settings.name, module_class(settings.name), task)
        self._rings = self.graphs = _rings(task)
        self._on_device: dict[torch.device, GraphTable] = {}
        super().__init__(settings, task)
        self.vectorise = False

    def with_graphs(self, graphs: GraphTable) -> Self:
        """See :class:`fedgraph.models.base.StackedModel`."""
        # Results of trials hold for any graphs, and both share the module of a thread.
        other = copy.copy(self)
        other.graphs, other._on_device = graphs, {}
        return other

    @property
    def sequential(self) -> bool:
        """True: clients are computed sequentially, as each has its own graphs."""
        return True

    @property
    def draws_padded(self) -> bool:
        """False, as padding is a graph too, and comes first."""
        return False

    def mixes_examples(self, training: bool) -> bool:
        """True for nodes of a graph; for graphs determined by a trial."""
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
        """Return the first nodes, or graphs, of a trial evaluation."""
        return torch.arange(1, count + 1)[:, None]

    def _last_layer(self, module: nn.Module) -> str | None:
        """Return the last called linear layer or convolution, the outer one of nested layers."""
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
    """Return a built-in graph network. Raises ExperimentError for data without graphs."""
    if not task.level:
        raise ExperimentError(
            f"[model] name: '{settings.name}' is a model of graphs, and [data] has none: set = \"graphs\" has one of "
            "each client"
        )
    options = settings.as_table()
    options |= {"kind": options.pop("name"), "level": task.level}
    return GraphModel(ModuleSettings(name="fedgraph.models.graphs.network:GraphNetwork", options=options), task)


def _wanted(name: str, kind: type[nn.Module], task: TaskSpec) -> tuple[str, ...]:
    """Return the parameters of a class's forward. Raises ExperimentError for unknown ones."""
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
    """Return rings with reproducible random features."""
    draws = torch.Generator().manual_seed(0)
    node = torch.arange(_TRIED)
    ring = torch.stack([node, node.roll(1)])
    graphs = [Graph(torch.randn(_TRIED, *task.input_shape, generator=draws), ring) for _ in range(_TRIED)]
    return GraphTable.of(graphs, task.level)
