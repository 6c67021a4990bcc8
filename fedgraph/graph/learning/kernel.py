"""The plain way to a client graph: a Gaussian kernel of the distances between the clients' models, nearest ones only.

Every client has a kernel width of its own, as in Zelnik-Manor and Perona, Self-Tuning Spectral Clustering (NeurIPS
2004), eq. 3: one width for all would leave clients in sparse regions alone and link everybody in dense ones.
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
    """``W_ij = exp(-D_ij / (s_i s_j))`` where i is among the k nearest others of j or j among those of i, else 0.

    squared_distances : D, ``[N, N]``; its unit does not matter.
    neighbours        : k; at most the number of other clients.

    ``s_i^2`` is the mean of D over the k nearest of client i. Returns float64 ``[N, N]``, symmetric, entries from 0
    to 1, zero diagonal; a client very much farther off than others are from each other is linked to nobody.

    Raises GraphError for distances that are none and neighbours below 1.
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
