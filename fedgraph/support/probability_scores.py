"""Metrics of probabilities: ranking and calibration.

The expected calibration error is that of Naeini, Cooper, Hauskrecht: Obtaining Well Calibrated Probabilities Using
Bayesian Binning (AAAI 2015), with the 15 bins of Guo et al.: On Calibration of Modern Neural Networks (ICML 2017).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_BINS = 15


def calibration_error(chances: NDArray[np.float64], happened: NDArray[np.bool_]) -> float:
    """Return the expected calibration error of probabilities, over 15 bins of equal width.

    It is the mean over examples of the difference between mean probability and frequency in the example's bin, from 0
    to 1; NaN without any example. The base rate for every example has an error near 0, so a ranking metric is needed
    too.

    Parameters
    ----------
    chances : probabilities ``[examples]``, 0 to 1.
    happened : outcomes, bool ``[examples]``.
    """
    if not len(chances):
        return math.nan
    bins = np.minimum((chances * _BINS).astype(np.int64), _BINS - 1)
    apart = np.bincount(bins, chances - happened, minlength=_BINS)
    return float(np.abs(apart).sum() / len(chances))


def ranking_scores(chances: NDArray[np.float64], positive: NDArray[np.bool_]) -> dict[str, float]:
    """Compute metrics of the probabilities of a positive class.

    Returns ``auc``, the area under the ROC curve, and ``aupr``, the average precision, both NaN where only one class
    occurs; ``ece``, the expected calibration error. All are NaN without examples, and for chances that are not finite.

    Parameters
    ----------
    chances : probabilities ``[examples]``.
    positive : whether the example is of the class, bool ``[examples]``.
    """
    from sklearn import metrics  # takes a second to import

    if not np.isfinite(chances).all():
        return dict.fromkeys(("auc", "aupr", "ece"), math.nan)
    both = positive.any() and not positive.all()
    return {
        "auc": float(metrics.roc_auc_score(positive, chances)) if both else math.nan,
        "aupr": float(metrics.average_precision_score(positive, chances)) if both else math.nan,
        "ece": calibration_error(chances, positive),
    }
