"""Distances between clients in blocks of rows, and their weights by the Gaussian kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from fedgraph.graph.edges import canonical, symmetrised
from fedgraph.support.errors import GraphError

EARTH_RADIUS_METRES = 6_371_008.8
_BLOCK_ENTRIES = 2**22

DistanceRows = Callable[[slice], Tensor]
"""Rows of a distance matrix ``[block, N]`` for a slice of clients."""


def gaussian_kernel(distances: Tensor, sigma: float | None) -> Tensor:
    """Return ``exp(-(d / sigma)^2)``; 1 without a sigma. Raises GraphError for a sigma that is not above 0."""
    if sigma is None:  # the default without distances
        return torch.ones_like(distances)
    if not sigma > 0:
        raise GraphError(f"sigma, the width of the Gaussian kernel, must be above 0; got {sigma}")
    return torch.exp(-((distances / sigma) ** 2))


def default_sigma(mean: float, variance: float) -> float:
    """Return the standard deviation of distances. Raises GraphError if all are equal."""
    deviation = max(variance, 0.0) ** 0.5
    if deviation <= 1e-6 * mean:  # rounding error
        raise GraphError(
            "all distances are equal, so their standard deviation cannot be the width of the Gaussian kernel; set "
            "sigma ([graph] sigma)"
        )
    return deviation


def check_not_negative(names: Sequence[str], edge_index: Tensor, distances: Tensor) -> None:
    """Raise GraphError, which names two clients, for a negative distance."""
    if bool((distances < 0).any()):
        at = int(distances.argmin())
        row, column = edge_index[:, at].tolist()
        raise GraphError(f"the distance from '{names[row]}' to '{names[column]}' is negative: {float(distances[at]):g}")


def euclidean_rows(points: Tensor) -> DistanceRows:
    """Return Euclidean distances between points ``[N, F]``."""
    # The matrix-product mode of cdist is inaccurate for small distances, which matter most here.
    return lambda block: torch.cdist(points[block], points, compute_mode="donot_use_mm_for_euclid_dist")


def great_circle_rows(degrees: Tensor) -> DistanceRows:
    """Return haversine distances in metres between latitudes and longitudes ``[N, 2]`` in degrees.

    Half the chord of the unit sphere is the root of the haversine term.
    """
    latitude, longitude = torch.deg2rad(degrees).unbind(1)
    on_sphere = torch.stack([latitude.cos() * longitude.cos(), latitude.cos() * longitude.sin(), latitude.sin()], dim=1)
    chords = euclidean_rows(on_sphere)
    return lambda block: 2 * EARTH_RADIUS_METRES * torch.asin((chords(block) / 2).clamp(max=1))


def others_rows(rows: DistanceRows, num_clients: int) -> Iterator[tuple[int, Tensor]]:
    """Yield blocks of rows of a distance matrix as new tensors, with infinite distances of clients to themselves."""
    for block in row_blocks(num_clients):
        distances = rows(block).clone()
        distances[:, block].fill_diagonal_(torch.inf)
        yield block.start, distances


def row_blocks(num_clients: int) -> Iterator[slice]:
    """Yield slices of clients whose blocks of rows ``[block, N]`` have a few million entries."""
    size = max(1, _BLOCK_ENTRIES // num_clients)
    for start in range(0, num_clients, size):
        yield slice(start, min(start + size, num_clients))


def gaussian_edges(
    names: Sequence[str], edge_index: Tensor, distances: Tensor, sigma: float | None, cut: float
) -> Tensor:
    """Return the weights of edges with these distances as float32, 0 below ``cut``.

    Raises GraphError for a ``cut`` that is not a weight and for negative distances.
    """
    if not 0 <= cut <= 1:
        raise GraphError(f"cut, the minimum weight of an edge, must be between 0 and 1; got {cut}")
    check_not_negative(names, edge_index, distances)
    if sigma is None and distances.numel():
        sigma = default_sigma(float(distances.mean()), float(distances.var(correction=0)))
    weights = gaussian_kernel(distances, sigma)
    weights[weights < cut] = 0
    return weights.float()


def nearest_edges(
    names: Sequence[str], rows: DistanceRows, k: int, weights: str, sigma: float | None
) -> tuple[Tensor, Tensor]:
    """Return the edges of the symmetric k-nearest-neighbour graph, and their weights.

    Raises GraphError for ``k`` out of range, unknown ``weights`` and negative distances.
    """
    if weights not in ("binary", "gaussian"):
        raise GraphError(f"weights must be 'binary' or 'gaussian'; got {weights!r}")
    if not isinstance(k, int) or not 1 <= k < len(names):
        raise GraphError(f"k must be between 1 and {len(names) - 1}, the number of other clients; got {k}")
    found, nearest = [], []
    count, total, total_squares = 0, 0.0, 0.0
    for start, block in others_rows(rows, len(names)):
        block[block.isnan()] = torch.inf
        farthest = block.kthvalue(k, dim=1, keepdim=True).values
        closer, tied = block < farthest, block == farthest
        chosen = closer | (tied & (tied.cumsum(1) <= k - closer.sum(1, keepdim=True)))
        finite = block.isfinite()
        chosen &= finite
        edge_index = chosen.nonzero().T
        edge_index[0] += start
        found.append(edge_index)
        nearest.append(block[chosen])
        if weights == "gaussian" and sigma is None:
            values = block[finite]
            count += len(values)
            total += float(values.sum())
            total_squares += float((values**2).sum())
    edge_index, lengths = torch.cat(found, dim=1), torch.cat(nearest)
    check_not_negative(names, edge_index, lengths)
    if weights == "binary":
        strengths = torch.ones_like(lengths)
    else:
        if sigma is None and count:
            mean = total / count
            sigma = default_sigma(mean, total_squares / count - mean**2)
        strengths = gaussian_kernel(lengths, sigma)
    return symmetrised(len(names), *canonical(names, edge_index, strengths.float()), torch.maximum)
