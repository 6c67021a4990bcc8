"""Clients' graphs with classes of nodes or of whole graphs, validated, and as a cohort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph.data.base import CohortData, SplitName
from fedgraph.data.examples import ExampleSplit, row_table
from fedgraph.data.partition import Indices
from fedgraph.models import TaskSpec
from fedgraph.models.graphs import Graph, GraphTable, Level
from fedgraph.support.errors import DataError, counted

Raw = Mapping[str, Any]
"""Tensors or arrays of one graph by name: ``x``, ``edge_index``, optionally ``y``, ``edge_weight`` and masks."""

MASKS: dict[SplitName, str] = {"train": "train_mask", "validation": "val_mask", "test": "test_mask"}
"""Names of the masks of nodes, by split."""

UNKNOWN = -1
"""The class of an example that has none."""

_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""Types of integers for which PyTorch lacks most functions."""

PARTS = ("x", "edge_index", "y", "edge_weight", *MASKS.values())
"""Parts of a graph that are used."""

_USED = (*PARTS, "num_nodes", "batch", "ptr")


@dataclass(frozen=True)
class LabelledGraphs:
    """The graphs of one client.

    Attributes
    ----------
    labels : class of each example (node or graph, in order), int64 ``[examples]``; -1 where unknown.
    masks : examples of each split, bool ``[examples]``; empty where the data do not say.
    left_out : other entries of the data, which models do not use.
    """

    graphs: tuple[Graph, ...]
    labels: Tensor
    masks: Mapping[SplitName, Tensor]
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, raw: Sequence[Raw], level: Level, where: str) -> LabelledGraphs:
        """Check the graphs of a client.

        Raises DataError for no graph, or one without nodes or features; edges to unknown nodes; types and shapes that
        do not fit; features that are NaN or infinite; and masks that overlap.

        Parameters
        ----------
        level : whether ``y`` is of nodes, or of graphs.
        where : names client and file, for messages.
        """
        if not raw:
            raise DataError(f"{where} has no graphs")
        places = [where if len(raw) == 1 else f"{where}, graph {number}" for number in range(len(raw))]
        graphs = tuple(_graph(each, place) for each, place in zip(raw, places, strict=True))
        widths: dict[int, str] = {}
        for graph, place in zip(graphs, places, strict=True):
            widths.setdefault(graph.x.shape[1], place)
        if len(widths) > 1:
            listed = " and ".join(f"{count} in {place}" for count, place in list(widths.items())[:2])
            raise DataError(
                f"the graphs of a client have differing numbers of features, {listed}: give all the same ones"
            )
        counts = [len(graph.x) if level == "node" else 1 for graph in graphs]
        labels = [_labels(*each, level) for each in zip(raw, counts, places, strict=True)]
        masks = _masks(raw, counts, places, level)
        return cls(graphs, torch.cat(labels), masks, tuple(sorted({key for each in raw for key in _unused(each)})))

    @property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """The graph of each node, and its number in that graph, from 0, int64 ``[nodes]`` each."""
        counts = [len(graph.x) for graph in self.graphs]
        return np.repeat(np.arange(len(counts)), counts), np.concatenate([np.arange(count) for count in counts])

    @property
    def one_way(self) -> bool:
        """Whether there are edges and all lead one way only."""
        pairs = [graph.edge_index.unique(dim=1) for graph in self.graphs if graph.edge_index.shape[1]]
        return bool(pairs) and all(
            torch.cat([edges, edges.flip(0)], 1).unique(dim=1).shape[1] == 2 * edges.shape[1] for edges in pairs
        )


def graph_cohort(
    task: TaskSpec,
    names: tuple[str, ...],
    clients: Sequence[LabelledGraphs],
    rows: Mapping[SplitName, Sequence[Indices]],
) -> CohortData:
    """Build the cohort of clients with these graphs and splits.

    Parameters
    ----------
    task : a classification of nodes or of graphs.
    rows : examples of each split, client by client, as positions in a client's labels.
    """
    table = GraphTable.of([graph for own in clients for graph in own.graphs], task.level)
    numbers = torch.cat([table.numbers(place) for place in range(1, 1 + sum(len(own.graphs) for own in clients))])
    labels = torch.cat([own.labels for own in clients]).clamp(min=0)
    first = [0, *torch.tensor([len(own.labels) for own in clients]).cumsum(0).tolist()]
    splits = {
        name: ExampleSplit(
            numbers[:, None], labels, row_table([begin + own for begin, own in zip(first, parts, strict=False)])
        )
        for name, parts in rows.items()
    }
    return CohortData(names, task, splits, torch.zeros(len(names)), torch.ones(len(names)), graphs=table)


def _graph(raw: Raw, where: str) -> Graph:
    if raw.get("edge_index") is None and raw.get("adj_t") is not None:
        raise DataError(f"{where} has adj_t and no edge_index: leave out the transform ToSparseTensor")
    x, edges = (_tensor(raw, name, where) for name in ("x", "edge_index"))
    if x is None or edges is None:
        lacking = "x, the features of its nodes [nodes, features]" if x is None else "edge_index, int64 [2, edges]"
        hint = "; nodes without features may get torch.ones(num_nodes, 1)" if x is None else ""
        raise DataError(f"{where} has no {lacking}{hint}")
    if x.dim() != 2 or x.is_complex() or not x.shape[1]:
        raise DataError(
            f"{where}: x is {_type_and_shape(x)}; it must be numbers [nodes, features] with at least one feature"
        )
    if not len(x):
        raise DataError(f"{where} has no nodes: leave it out")
    if edges.is_floating_point() or edges.is_complex() or edges.dtype == torch.bool:
        raise DataError(f"{where}: edge_index is {_type_and_shape(edges)}, and must be integers: edge_index.long()")
    if edges.dim() != 2 or edges.shape[0] != 2:
        turn = ": transpose it, edge_index.t()" if edges.dim() == 2 and edges.shape[1] == 2 else ""
        raise DataError(f"{where}: edge_index is {_type_and_shape(edges)}; it is [2, edges]{turn}")
    if edges.numel() and not 0 <= int(edges.min()) <= int(edges.max()) < len(x):
        outside = int(edges.max()) if int(edges.max()) >= len(x) else int(edges.min())
        raise DataError(
            f"{where}: an edge has the node {outside}, and there are {len(x)} nodes, counted from 0: relabel the nodes "
            "of a subgraph, as torch_geometric.utils.subgraph(..., relabel_nodes=True) does"
        )
    x = x.float()
    if not bool(x.isfinite().all()):
        bad = (~x.isfinite()).any(1).nonzero().flatten()
        raise DataError(
            f"{where}: the features of {counted(len(bad), 'node')}, first {int(bad[0])}, are NaN or infinite: fill "
            "them in, or leave these nodes out"
        )
    weight = _tensor(raw, "edge_weight", where)
    if weight is not None:
        weight = weight.squeeze(-1) if weight.dim() == 2 else weight
        if tuple(weight.shape) != (edges.shape[1],) or weight.is_complex():
            raise DataError(f"{where}: edge_weight is {_type_and_shape(weight)}, and there are {edges.shape[1]} edges")
        if not bool(weight.isfinite().all()):
            raise DataError(f"{where}: an edge weight is NaN or infinite: leave the edge out")
        weight = weight.float()
    return Graph(x, edges.long(), weight)


def _labels(raw: Raw, count: int, where: str, level: Level) -> Tensor:
    y = _tensor(raw, "y", where)
    if y is None:
        return torch.full((count,), UNKNOWN)
    if y.is_complex() or (y.is_floating_point() and y.numel()):
        raise DataError(f"{where}: y is {_type_and_shape(y)}, and classes must be integers from 0: y.long()")
    if y.dim() == 2 and y.shape[1] > 1:
        raise DataError(
            f"{where}: y is {_type_and_shape(y)}, and there is one class of each {level}: y.argmax(1) of one-hot rows"
        )
    y = y.flatten()
    if level == "graph" and len(y) != count and raw.get("batch") is not None:
        raise DataError(
            f"{where}: y has {len(y)} classes, and several graphs are joined in one (batch): give a list of them, "
            "batch.to_data_list()"
        )
    if len(y) != count:
        of = "there is one graph" if level == "graph" else f"there are {count} nodes"
        other = "node" if level == "graph" else "graph"
        raise DataError(
            f'{where}: y has {len(y)} classes, and {of}; [data] level = "{other}" is for classes of '
            f"{'nodes' if other == 'node' else 'whole graphs'}"
        )
    return y.long().clamp(min=UNKNOWN)


def _masks(raw: Sequence[Raw], counts: Sequence[int], places: Sequence[str], level: Level) -> dict[SplitName, Tensor]:
    """Return the masks of examples; a mask that some graphs lack is empty there."""
    if all(each.get(name) is None for each in raw for name in MASKS.values()):
        return {}
    found: dict[SplitName, list[Tensor]] = {split: [] for split in MASKS}
    for each, count, where in zip(raw, counts, places, strict=True):
        own = {split: _mask(each, name, count, where) for split, name in MASKS.items()}
        for one, two in (("train", "validation"), ("train", "test"), ("validation", "test")):
            both = int((own[one] & own[two]).sum())  # type: ignore[index]
            if both:
                raise DataError(
                    f"{where}: {both} {level}s are in {MASKS[one]} and {MASKS[two]}: make them disjoint, or "  # type: ignore[index]
                    f'split the {level}s at random, [data] masks = "drawn"'
                )
        for split, mask in own.items():
            found[split].append(mask)
    return {split: torch.cat(parts) for split, parts in found.items()}


def _mask(raw: Raw, name: str, count: int, where: str) -> Tensor:
    mask = _tensor(raw, name, where)
    if mask is None:
        return torch.zeros(count, dtype=torch.bool)
    if mask.dim() == 2 and mask.shape[1] > 1:
        raise DataError(
            f"{where}: {name} has {mask.shape[1]} columns, one for each of several splits: keep one of them"
        )
    mask = mask.flatten()
    if len(mask) != count or not bool(((mask == 0) | (mask == 1)).all()):
        raise DataError(f"{where}: {name} is {_type_and_shape(mask)}; it must be boolean, with {count} entries")
    return mask.bool()


def as_tensor(value: Any) -> Tensor:
    """Return a part of a graph, such as a number, array or tensor, as a tensor in main memory."""
    return value.detach().cpu() if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))


def _tensor(raw: Raw, name: str, where: str) -> Tensor | None:
    value = raw.get(name)
    if value is None:
        return None
    try:
        found = as_tensor(value)
        found = found.long() if found.dtype in _UNSIGNED else found
        return found if found.layout == torch.strided else found.to_dense()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{where}: {name} is no tensor of numbers ({error})", quoted=str(error)) from None


def _unused(raw: Raw) -> list[str]:
    return [key for key, value in raw.items() if key not in _USED and isinstance(value, Tensor | np.ndarray)]


def _type_and_shape(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
