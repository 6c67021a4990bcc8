"""A client graph by a Gaussian kernel of the distances between the clients' models, nearest neighbours only.

Every client has its own kernel width, as in Zelnik-Manor and Perona, Self-Tuning Spectral Clustering (NeurIPS
2004), eq. 3: one width for all would isolate clients in sparse regions and link all clients in dense ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedgraph.graph.learning.neighbours import (
    ROUNDING,
    checked_distances,
    checked_neighbours,
    nearest,
    off_diagonal_mean,
    sorted_others,
)


def kernel_graph(squared_distances: Tensor, neighbours: int = 8) -> Tensor:
    """Compute ``W_ij = exp(-D_ij / (s_i s_j))`` for pairs in which one is among the k nearest others of the other.

    ``s_i^2`` is the mean of D over the k nearest of client i. A client much farther away than others are from each
    other gets no weight. Returns float64 ``[N, N]``, symmetric, entries from 0 to 1, zero diagonal. Raises GraphError
    for a matrix that is not one of squared distances, and for neighbours below 1.

    Parameters
    ----------
    squared_distances : Tensor
        D, ``[N, N]``; its unit does not matter.
    neighbours : int
        k; at most the number of other clients.
    """
    distances = checked_distances(squared_distances)
    count = int(checked_neighbours(neighbours, len(distances)))
    if count == 0:
        return torch.zeros_like(distances)
    values, _ = sorted_others(distances)
    floor = ROUNDING * off_diagonal_mean(distances) or 1.0
    widths = values[:, :count].mean(dim=1).clamp(min=floor).sqrt()
    linked = nearest(distances, count)
    kernel = torch.exp(-distances / (widths[:, None] * widths))
    return kernel * (linked | linked.T)
