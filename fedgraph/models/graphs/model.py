"""Modules with ``forward(x, edge_index)`` as stacked models, computed sequentially by client."""

from __future__ import annotations

import copy
import inspect
import logging
from functools import cached_property
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

log = logging.getLogger("fedgraph")

_GIVEN = ("x", "edge_index", "edge_weight", "batch")
"""Inputs of a module, by the names of PyTorch Geometric."""

_TRIED = 4
"""Number of graphs, and of nodes of each, in a trial evaluation."""


class GraphNetworkSettings(Settings):
    """``[model]`` with ``name = "gcn"``, ``"graphsage"`` or ``"gin"``: graph convolutions and a linear layer ``head``.

    For whole graphs, the input of the head is the mean over their nodes. Only ``gcn`` uses weights of edges.

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
        """See :class:`fedgraph.models.base.StackedModel`; warns of weights that it ignores, or that give NaN."""
        from torch_geometric.nn import GCNConv

        weights = graphs.edge_weight[~graphs.edge_weight.isnan()]
        if len(weights) and not self._weighs:
            log.warning(
                "[model] %s does not use the weights of edges that the data have (edge_weight): gcn does, and modules "
                "that pass edge_weight to their convolutions",
                self.options.get("kind", self.name), extra={"once": f"edge weights {self.name} {self.options}"},
            )  # fmt: skip
        elif bool((weights < 0).any()) and any(isinstance(each, GCNConv) for each in self._prototype.modules()):
            log.warning(
                "[model] %s: some weights of edges are negative, and GCNConv divides by the root of their sum at a "
                "node, which is NaN where the sum is below -1",
                self.options.get("kind", self.name), extra={"once": f"negative edge weights {self.name}"},
            )  # fmt: skip
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

    @cached_property
    def _weighs(self) -> bool:
        """Whether weights of edges change its outputs, determined by trying; True for a module that fails."""
        if self.wanted != ("data",) and "edge_weight" not in self.wanted:
            return False
        numbers, module = self._drawn(_TRIED), self._copy().eval()
        try:
            with torch.no_grad():
                with_and_without = [
                    self._around(rings, numbers).of(module) for rings in (self._rings, _rings(self.task, weighted=True))
                ]
        except Exception:
            return True
        return not torch.equal(*with_and_without)

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


def _rings(task: TaskSpec, weighted: bool = False) -> GraphTable:
    """Return rings with reproducible random features, and weights of edges."""
    draws = torch.Generator().manual_seed(0)
    node = torch.arange(_TRIED)
    ring = torch.stack([node, node.roll(1)])
    weights = 1.0 + node if weighted else None
    graphs = [Graph(torch.randn(_TRIED, *task.input_shape, generator=draws), ring, weights) for _ in range(_TRIED)]
    return GraphTable.of(graphs, task.level)
