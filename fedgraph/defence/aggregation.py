"""``[defence]``: bounds on the length of updates, Krum scores, and averages that a minority cannot move far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedgraph.support.errors import quoted
from fedgraph.support.settings import Settings

_BLOCK = 1 << 24
"""Numbers that a robust average handles at a time: it needs ``[targets, clients]`` of them for each parameter."""
_ROWS = 1 << 17
"""Numbers whose lengths are computed at a time."""
_LEAST = 1e-12
"""Lengths from this to its inverse are computed in single precision."""
_FEWEST_TIMES, _MOST_TIMES = 3, 50
"""Honest clients differ in their numbers of examples: a few by twice or three times the median (hospitals, parts by a
Dirichlet distribution), many by up to fifty times (users of phones)."""
_MOST_TIMES_CLIPPED = 1.25
_MIDDLE = 0.5 - 1e-6
"""A trimmed mean that drops nearly all is a weighted median: the middle value, or the mean of the two in the middle."""


def lengths(rows: Tensor, origin: Tensor | None = None) -> Tensor:
    """Return the Euclidean length of each row of ``[clients, ...]``, float64 ``[clients]``; 1e30 does not overflow.

    Given an ``origin`` of the same shape, the length of the way from there, without a copy of all differences.
    """
    rows = rows.flatten(1)
    # A few rows at a time: their difference then stays in the cache.
    size = max(1, _ROWS // max(1, rows.shape[1]))
    blocks: Iterable[Tensor] = rows.split(size)
    if origin is not None:
        starts = origin.flatten(1).split(size)
        blocks = (block - start for block, start in zip(rows.split(size), starts, strict=True))
    return torch.cat([_block_lengths(block) for block in blocks])


def _block_lengths(rows: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(rows, dim=1)
    # Squares of very large and very small numbers leave single precision.
    if bool(((length > _LEAST) & (length < 1 / _LEAST)).all()):
        return length.double()
    return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)


def bounded(rows: Tensor, bound: float | Tensor) -> Tensor:
    """Scale rows ``[clients, ...]`` that are longer than ``bound``, one number or ``[clients]``, down to it.

    Returns a Tensor of the same shape; ``rows`` itself where none is longer.
    """
    length = lengths(rows)
    limits = torch.as_tensor(bound, dtype=torch.float64).expand_as(length)
    longer = (length > limits).nonzero().flatten()
    if not len(longer):
        return rows
    scale = (limits[longer] / length[longer]).view(-1, *[1] * (rows.dim() - 1))
    return rows.index_copy(0, longer, (rows[longer].double() * scale).to(rows.dtype))


def bounded_counts(counts: Tensor, most: float | None = None) -> Tensor:
    """Bound numbers of examples, which clients only claim, by ``most`` times their median.

    Returns a Tensor of the same shape; ``counts`` itself where none is larger.

    Parameters
    ----------
    counts : Tensor
        ``[clients]``; the median is that of the numbers above 0.
    most : float, optional
        0 for no bound. By default a third of the number of clients with examples, but 3 to 50: where most clients have
        about as many examples, one then has no more than about a quarter of the weight, however many it claims.
    """
    known = counts[counts > 0].double()
    if most is None:
        most = min(max(len(known) / 3, _FEWEST_TIMES), _MOST_TIMES)
    if not most or not len(known):
        return counts
    bound = most * float(known.quantile(0.5))
    return (
        counts.clamp(max=bound if counts.is_floating_point() else int(bound)) if float(known.max()) > bound else counts
    )


def counts_notes(names: Sequence[str], claimed: Tensor, counted: Tensor) -> list[str]:
    """Return a note on the clients whose ``claimed`` numbers of examples ``[clients]`` were bounded to ``counted``."""
    places = (claimed > counted).nonzero().flatten().tolist()
    if not places:
        return []
    most = int(claimed.max())
    return [
        f"{quoted([names[place] for place in places])} counted as {int(counted.max()):,} examples each, and not as the "
        f"up to {most:,} that they claim to have: at most a few times as many as most clients ([defence] most-examples)"
    ]


def bounded_embeddings(embeddings: Tensor, present: Tensor, times: float) -> Tensor:
    """Bound the length of embeddings by the typical length of their owner's, and this by that of all owners.

    An owner's typical length is the median over its samples. Where it is longer than ``times`` the median of the
    owners, all its embeddings are scaled down by the same factor, which an alignment learned afterwards makes up for.
    Single embeddings that are longer than ``times`` the typical one of their owner are then scaled down to that.
    Returns ``[samples, owners, size]``.

    Parameters
    ----------
    embeddings : Tensor
        ``[samples, owners, size]``.
    present : Tensor
        Which owner has which sample, bool ``[samples, owners]``.
    times : float
        Above 0.
    """
    length = torch.linalg.vector_norm(embeddings, dim=2, dtype=torch.float64)
    typical = torch.where(present & (length > 0), length, torch.nan).nanmedian(dim=0).values
    if not bool((typical > 0).any()):
        return embeddings
    allowed = typical.nan_to_num(nan=0.0).clamp(max=times * float(typical.nanmedian()))
    shrink = torch.where(typical > 0, allowed / typical, 1.0)
    scale = shrink * (times * allowed / (length * shrink).clamp(min=1e-300)).clamp(max=1)
    scale = torch.where(length > 0, scale, 1.0)
    return embeddings if bool((scale == 1).all()) else (embeddings.double() * scale[..., None]).to(embeddings.dtype)


def krum_scores(updates: Tensor, attackers: int) -> Tensor:
    """Return for each update the sum of squared distances to its nearest fellows (Blanchard et al. 2017, section 4).

    Returns float64 ``[clients]``; infinite where no distance is defined.

    Parameters
    ----------
    updates : Tensor
        ``[clients, parameters]``.
    attackers : int
        Number of attackers f that is assumed; the fellows are the ``clients - f - 2`` nearest.
    """
    # Without matrix products, in which differences of long vectors cancel.
    apart = torch.cdist(updates[None], updates[None], compute_mode="donot_use_mm_for_euclid_dist")[0].double()
    squared = apart.square().nan_to_num(nan=torch.inf).fill_diagonal_(torch.inf)
    return squared.sort(dim=1).values[:, : max(1, len(updates) - attackers - 2)].sum(dim=1)


def robust_average(
    rows: Tensor, weights: Tensor, average: Literal["median", "trimmed-mean"], trim: float = 0.0
) -> Tensor:
    """Return weighted medians or trimmed means of each column, for several sets of weights.

    A trimmed mean drops ``trim`` of the weight at each end of the sorted values, in parts where a value lies on the
    border (Yin et al. 2018, definitions 1 and 2, with weights). Returns ``[targets, parameters]``.

    Parameters
    ----------
    rows : Tensor
        ``[clients, parameters]``.
    weights : Tensor
        ``[targets, clients]``, not negative, each row with a sum above 0.
    average : {"median", "trimmed-mean"}
        The average.
    trim : float
        Share of the weight, below one half.
    """
    dropped = _MIDDLE if average == "median" else trim
    shares = weights.double() / weights.double().sum(dim=1, keepdim=True)
    width = max(1, _BLOCK // max(1, shares.numel()))
    parts = []
    for block in rows.split(width, dim=1):
        values, order = block.sort(dim=0)
        # [targets, clients, columns]: the weight of each value, in the order of the values.
        upto = shares[:, order].cumsum(dim=1)
        begins = torch.cat([torch.zeros_like(upto[:, :1]), upto[:, :-1]], dim=1)
        kept = upto.clamp(dropped, 1 - dropped) - begins.clamp(dropped, 1 - dropped)
        # A value without weight may be so large that 0 times it is not 0.
        values = torch.where(kept > 0, values.double(), 0.0)
        parts.append(((kept * values).sum(dim=1) / kept.sum(dim=1)).to(rows.dtype))
    return torch.cat(parts, dim=1) if parts else rows.new_zeros(len(weights), 0)


class DefenceTable(Settings):
    """``[defence]``: what the server does about clients whose replies are well formed but far from those of the others.

    Attributes
    ----------
    warn    : warn of clients whose update is longer than this many times the median of all clients; 0 for no warning.
              Here and in clip, the median of an even number is the lower of the two in the middle.
    clip    : scale down updates that are longer than this many times the running median of the clients' updates, over
              the last ten rounds, to this length. For f3: the embeddings of owners whose typical embedding is
              longer than this many times the median of the owners, and single ones that are longer than this many times
              the typical one of their owner. 0 for no clipping.
    krum    : share of the clients, below one half, taken to be attackers: that many, rounded up, whose updates are
              farthest from those of their nearest fellows are left out of each aggregation (multi-Krum; Blanchard et
              al., NeurIPS 2017).
    average : replaces the mean over a client's neighbourhood in the graph (sfl), or over all clients (ditto, fedper,
              lg-fedavg), by the ``median`` or the ``trimmed-mean`` of each parameter (Yin et al., ICML 2018), with the
              same weights.
    trim    : share of the weight that a trimmed mean drops at each end.
    most_examples : a client counts at most this many times as many examples as the median of all clients that have any,
              in every mean and vote that is weighted by examples: these numbers are only claimed. By default a third of
              the number of clients, but 3 to 50; with clip 1.25, as an update weighs by its length and its examples. 0
              for no bound.
    """

    warn: float = Field(default=10.0, ge=0)
    clip: float = Field(default=0.0, ge=0)
    krum: float = Field(default=0.0, ge=0, lt=0.5)
    average: Literal["mean", "median", "trimmed-mean"] = "mean"
    trim: float = Field(default=0.2, gt=0, lt=0.5)
    most_examples: float | None = Field(default=None, ge=0)

    @property
    def counted_examples(self) -> float | None:
        """``most_examples`` with its default; see :func:`bounded_counts`."""
        return _MOST_TIMES_CLIPPED if self.clip and self.most_examples is None else self.most_examples
