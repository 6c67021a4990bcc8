"""Conversion of client graphs to and from NetworkX graphs and PyTorch Geometric ``Data``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fedgraph.graph.value import ClientGraph
from fedgraph.support.errors import GraphError

if TYPE_CHECKING:
    import networkx as nx


def from_networkx(graph: nx.Graph, weight: str = "weight", allow_negative: bool = False) -> ClientGraph:
    """Convert a NetworkX graph.

    Nodes become clients named ``str(node)``.

    Parameters
    ----------
    graph : networkx.Graph
        Or ``DiGraph``, for a directed client graph.
    weight : str
        Edge attribute with the weight; an edge u -> v becomes ``A[u, v]``: u listens to v. 1 where it has none.
    allow_negative : bool
        Whether weights below zero are accepted.

    Returns
    -------
    ClientGraph
        Directed if ``graph`` is.
    """
    edges = list(graph.edges(data=weight, default=1.0))
    return ClientGraph.from_lists(
        [str(node) for node in graph.nodes],
        [str(source) for source, _, _ in edges],
        [str(target) for _, target, _ in edges],
        [float(value) for _, _, value in edges],
        directed=graph.is_directed(),
        allow_negative=allow_negative,
    )


def to_networkx(graph: ClientGraph) -> nx.Graph:
    """Convert to a NetworkX graph.

    Returns
    -------
    networkx.Graph
        Or ``DiGraph`` if directed, over client names with the edge attribute ``weight``.
    """
    import networkx as nx  # takes a fifth of a second

    result = nx.DiGraph() if graph.directed else nx.Graph()
    result.add_nodes_from(graph.names)
    result.add_weighted_edges_from(
        (graph.names[row], graph.names[column], value)
        for (row, column), value in zip(graph.edge_index.T.tolist(), graph.weights.tolist(), strict=True)
    )
    return result


def to_pyg(graph: ClientGraph) -> Any:
    """Convert to a PyTorch Geometric ``Data``.

    Messages of a graph convolution flow from row 0 of its ``edge_index`` to row 1, and ``A[i, j]`` is the weight with
    which i listens to j: the rows are those of ``ClientGraph.edge_index`` swapped, so that a convolution computes ``A @
    x``.

    Returns
    -------
    torch_geometric.data.Data
        With ``edge_index``, ``edge_weight``, ``num_nodes`` and ``names``.
    """
    from torch_geometric.data import Data  # here, because its import takes a second

    return Data(
        edge_index=graph.edge_index.flip(0).contiguous(),
        edge_weight=graph.weights.clone(),
        num_nodes=graph.num_clients,
        names=list(graph.names),
    )


def from_pyg(data: Any, names: Sequence[str] | None = None, allow_negative: bool = False) -> ClientGraph:
    """Convert a PyTorch Geometric ``Data``; the inverse of :func:`to_pyg`. With an edge u -> v, v listens to u.

    Parameters
    ----------
    data : torch_geometric.data.Data
        Weights are ``edge_weight``, else a one-column ``edge_attr``, else 1.
    names : sequence of str, optional
        Client names; by default ``data.names``, else the node numbers.
    allow_negative : bool
        Whether weights below zero are accepted.

    Returns
    -------
    ClientGraph
        Directed if it is not symmetric.

    Raises
    ------
    GraphError
        When there is not one weight per edge and one name per node.
    """
    found = names if names is not None else getattr(data, "names", None) or [str(at) for at in range(data.num_nodes)]
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
    if len(found) != data.num_nodes:
        raise GraphError(f"the graph has {data.num_nodes} nodes but {len(found)} client names were given")
    graph = ClientGraph(tuple(found), data.edge_index.flip(0), weights.reshape(-1), True, allow_negative)
    return undirected_if_symmetric(graph)


def undirected_if_symmetric(graph: ClientGraph) -> ClientGraph:
    """Return the same graph, marked undirected if both directions of every edge agree."""
    if not graph.is_symmetric:
        return graph
    return ClientGraph(graph.names, graph.edge_index, graph.weights, False, graph.allow_negative)
