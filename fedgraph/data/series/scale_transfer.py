"""Long-run mean and deviation of clients with few readings, inferred from other clients.

Not from a paper: for each cold client, weighted least-squares lines from recent to long-run means, and between
logarithms of standard deviations, are fitted to the clients that know both. This corrects for an unusual day.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedgraph.graph import ClientGraph
from fedgraph.support.errors import FedgraphError

EVERYBODY = 0.3
"""Weight of all references together, relative to 1 for the client and its neighbours."""

_SMALLEST_DEVIATION = 0.01
"""Lower bound of deviations, as a share of the references' median deviation, so that logarithms exist."""


def cold_rows(moments: Tensor) -> Tensor:
    """Mask clients with unknown long-run mean and deviation, bool ``[clients]``."""
    return moments[:, 2].isnan()


def reference_rows(moments: Tensor) -> Tensor:
    """Mask clients with all moments, from which a scale can be inferred, bool ``[clients]``."""
    return ~moments.isnan().any(dim=1)


def neighbourhoods(graph: ClientGraph, moments: Tensor, everybody: float = EVERYBODY) -> Tensor:
    """``k_ij = P_ij + everybody / N``, the random walk with self loops, normalised over references j.

    moments : as for ``inferred_scales``. Returns float64 ``[cold, references]``; rows sum to one.
    """
    walk = graph.normalised("random-walk")
    cold = cold_rows(moments)
    row_of = torch.where(cold, cold.cumsum(0) - 1, -1)
    listener, received = row_of[walk.edge_index[0]], walk.edge_index[1]
    kept = listener >= 0
    weights = torch.zeros(int(cold.sum()), len(moments), dtype=torch.float64)
    weights[listener[kept], received[kept]] = walk.weights[kept].double().clamp(min=0)
    weights = weights[:, reference_rows(moments)] + everybody / len(moments)
    return weights / weights.sum(dim=1, keepdim=True)


def inferred_scales(moments: Tensor, weights: Tensor | None = None) -> Tensor:
    """Infer the long-run mean and standard deviation of every cold client, finite float64 ``[cold, 2]``.

    For client i with the recent moment x_i and weights k_j of the references, whose moments are x_j and y_j::

        y_i = ybar + b (x_i - xbar),  b = sum_j k_j (x_j - xbar) (y_j - ybar) / sum_j k_j (x_j - xbar)^2

    with weighted means xbar and ybar; b = 0 where all x_j are equal, and y_i = ybar where x_i is unknown. Lines are not
    extrapolated: y_i is clipped to the extremes of all y_j and x_i. Raises FedgraphError without references.

    Parameters
    ----------
    moments : Tensor
        Float64 ``[clients, 4 or more]``: recent mean and deviation, NaN for too few readings, then lasting ones, NaN
        for cold clients.
    weights : Tensor, optional
        ``[cold, references]``, e.g. ``neighbourhoods``; rows sum to one. By default all references count alike.
    """
    cold, references = cold_rows(moments), reference_rows(moments)
    if not bool(references.any()):
        raise FedgraphError("no client knows both its recent and its long-run scale, so scales cannot be inferred")
    known, unknown = moments[references], moments[cold, :2]
    if weights is None:
        weights = torch.full((len(unknown), len(known)), 1 / len(known), dtype=torch.float64)
    smallest = _SMALLEST_DEVIATION * known[:, 3].median()
    smallest = torch.where(smallest > 0, smallest, torch.ones_like(smallest))
    mean = _on_the_line(weights, known[:, 0], known[:, 2], unknown[:, 0])
    deviation, lasting, own = (values.clamp(min=smallest).log() for values in (known[:, 1], known[:, 3], unknown[:, 1]))
    return torch.stack([mean, _on_the_line(weights, deviation, lasting, own).exp()], dim=1)


def _on_the_line(weights: Tensor, x: Tensor, y: Tensor, own: Tensor) -> Tensor:
    """The weighted least-squares line through ``x`` and ``y`` ``[references]`` at ``own``; ``[cold]``."""
    x_mean, y_mean = weights @ x, weights @ y
    x_off, y_off = x - x_mean[:, None], y - y_mean[:, None]
    spread = (weights * x_off.square()).sum(dim=1)
    # Spread from rounding of equal numbers counts as zero.
    alike = spread <= 1e-12 * x.abs().max().square()
    slope = torch.where(alike, 0.0, (weights * x_off * y_off).sum(dim=1) / torch.where(alike, 1.0, spread))
    own = torch.where(own.isnan(), x_mean, own)
    return (y_mean + slope * (own - x_mean)).clamp(own.minimum(y.min()), own.maximum(y.max()))
