"""A learned client graph brought to a scale, and beside a given one: ``A = (1 - beta) A_given + beta A_learned``."""

from __future__ import annotations

import torch
from torch import Tensor


def with_row_sums(weights: Tensor, total: float) -> Tensor:
    """``[N, N]`` with every row scaled to add up to ``total``; rows of zeros stay."""
    sums = weights.sum(dim=1, keepdim=True)
    return weights * torch.where(sums > 0, total / sums, torch.zeros_like(sums))


def beside_given(given: Tensor, learned: Tensor, beta: float) -> Tensor:
    """The given graph with a share ``beta`` of the learned one; both ``[N, N]``, their weights of whatever unit.

    Rows of the learned graph are scaled to the mean row sum of the given one, its self loops left out, so that with
    any ``beta`` a client has neighbours of about the same weight altogether. Self loops of the given graph stay as
    they are: how much a client keeps of itself is not learned.
    """
    loops = torch.diag(given.diagonal())
    links = given - loops
    scale = float(links.sum(dim=1).mean())
    return loops + (1 - beta) * links + beta * with_row_sums(learned, scale)
