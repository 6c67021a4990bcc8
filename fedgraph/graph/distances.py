"""Distances between clients in blocks of rows, and the Gaussian kernel that makes weights of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from fedgraph.support.errors import GraphError

EARTH_RADIUS_METRES = 6_371_008.8
_BLOCK_ENTRIES = 2**22

DistanceRows = Callable[[slice], Tensor]
"""Rows of a distance matrix ``[block, N]`` for a slice of clients."""


def gaussian_kernel(distances: Tensor, sigma: float | None) -> Tensor:
    """Return ``exp(-(d / sigma)^2)``; 1 without a sigma. Raises GraphError for a sigma that is not above 0."""
    if sigma is None:  # the default of no distances at all
        return torch.ones_like(distances)
    if not sigma > 0:
        raise GraphError(f"sigma, the width of the Gaussian kernel, must be above 0; got {sigma}")
    return torch.exp(-((distances / sigma) ** 2))


def default_sigma(mean: float, variance: float) -> float:
    """Return the standard deviation of distances. Raises GraphError where all are equal."""
    deviation = max(variance, 0.0) ** 0.5
    if deviation <= 1e-6 * mean:  # a spread this small is rounding error
        raise GraphError(
            "all distances are equal, so their standard deviation cannot serve as the width of the Gaussian kernel; "
            "give sigma ([graph] sigma)"
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
    # The matrix-product shortcut of cdist loses the small distances that matter most here.
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
    """Yield slices of clients such that a block of rows ``[block, N]`` has a few million entries."""
    size = max(1, _BLOCK_ENTRIES // num_clients)
    for start in range(0, num_clients, size):
        yield slice(start, min(start + size, num_clients))
