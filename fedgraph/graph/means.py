"""Means in which clients count by their training examples: over all, and over the client graph.

The latter is not from a paper: the aggregation of SFL (Chen et al. 2022, algorithm 1) with FedAvg's weights in it.
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
    """``sum_j S_ij n_j row_j / sum_j S_ij n_j`` with ``S = (1 - alpha) I + alpha A_hat^K + everybody / N``.

    A_hat is the random walk with self loops (where missing, unless ``self_loops`` is false), K the number of hops. Over
    a complete graph with alpha 1 this is FedAvg. A row that hears nobody who counts is the mean by examples over all.

    rows : ``[clients, ...]``; counts : n, ``[clients]``, not negative. Returns ``[clients, ...]``.
    """
    return graph_mean_weights(graph, counts, alpha, hops, everybody, self_loops).to(rows) @ rows


def graph_mean_weights(
    graph: ClientGraph, counts: Tensor, alpha: float, hops: int, everybody: float = 0.0, self_loops: bool = True
) -> Tensor:
    """The weights of ``graph_mean``, float64 ``[clients, clients]``; rows sum to one."""
    shares = counts.double() / counts.double().max().clamp(min=1)
    one = torch.eye(len(shares))
    walked = graph.propagate(one, hops=hops, normalisation="random-walk", self_loops=self_loops)
    spread = torch.lerp(one, walked, alpha).double()
    weights = (spread + everybody / len(shares)) * (shares if bool(shares.any()) else torch.ones_like(shares))
    silent = weights.sum(dim=1, keepdim=True) <= 0
    weights = torch.where(silent, shares, weights)
    return weights / weights.sum(dim=1, keepdim=True)


def weighted_mean(rows: Tensor, weights: Tensor) -> Tensor:
    """``sum_i weights_i rows_i / sum_i weights_i`` of ``[clients, ...]`` rows; plain mean where all weights are 0."""
    shares = weights.to(rows) if bool((weights > 0).any()) else rows.new_ones(len(rows))
    return (shares / shares.sum()) @ rows
