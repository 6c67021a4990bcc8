"""From the precision matrix of units to a graph of features, through partial correlations."""

from __future__ import annotations

import torch
from torch import Tensor


def partial_correlations(precision: Tensor) -> Tensor:
    """``-P_ij / sqrt(P_ii P_jj)``: correlations given all other units, ``[units, units]``; 1 on the diagonal.

    0 for units of which a threshold has left no precision, ``P_ii = 0``.
    """
    diagonal = precision.diagonal()
    scale = torch.where(diagonal > 0, diagonal.rsqrt(), 0.0)
    return (-precision * scale * scale[:, None]).fill_diagonal_(1.0)


def collapsed(values: Tensor, unit_feature: Tensor, num_features: int) -> Tensor:
    """The largest of ``values`` ``[units, units]``, none below 0, between the units of two features.

    Symmetric ``[features, features]``; 0 where a feature has no units, and for each feature with itself.
    """
    pairs = unit_feature[:, None] * num_features + unit_feature
    largest = values.new_zeros(num_features * num_features)
    largest = largest.scatter_reduce(0, pairs.flatten(), values.flatten(), "amax")
    return largest.reshape(num_features, num_features).fill_diagonal_(0)
