"""The graphs of all clients in one table, with examples (nodes or graphs) by number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedgraph.support.errors import DataError

Level = Literal["", "node", "graph"]
"""Kind of example of graph data; empty for other data."""

_MOST = 1 << 24
"""Limit of exact integers in float32, in which minibatches have the numbers of examples."""


class Graph(NamedTuple):
    """One graph: features ``[nodes, features]``, edges int64 ``[2, edges]``, and their weights ``[edges]`` or None."""

    x: Tensor
    edge_index: Tensor
    edge_weight: Tensor | None = None


class Surroundings(NamedTuple):
    """The graphs of a minibatch, as one graph of several parts.

    Attributes
    ----------
    x : Tensor
        float32 ``[nodes, features]``.
    edge_index : Tensor
        int64 ``[2, edges]``.
    edge_weight : Tensor or None
        float32 ``[edges]``; None where no edge of these graphs has one.
    batch : Tensor
        The part of each node, int64 ``[nodes]``.
    examples : Tensor
        The nodes, or parts, that are the examples of the minibatch, int64 ``[batch]``.
    """

    x: Tensor
    edge_index: Tensor
    edge_weight: Tensor | None
    batch: Tensor
    examples: Tensor


@dataclass(frozen=True)
class GraphTable:
    """Concatenated graphs. The first is a single node with zero features, for padding.

    Attributes
    ----------
    x : Tensor
        Features of the nodes of all graphs, float32 ``[nodes, features]``.
    edge_index : Tensor
        Edges, graph by graph, int64 ``[2, edges]``; nodes are counted within their graph.
    edge_weight : Tensor
        float32 ``[edges]``, NaN for edges of graphs without weights.
    nodes, edges : Tensor
        Bounds of the nodes and edges of each graph, int64 ``[graphs + 1]``.
    level : {"node", "graph"}
        Whether numbers of examples refer to nodes or graphs.
    """

    x: Tensor
    edge_index: Tensor
    edge_weight: Tensor
    nodes: Tensor
    edges: Tensor
    level: Level

    @classmethod
    def of(cls, graphs: Sequence[Graph | tuple[Tensor, Tensor, Tensor | None]], level: Level) -> GraphTable:
        """Concatenate graphs, numbered from 1. Raises DataError for too many of them."""
        padding = Graph(graphs[0][0].new_zeros(1, graphs[0][0].shape[1]), torch.zeros(2, 0, dtype=torch.int64))
        every = [padding, *(Graph(*each) for each in graphs)]
        weights = [
            torch.full((g.edge_index.shape[1],), torch.nan) if g.edge_weight is None else g.edge_weight for g in every
        ]
        table = cls(
            torch.cat([graph.x for graph in every]).float(),
            torch.cat([graph.edge_index for graph in every], 1),
            torch.cat(weights).float(),
            _bounds([len(graph.x) for graph in every]),
            _bounds([graph.edge_index.shape[1] for graph in every]),
            level,
        )
        if len(table.x) > _MOST:
            raise DataError(
                f"the graphs of this node have {len(table.x):,} nodes in total, more than {_MOST:,}: distribute its "
                "clients over more nodes"
            )
        return table

    def numbers(self, graph: int) -> Tensor:
        """Return the numbers of the examples of a graph: its own, or those of its nodes, int64 ``[examples]``."""
        if self.level == "graph":
            return torch.tensor([graph])
        return torch.arange(int(self.nodes[graph]), int(self.nodes[graph + 1]))

    def around(self, numbers: Tensor) -> Surroundings:
        """Return the whole graphs of examples, each once.

        Parameters
        ----------
        numbers : Tensor
            Of the examples, ``[batch, 1]``, of any type.
        """
        number = numbers.flatten().long()
        of_example = number if self.level == "graph" else torch.searchsorted(self.nodes, number, right=True) - 1
        chosen, part = of_example.unique(return_inverse=True)
        sizes, first = self.nodes[chosen + 1] - self.nodes[chosen], self.nodes[chosen]
        begin = sizes.cumsum(0) - sizes
        nodes, edges = _ranges(self.nodes, chosen), _ranges(self.edges, chosen)
        shift = begin.repeat_interleave(self.edges[chosen + 1] - self.edges[chosen])
        weight = self.edge_weight[edges]
        return Surroundings(
            x=self.x[nodes],
            edge_index=self.edge_index[:, edges] + shift,
            edge_weight=None if bool(weight.isnan().all()) else weight.nan_to_num(1.0),
            batch=torch.arange(len(chosen), device=number.device).repeat_interleave(sizes),
            examples=part if self.level == "graph" else number - first[part] + begin[part],
        )

    def to(self, device: torch.device) -> GraphTable:
        """Return the table with its tensors on ``device``."""
        moved = {each.name: getattr(self, each.name).to(device) for each in fields(self) if each.name != "level"}
        return replace(self, **moved)


def _bounds(counts: Sequence[int]) -> Tensor:
    return torch.tensor([0, *counts]).cumsum(0)


def _ranges(bounds: Tensor, chosen: Tensor) -> Tensor:
    """Return the concatenated ranges between the bounds of each chosen graph, int64."""
    counts = bounds[chosen + 1] - bounds[chosen]
    begin = counts.cumsum(0) - counts
    return torch.arange(int(counts.sum()), device=bounds.device) + (bounds[chosen] - begin).repeat_interleave(counts)
