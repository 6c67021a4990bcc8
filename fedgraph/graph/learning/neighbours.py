"""Shared parts of learned client graphs: checked squared distances ``[N, N]``, nearest neighbours, and the combination
with a given graph, ``A = (1 - beta) A_given + beta A_learned``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedgraph.support.errors import GraphError

ROUNDING = 1e-12
"""Fraction of the mean squared distance below which two clients count as the same: their distance is rounding error."""


def checked_distances(squared_distances: Tensor) -> Tensor:
    """Return squared distances ``[N, N]`` in float64 on the CPU, symmetric with a zero diagonal.

    Raises GraphError for a matrix of another shape, and for entries that are negative or not finite.
    """
    distances = squared_distances.detach().to("cpu", torch.float64)
    if distances.ndim != 2 or distances.shape[0] != distances.shape[1] or len(distances) == 0:
        raise GraphError(
            f"a client graph is learned from squared distances between all clients, [N, N]; got {list(distances.shape)}"
        )
    if not bool((distances.isfinite() & (distances >= 0)).all()):
        raise GraphError("squared distances between clients must be finite and non-negative")
    return ((distances + distances.T) / 2).fill_diagonal_(0)


def checked_neighbours(neighbours: float, clients: int) -> float:
    """Limit the number of neighbours to that of all other clients. Raises GraphError if it is not above 0."""
    if not neighbours > 0:
        raise GraphError(f"neighbours, the number of clients that one listens to, must be above 0; got {neighbours}")
    return min(neighbours, clients - 1)


def sorted_others(distances: Tensor) -> tuple[Tensor, Tensor]:
    """Return squared distances and positions of all *others* of every client, nearest first, each ``[N, N - 1]``.

    Of equally near clients the first in order comes first.
    """
    apart = distances.clone().fill_diagonal_(torch.inf)
    values, positions = apart.sort(dim=1, stable=True)
    return values[:, :-1], positions[:, :-1]


def nearest(distances: Tensor, neighbours: int) -> Tensor:
    """Return which clients are among the ``neighbours`` nearest others of each: bool ``[N, N]``, by row."""
    _, positions = sorted_others(distances)
    return torch.zeros(distances.shape, dtype=torch.bool).scatter_(1, positions[:, :neighbours], True)


def off_diagonal_mean(matrix: Tensor) -> float:
    """Return the mean over all pairs of clients of a matrix ``[N, N]`` with a zero diagonal; 0 for a single client."""
    clients = len(matrix)
    return float(matrix.sum()) / max(clients * (clients - 1), 1)


def with_row_sums(weights: Tensor, total: float) -> Tensor:
    """Scale every row of weights ``[N, N]`` to the sum ``total``. Returns ``[N, N]``; rows of zeros stay zero."""
    sums = weights.sum(dim=1, keepdim=True)
    return weights * torch.where(sums > 0, total / sums, torch.zeros_like(sums))


def combine_graphs(given: Tensor, learned: Tensor, beta: float) -> Tensor:
    """Combine a given and a learned graph.

    Rows of the learned graph are scaled to the mean row sum of the given one without self loops, so that the total
    weight of a client's neighbours hardly depends on ``beta``. Self loops of the given graph are kept: the weight of a
    client itself is not learned. Returns ``[N, N]``.

    Parameters
    ----------
    given, learned : Tensor
        ``[N, N]``, with weights in any unit.
    beta : float
        Weight of the learned graph, 0 to 1.
    """
    loops = torch.diag(given.diagonal())
    links = given - loops
    scale = float(links.sum(dim=1).mean())
    return loops + (1 - beta) * links + beta * with_row_sums(learned, scale)
