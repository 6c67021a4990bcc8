"""Construction of client graphs from edges, a matrix, or a graph of another library."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from fedgraph.graph.edges import mirrored
from fedgraph.graph.inputs import client_name, client_names, listed_edges, real_tensor, square_in_order
from fedgraph.support.errors import GraphError, quoted, similar

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("fedgraph")


class Constructors:
    """Class methods of :class:`fedgraph.graph.ClientGraph` for edges."""

    if TYPE_CHECKING:

        def __init__(
            self,
            names: tuple[str, ...],
            edge_index: Tensor,
            weights: Tensor,
            directed: bool = False,
            allow_negative: bool = False,
        ) -> None: ...

        def undirected_if_symmetric(self) -> Self:  # noqa: D102
            ...

    @classmethod
    def from_edges(
        cls,
        edges: Iterable[tuple[Any, Any] | tuple[Any, Any, float]]
        | Mapping[tuple[Any, Any], float]
        | Tensor
        | np.ndarray
        | pd.DataFrame,
        names: Sequence[Any] | None = None,
        *,
        directed: bool = False,
        allow_negative: bool = False,
    ) -> Self:
        """Build a graph from pairs of clients, with a weight or without.

        Raises GraphError for an invalid edge, a missing name, and as :meth:`from_lists`.

        Parameters
        ----------
        edges : ``(source, target, weight)``, or ``(source, target)`` with weight 1, also as rows of an array; weights
            by pair; or a data frame with the columns from and to (or source and target), alone or with weight. Clients
            are named ``str(source)``, but whole numbers such as 1.0 are ``1``.
        names : all clients, in order, including those without an edge; by default those of the edges, sorted.
        directed : whether only the source of an edge listens to the target; otherwise both listen to each other.
        allow_negative : whether weights below zero are accepted.
        """
        sources, targets, weights = [], [], []
        for edge in listed_edges(edges):
            wrong = GraphError(f"an edge must be (source, target) or (source, target, weight); got {edge!r}")
            if not isinstance(edge, (Sequence, np.ndarray)) or isinstance(edge, str) or len(edge) not in (2, 3):
                raise wrong
            sources.append(client_name(edge[0], f"the edge {edge!r}"))
            targets.append(client_name(edge[1], f"the edge {edge!r}"))
            try:
                weights.append(float(edge[2]) if len(edge) == 3 else 1.0)
            except (TypeError, ValueError):
                raise wrong from None
        all_names = sorted({*sources, *targets}) if names is None else client_names(names)
        return cls.from_lists(all_names, sources, targets, weights, directed=directed, allow_negative=allow_negative)

    @classmethod
    def from_adjacency(
        cls,
        matrix: Tensor | np.ndarray | Sequence[Sequence[float]] | pd.DataFrame,
        names: Sequence[Any] | None = None,
        *,
        directed: bool | None = None,
        allow_negative: bool = False,
    ) -> Self:
        """Build a graph from an adjacency matrix ``[N, N]``: ``A[i, j]`` is the weight with which i listens to j.

        The matrix may be a data frame, or a sparse matrix of SciPy. The labels of a data frame are names: its rows and
        columns are put into the order of ``names``, by default of its rows (or, if these are just numbered, its
        columns). Clients are named ``str(name)``, by default by their number from 0; the graph is directed unless the
        matrix is symmetric. Raises GraphError as :meth:`from_dense`, and for labels that are not the names.
        """
        values, names = square_in_order(matrix.toarray() if hasattr(matrix, "toarray") else matrix, names)
        whole = real_tensor(values, "an adjacency matrix", "[N, N]")
        all_names = client_names(range(len(whole)) if names is None else names)
        found = cls.from_dense(all_names, whole, directed=directed is not False, allow_negative=allow_negative)
        return found if directed else found.undirected_if_symmetric()

    @classmethod
    def from_networkx(cls, graph: Any, weight: str = "weight", allow_negative: bool = False) -> Self:
        """Convert a NetworkX graph.

        Nodes become clients named ``str(node)``. Directed if ``graph`` is.

        Parameters
        ----------
        graph : or ``DiGraph``, for a directed client graph.
        weight : edge attribute with the weight, by default 1; an edge u -> v becomes ``A[u, v]``: u listens to v.
        allow_negative : whether weights below zero are accepted.
        """
        if not hasattr(graph, "is_directed") or not hasattr(graph, "nodes"):
            raise GraphError(f"expected a NetworkX graph; got {type(graph).__name__} (use from_edges for edges)")
        warn_of_attribute(weight, [attributes for *_, attributes in graph.edges(data=True)])
        edges = list(graph.edges(data=weight, default=1.0))
        name = {node: client_name(node, "the graph") for node in graph.nodes}
        return cls.from_lists(
            tuple(name.values()),
            [name[source] for source, _, _ in edges],
            [name[target] for _, target, _ in edges],
            [_edge_weight(source, target, value, weight) for source, target, value in edges],
            directed=graph.is_directed(),
            allow_negative=allow_negative,
        )

    @classmethod
    def from_pyg(cls, data: Any, names: Sequence[str] | None = None, allow_negative: bool = False) -> Self:
        """Convert a PyTorch Geometric ``Data``; the inverse of :meth:`to_pyg`. With an edge u -> v, v listens to u.

        Directed if it is not symmetric. Raises GraphError when there is not one weight per edge and one name per node.

        Parameters
        ----------
        data : weights are ``edge_weight``, else a one-column ``edge_attr``, else 1.
        names : client names; by default ``data.names``, else the node numbers.
        allow_negative : whether weights below zero are accepted.
        """
        if getattr(data, "edge_index", None) is None:
            raise GraphError("the data has no edge_index: without edges, set torch.zeros(2, 0, dtype=torch.long)")
        if names is None:
            names = getattr(data, "names", None) or [str(at) for at in range(data.num_nodes)]
        weights = getattr(data, "edge_weight", None)
        if weights is None:
            weights = getattr(data, "edge_attr", None)
        if weights is None:
            weights = torch.ones(data.edge_index.shape[1])
        if weights.numel() != data.edge_index.shape[1]:
            raise GraphError(
                f"a client graph has one weight per edge; edge_attr has shape {list(weights.shape)} for "
                f"{data.edge_index.shape[1]} edges"
            )
        if len(names) != data.num_nodes:
            raise GraphError(f"the graph has {data.num_nodes} nodes but {len(names)} client names were given")
        graph = cls(tuple(names), data.edge_index.flip(0), weights.reshape(-1), True, allow_negative)
        return graph.undirected_if_symmetric()

    @classmethod
    def from_lists(
        cls,
        names: Sequence[str],
        sources: Sequence[str],
        targets: Sequence[str],
        weights: Sequence[float] | Tensor | np.ndarray,
        *,
        directed: bool,
        allow_negative: bool = False,
    ) -> Self:
        """Build a graph from lists: ``A[source, target] = weight``, so a source listens to its targets.

        An undirected list may contain a pair in one or both directions. Raises GraphError for unknown clients, lists of
        different lengths, and as the constructor.
        """
        if not len(sources) == len(targets) == len(weights):
            raise GraphError(
                f"an edge list needs as many sources as targets and weights; got {len(sources)}, {len(targets)} and "
                f"{len(weights)}"
            )
        position = {name: at for at, name in enumerate(names)}
        unknown = list(dict.fromkeys(name for name in (*sources, *targets) if name not in position))
        if unknown:
            raise GraphError(unknown_clients(unknown, names))
        edge_index = torch.tensor(
            [[position[name] for name in sources], [position[name] for name in targets]], dtype=torch.int64
        )
        values = real_tensor(weights, "weights", "[E]")
        if not directed:
            edge_index, values = mirrored(len(names), edge_index, values)
        return cls(tuple(names), edge_index, values, directed, allow_negative)

    @classmethod
    def from_dense(
        cls, names: Sequence[str], matrix: Tensor | np.ndarray, *, directed: bool, allow_negative: bool = False
    ) -> Self:
        """Build a graph from an adjacency matrix ``[N, N]``, dense or a sparse tensor.

        Raises GraphError when the matrix is not square or does not match ``names``, and as the constructor does.
        """
        adjacency = real_tensor(matrix, "an adjacency matrix", "[N, N]")
        if adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1]:
            raise GraphError(f"an adjacency matrix must be square; got shape {list(adjacency.shape)}")
        if adjacency.shape[0] != len(names):
            raise GraphError(
                f"the adjacency matrix has {adjacency.shape[0]} rows but {len(names)} client names were given"
            )
        entries = adjacency.detach().to_sparse_coo().coalesce()
        return cls(tuple(names), entries.indices(), entries.values(), directed, allow_negative)

    @classmethod
    def complete(cls, names: Sequence[str]) -> Self:
        """Build the graph in which every client listens to every other with weight 1."""
        edge_index = (~torch.eye(len(names), dtype=torch.bool)).nonzero().T
        return cls(tuple(names), edge_index, torch.ones(edge_index.shape[1]))

    @classmethod
    def empty(cls, names: Sequence[str]) -> Self:
        """Build the graph without edges."""
        return cls(tuple(names), torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0))


def warn_of_attribute(name: str, edges: Sequence[Mapping[str, Any]]) -> None:
    """Warn of an attribute, other than the usual one, that none of the edges has, so that all weigh 1."""
    if name != "weight" and edges and not any(name in attributes for attributes in edges):
        known = list(dict.fromkeys(str(each) for attributes in edges for each in attributes))
        log.warning("no edge has the attribute '%s', so that all weights are 1%s", name, similar([name], known))


def _edge_weight(source: Any, target: Any, value: Any, attribute: str) -> float:
    """Return the weight of an edge of NetworkX. Raises GraphError, which names the edge, if it is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise GraphError(
            f"the edge from '{source}' to '{target}' has {attribute} = {value!r}, which is not a number: set it, or "
            "remove the attribute, for a weight of 1"
        ) from None


def unknown_clients(unknown: Sequence[str], names: Sequence[str]) -> str:
    """Return an error message about names that a graph over ``names`` lacks."""
    return (
        f"unknown client name in the graph: {quoted(unknown)}; its {len(names)} clients are {quoted(list(names), 3)}"
        f"{similar(unknown, names)}"
    )
