"""Probabilities of categories, and categories drawn by them, for all features of a row of units at once.

Tensors are ``[clients, units, rows]``; ``owner`` ``[units]`` numbers the features that units belong to, 0, 1, ... in
rising order. A feature with a single unit has two categories, of which the unit is the second.
"""

from __future__ import annotations

import torch
from torch import Tensor


def normalised(estimates: Tensor, owner: Tensor) -> Tensor:
    """Probabilities from estimates of units: cut to 0 and 1, and divided by the sum of their feature.

    Where all of a feature are 0, nothing is known, and its categories are as probable as each other.
    """
    shares = estimates.clamp(0, 1)
    width = owner.bincount()[owner][:, None]
    total = shares.new_zeros(len(shares), int(owner[-1]) + 1, shares.shape[2]).index_add(1, owner, shares)
    total = total.index_select(1, owner)
    several = torch.where(total > 0, shares / total.clamp(min=1e-12), 1 / width)
    return torch.where(width > 1, several, shares)


def one_of_each(probabilities: Tensor, owner: Tensor, uniform: Tensor) -> Tensor:
    """Units of categories drawn by the inverse of their distribution: 1 for that of each feature, 0 for others.

    uniform : in [0, 1), ``[clients, features, rows]``.
    """
    place = torch.arange(len(owner))
    first = torch.searchsorted(owner, owner)
    is_last = torch.searchsorted(owner, owner, right=True) - 1 == place
    is_single = (is_last & (first == place))[:, None]
    uniform = uniform.index_select(1, owner)
    # Features with several units add up to 1 and those with one are left out, so that none disturbs the next.
    shares = probabilities.masked_fill(is_single, 0.0)
    sums = shares.cumsum(1)
    reached = uniform < sums - (sums - shares).index_select(1, first)
    # Rounding must not leave a feature without any category.
    reached |= is_last[:, None]
    earlier = reached.roll(1, 1) & (first != place)[:, None]
    return torch.where(is_single, uniform < probabilities, reached & ~earlier).to(probabilities.dtype)
