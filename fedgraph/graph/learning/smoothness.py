"""A client graph on which the clients' models are smooth: similar models are linked, and every client has a neighbour.

Kalofolias, How to Learn a Graph from Smooth Signals (AISTATS 2016), eq. 12; the parameters from a wanted number of
neighbours as in Kalofolias and Perraudin, Large Scale Graph Learning from Smooth Signals (ICLR 2019), section 4. Solved
not by their forward-backward-forward iteration but by Newton's method on the dual problem, which has one variable per
client: a dozen steps reach the precision of float64, where theirs takes thousands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedgraph.graph.learning.neighbours import checked_distances, checked_neighbours, off_diagonal_mean, sorted_others
from fedgraph.support.errors import GraphError

_MAX_STEPS = 200
_MAX_SOLUTIONS = 30
_CLOSE_ENOUGH = 0.05
"""Tolerance of the mean number of neighbours, as a fraction of the wanted number."""

_LARGEST_SCALE = 1e3
"""Beyond it, with distances to neighbours of about 1, differences of a millionth would decide about edges."""

_FAR = 1e3
"""Largest squared distance in units of that to a neighbour; larger ones are clamped: to an outlier all are alike."""

_ARMIJO = 1e-4
_SHORTEST = 1e-14
_JITTER = 1e-14


@dataclass(frozen=True)
class SmoothGraph:
    """The minimiser of ``sum_ij W_ij D_ij - a 1' log(W 1) + b/2 |W|_F^2`` over symmetric W >= 0 with zero diagonal.

    Attributes
    ----------
    weights : W, float64 ``[N, N]``.
    scale : factor of the squared distances with which a = b = 1 gives the wanted number of neighbours.
    residual : violation of the optimality conditions: the largest difference between ``(W 1)_i u_i`` and a, relative to
        a.
    gap : primal minus dual objective, relative to 1 + |primal|: a bound on the distance from the minimum.
    steps : newton steps over all solutions that were tried.
    """

    weights: Tensor
    scale: float
    residual: float
    gap: float
    steps: int

    @property
    def mean_neighbours(self) -> float:
        """Mean number of neighbours of a client."""
        return float((self.weights > 0).sum() / len(self.weights))


def smooth_graph(squared_distances: Tensor, neighbours: float = 8, tolerance: float = 1e-6) -> SmoothGraph:
    """Learn W from squared distances between clients.

    Returns a SmoothGraph with the mean number of neighbours within 5 % of the wanted one, if possible. Raises
    GraphError for a matrix that is not one of squared distances, for neighbours that are not above 0, and for a
    solution that does not converge.

    Parameters
    ----------
    squared_distances : Tensor
        ``[N, N]``; their unit does not matter.
    neighbours : float
        Wanted *mean* number of neighbours, at most that of the other clients. Clients in dense regions get more,
        outliers fewer, but every client at least one. If ties in the distances put it out of reach, the closest
        possible number.
    tolerance : float
        The gap at which the solution counts as converged.
    """
    distances = checked_distances(squared_distances)
    clients = len(distances)
    wanted = checked_neighbours(neighbours, clients)
    if clients == 1:
        return SmoothGraph(torch.zeros(1, 1, dtype=torch.float64), 1.0, 0.0, 0.0, 0)
    neighbouring = sorted_others(distances)[0][:, : max(1, round(wanted))].mean(dim=1)
    unit = float(neighbouring.median()) or off_diagonal_mean(distances) or 1.0
    distances = (distances / unit).clamp_(max=_FAR)
    scale = min(scale_for(distances, wanted), _LARGEST_SCALE)
    # More neighbours for a smaller scale: the wanted number lies between these two.
    low, high = 0.0, float("inf")
    best: SmoothGraph | None = None
    multipliers, steps = None, 0
    for _ in range(_MAX_SOLUTIONS):
        found, multipliers = solve(scale * distances, start=multipliers)
        steps += found.steps
        excess = found.mean_neighbours - wanted
        if found.gap <= tolerance and (best is None or abs(excess) < abs(best.mean_neighbours - wanted)):
            best = replace(found, scale=scale / unit)
        if abs(excess) <= _CLOSE_ENOUGH * wanted:
            break
        low, high = (scale, high) if excess > 0 else (low, scale)
        if low == 0:
            scale /= 4
        elif high == float("inf"):
            scale *= 4
        else:
            scale = (low * high) ** 0.5
        if not 1 / _LARGEST_SCALE <= scale <= _LARGEST_SCALE or high < (1 + 1e-6) * low:
            break
    if best is None:
        raise GraphError(
            f"the smooth graph over {clients} clients did not converge: after {steps} steps its objective may still be "
            f"off by a share of {found.gap:.1e} (tolerance {tolerance:.1e})"
        )
    return replace(best, steps=steps)


def scale_for(squared_distances: Tensor, neighbours: float) -> float:
    """Return the scale of the distances at which a = b = 1 gives about ``neighbours`` neighbours.

    With sorted distances ``z_1 <= z_2 <= ...`` of a client and ``b_k`` the sum of its k smallest, it has k neighbours
    for scales between ``1 / sqrt(k z_(k+1)^2 - b_k z_(k+1))`` and ``1 / sqrt(k z_k^2 - b_k z_k)``: the geometric mean
    of the two bounds, each averaged over clients.
    """
    values, _ = sorted_others(squared_distances)
    k = max(1, min(round(neighbours), values.shape[1] - 1))
    below = values[:, :k].sum(dim=1)

    def bound(z: Tensor) -> float:
        spread = z * (k * z - below)
        distinct = spread > (z / _LARGEST_SCALE).square()
        return float(spread[distinct].rsqrt().mean()) if bool(distinct.any()) else 0.0

    lower = bound(values[:, min(k, values.shape[1] - 1)])
    upper = bound(values[:, k - 1]) or lower
    return (lower * upper) ** 0.5 or 1.0


def solve(distances: Tensor, a: float = 1.0, b: float = 1.0, start: Tensor | None = None) -> tuple[SmoothGraph, Tensor]:
    """Find the minimiser for squared distances D ``[N, N]`` in float64 and a, b > 0, and the dual variables u ``[N]``.

    For u > 0 the best weights are ``W_ij = max(0, (u_i + u_j - 2 D_ij) / (2 b))``, and the dual problem is to minimise
    ``h(u) = -a sum_i log u_i + b/2 |W(u)|_F^2``: convex and smooth, with gradient ``W 1 - a/u`` and Hessian
    ``diag(a/u^2) + (diag(M 1) + M) / (2 b)``, where M marks the pairs with a weight. At its minimum ``W 1 = a/u``.
    The iteration ends when rounding leaves nothing to gain; the gap shows whether it converged.
    """
    if start is None:
        # Enough for every client to have a neighbour.
        start = 2 * sorted_others(distances)[0][:, 0] + (a * b / len(distances)) ** 0.5
    u, steps = start.clone(), 0
    weights = _weights(u, distances, b)
    value = _dual(u, weights, a, b)
    while steps < _MAX_STEPS:
        gradient = weights.sum(dim=1) - a / u
        linked = (weights > 0).double()
        hessian = linked / (2 * b)
        hessian.diagonal().add_(linked.sum(dim=1) / (2 * b) + a / u.square())
        # Nearly singular where two clients have only each other.
        hessian.diagonal().add_(_JITTER * hessian.diagonal().max())
        step = -torch.cholesky_solve(gradient[:, None], torch.linalg.cholesky(hessian))[:, 0]
        slope = float(gradient @ step)
        # Not beyond the boundary u > 0.
        size = min(1.0, 0.95 / max(float((-step / u).max()), 0.95))
        following, weights_there, value_there = _move(u, size * step, distances, a, b)
        while value_there > value + _ARMIJO * size * slope and size > _SHORTEST:
            size /= 2
            following, weights_there, value_there = _move(u, size * step, distances, a, b)
        steps += 1
        if not value_there < value:
            break
        u, weights, value = following, weights_there, value_there
    degree = weights.sum(dim=1)
    primal = float((weights * distances).sum() - a * degree.log().sum() + b / 2 * weights.square().sum())
    dual = len(u) * a * (1 - math.log(a)) - value
    residual = float((degree * u / a - 1).abs().max())
    return SmoothGraph(weights, 1.0, residual, (primal - dual) / (1 + abs(primal)), steps), u


def _move(u: Tensor, step: Tensor, distances: Tensor, a: float, b: float) -> tuple[Tensor, Tensor, float]:
    present = u + step
    weights = _weights(present, distances, b)
    return present, weights, _dual(present, weights, a, b)


def _weights(u: Tensor, distances: Tensor, b: float) -> Tensor:
    return ((u[:, None] + u - 2 * distances) / (2 * b)).clamp_(min=0).fill_diagonal_(0)


def _dual(u: Tensor, weights: Tensor, a: float, b: float) -> float:
    return float(b / 2 * weights.square().sum() - a * u.log().sum())
