"""The graphical lasso with its penalty by cross-validation."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from fedgraph.graphical.recovery.correlation import Moments, correlation, moments, positive_definite

_PENALTIES = tuple(10 ** (-exponent / 2) for exponent in range(7))
"""Candidate penalties, as shares of the largest correlation, at which the graph is empty."""


def lasso_precision(sums: Moments, penalty: float) -> Tensor:
    """Return argmin of ``tr(S P) - log det P + penalty sum_(i != j) |P_ij|``, float64 ``[units, units]``.

    Raises FloatingPointError where the solver fails.
    """
    from sklearn.covariance import graphical_lasso  # takes half a second
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # A duality gap of some thousandths changes no edge.
        warnings.simplefilter("ignore", ConvergenceWarning)
        # No warm start: GraphicalLassoCV continues from the solution for a larger penalty, and where that
        # fails, as on samples of the alarm network, it silently returns a penalty forty times as large.
        precision = graphical_lasso(positive_definite(correlation(sums)).numpy(), penalty)[1]
    return torch.from_numpy(precision)


def best_penalty(folds: Iterable[Tensor]) -> float:
    """Return the penalty that maximises the likelihood of left-out rows; ``folds`` are blocks ``[rows, units]``.

    Rows are standardised. The search goes from the largest penalty downwards until the likelihood falls: it has one
    maximum.
    """
    blocks = [moments(fold) for fold in folds]
    total = Moments(*(torch.stack(parts).sum(0) for parts in zip(*blocks, strict=True)))
    found = correlation(total).fill_diagonal_(0)
    largest = max(float(found.abs().max()), 1e-6)
    best, best_score = largest, -math.inf
    for share in _PENALTIES:
        try:
            score = sum(_score(total, block, share * largest) for block in blocks)
        except FloatingPointError:
            break
        if not score > best_score:
            break
        best, best_score = share * largest, score
    return best


def _score(total: Moments, left_out: Moments, penalty: float) -> float:
    from sklearn.covariance import log_likelihood

    precision = lasso_precision(total.without(left_out), penalty)
    return float(log_likelihood(np.asarray(correlation(left_out)), precision.numpy()))
