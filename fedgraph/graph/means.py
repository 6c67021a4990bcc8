"""Means in which clients are weighted by their training examples: over all, and over the client graph.

The latter is not from a paper: it is the aggregation of SFL (Chen et al. 2022, algorithm 1) with FedAvg's weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedgraph.graph.value import ClientGraph


def graph_mean(
    graph: ClientGraph,
    rows: Tensor,
    counts: Tensor,
    alpha: float,
    hops: int,
    everybody: float = 0.0,
    self_loops: bool = True,
) -> Tensor:
    """Average rows over the client graph, weighted by examples.

    The result is ``sum_j S_ij n_j row_j / sum_j S_ij n_j`` with ``S = (1 - alpha) I + alpha A_hat^K + everybody / N``,
    where A_hat is the random-walk matrix and K the number of hops. Over a complete graph with alpha 1 this is FedAvg.
    Returns ``[clients, ...]``. A client that reaches no client with examples gets the mean by examples over all.

    Parameters
    ----------
    graph : ClientGraph
        Over the clients, in the order of ``rows``.
    rows : Tensor
        ``[clients, ...]``.
    counts : Tensor
        Number of examples n of each client, ``[clients]``, not negative.
    alpha : float
        Weight of the graph, 0 to 1.
    hops : int
        K.
    everybody : float
        Weight of the mean over all clients.
    self_loops : bool
        Whether A_hat has self loops where they are missing.
    """
    return graph_mean_weights(graph, counts, alpha, hops, everybody, self_loops).to(rows) @ rows


def graph_mean_weights(
    graph: ClientGraph, counts: Tensor, alpha: float, hops: int, everybody: float = 0.0, self_loops: bool = True
) -> Tensor:
    """Return the weights of :func:`graph_mean`.

    Returns float64 ``[clients, clients]``; rows sum to one.

    Parameters
    ----------
    graph, counts, alpha, hops, everybody, self_loops
        As in :func:`graph_mean`.
    """
    shares = counts.double() / counts.double().max().clamp(min=1)
    one = torch.eye(len(shares))
    walked = graph.propagate(one, hops=hops, normalisation="random-walk", self_loops=self_loops)
    spread = torch.lerp(one, walked, alpha).double()
    weights = (spread + everybody / len(shares)) * (shares if bool(shares.any()) else torch.ones_like(shares))
    silent = weights.sum(dim=1, keepdim=True) <= 0
    weights = torch.where(silent, shares, weights)
    return weights / weights.sum(dim=1, keepdim=True)


def weighted_mean(rows: Tensor, weights: Tensor) -> Tensor:
    """Average rows ``[clients, ...]`` with weights ``[clients]``.

    Returns ``sum_i weights_i rows_i / sum_i weights_i``; the plain mean where no weight is above 0.
    """
    shares = weights.to(rows) if bool((weights > 0).any()) else rows.new_ones(len(rows))
    return (shares / shares.sum()) @ rows
