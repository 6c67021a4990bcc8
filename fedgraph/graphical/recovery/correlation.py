"""Correlations and partial correlations of the units of a mixed table with missing values.

Units of categories are correlated like numbers: where a graph has no short cycles, the inverse of their correlations
has zeros where features are independent given the others (Loh, Wainwright: Structure estimation for discrete graphical
models, 2013), which is what graphical models of numbers estimate.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy.special import ndtri
from torch import Tensor

_SMALLEST_EIGENVALUE = 1e-3
"""Lower bound of eigenvalues, which are smaller or negative for units that determine each other, or pairs that are
observed in different rows."""

MIN_COUNT = 5
"""A unit that differs from its commonest value in fewer rows is left out."""


class Moments(NamedTuple):
    """Sums over rows of standardised units; the sums of several blocks of rows add up.

    products : of two units, float64 ``[units, units]``.
    counts   : rows that have both, float64 ``[units, units]``.
    """

    products: Tensor
    counts: Tensor

    def without(self, block: Moments) -> Moments:
        """Return the sums over all rows except those of a block."""
        return Moments(self.products - block.products, self.counts - block.counts)


def varying_units(units: Tensor, unit_feature: Tensor, min_count: int, independent: Tensor | None = None) -> Tensor:
    """Return which units to correlate, bool ``[units]``, of a table ``[rows, units]`` with NaN for missing values.

    Left out are units that differ from their most common value, or the median of numbers, in fewer than ``min_count``
    rows, and the most common category of each feature, which the others determine.

    independent : bool ``[units]``, those that others of their feature do not determine, as of an embedding.
    """
    median = units.nanmedian(0).values
    varying = ((units != median) & ~units.isnan()).sum(0) >= min_count
    shares = units.nanmean(0).nan_to_num()
    for feature in range(int(unit_feature.max()) + 1 if len(unit_feature) else 0):
        own = (unit_feature == feature).nonzero()[:, 0]
        if len(own) > 1 and (independent is None or not bool(independent[own[0]])):
            varying[own[shares[own].argmax()]] = False
    return varying


def normal_scores(units: Tensor) -> Tensor:
    """Transform each column to normal quantiles of its mean ranks, float32 ``[rows, units]``; NaN stays.

    Liu, Lafferty, Wasserman: The nonparanormal, 2009. Units of two values are only shifted and scaled.
    """
    from scipy.stats import rankdata  # takes a fifth of a second

    ranks = rankdata(units.numpy(), axis=0, nan_policy="omit")
    present = (~units.isnan()).sum(0).numpy()
    return torch.from_numpy(ndtri(ranks / (present + 1))).float()


def standardised(units: Tensor) -> Tensor:
    """Scale columns to mean 0 and variance 1, ignoring NaN, float32 ``[rows, units]``; no column may be constant."""
    values = units.double()
    centred = values - values.nanmean(0)
    return (centred / centred.square().nanmean(0).sqrt()).float()


def moments(units: Tensor) -> Moments:
    """Sum over the rows of standardised units, float32 ``[rows, units]`` with NaN."""
    present = ~units.isnan()
    filled = units.nan_to_num(0.0)
    counts = present.float()
    # float32 is exact enough: sampling noise is 1 / sqrt(rows).
    return Moments((filled.T @ filled).double(), (counts.T @ counts).double())


def correlation(sums: Moments) -> Tensor:
    """Return the correlation of every pair of units over the rows that have both, float64 ``[units, units]``.

    With missing values the matrix may have negative eigenvalues.
    """
    covariance = sums.products / sums.counts.clamp(min=1)
    deviation = covariance.diagonal().sqrt()
    deviation = torch.where(deviation > 0, deviation, 1.0)
    return (covariance / deviation / deviation[:, None]).clamp(-1, 1).fill_diagonal_(1.0)


def positive_definite(correlation: Tensor) -> Tensor:
    """Return the correlation matrix ``[..., units, units]`` with eigenvalues raised to at least about 1/1000."""
    values, vectors = torch.linalg.eigh(correlation)
    raised = (vectors * values.clamp(min=_SMALLEST_EIGENVALUE)[..., None, :]) @ vectors.mT
    deviation = raised.diagonal(dim1=-2, dim2=-1).sqrt()
    raised = raised / deviation[..., None, :] / deviation[..., None]
    return (raised + raised.mT) / 2


def partial_correlations(precision: Tensor) -> Tensor:
    """Return ``-P_ij / sqrt(P_ii P_jj)``: correlations given all other units, ``[units, units]``; 1 on the diagonal.

    0 for units whose precision a threshold has set to 0, ``P_ii = 0``.
    """
    diagonal = precision.diagonal()
    scale = torch.where(diagonal > 0, diagonal.rsqrt(), 0.0)
    return (-precision * scale * scale[:, None]).fill_diagonal_(1.0)


def collapsed(values: Tensor, unit_feature: Tensor, num_features: int) -> Tensor:
    """Return the largest of ``values`` ``[units, units]``, none below 0, between the units of two features.

    Symmetric ``[features, features]``; 0 where a feature has no units, and for each feature with itself.
    """
    pairs = unit_feature[:, None] * num_features + unit_feature
    largest = values.new_zeros(num_features * num_features)
    largest = largest.scatter_reduce(0, pairs.flatten(), values.flatten(), "amax")
    return largest.reshape(num_features, num_features).fill_diagonal_(0)
