"""Distance of samples of a mixed table from held-out rows: marginal, pairwise, and joint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedgraph.data.columns import Floats
from fedgraph.data.schema import Schema
from fedgraph.support.errors import DataError

FEWEST_ROWS = 10
"""Fewest rows of either kind that can be compared."""

_MOST_ROWS = 5_000
"""Most rows of each kind for the classifier."""

_FOLDS = 3
_VARIES = 1e-6
"""Deviation from which a unit is correlated with others."""


@dataclass(frozen=True)
class SampleQuality:
    """Distance of samples from held-out rows.

    Attributes
    ----------
    marginal : mapping of str to float
        Distance of each feature's two distributions, 0 to 1: the largest difference of their cumulative distributions
        (Kolmogorov-Smirnov) for numbers, the mean of that for an embedding, half the sum of differences of shares
        (total variation) for categories.
    correlation : tuple of float
        Largest and mean difference of the correlations of pairs of units of different features.
    auc : float
        AUC of a classifier between samples and held-out rows (two-sample test of Lopez-Paz and Oquab, ICLR 2017),
        cross-validated: 0.5 where it cannot distinguish them, 1 where it always can.
    """

    marginal: Mapping[str, float]
    correlation: tuple[float, float]
    auc: float

    def as_text(self) -> str:
        """Return a summary of three lines."""
        worst = max(self.marginal, key=lambda name: self.marginal[name])
        return (
            f"marginal distance: mean {np.mean(list(self.marginal.values())):.3f}, largest {self.marginal[worst]:.3f} "
            f"({worst})\n"
            f"difference of correlations: mean {self.correlation[1]:.3f}, largest {self.correlation[0]:.3f}\n"
            f"AUC of telling samples from held-out rows: {self.auc:.3f}"
        )


def sample_quality(schema: Schema, samples: Tensor, held_out: Tensor, seed: int = 0) -> SampleQuality:
    """Compare samples with held-out rows, both as units ``[rows, units]``; NaN is missing.

    Integers must have been decoded and encoded again. Categories are indicators; numbers may be on any scale, as long
    as it is the same. For the classifier, samples are missing as often as held-out rows are: each takes the missing
    values of one of those. Returns marginal distances, differences of correlations, and the AUC of the classifier.
    Raises DataError when there are fewer than 10 rows of either, or they do not have the schema's units.
    """
    units = len(schema.unit_feature)
    if (
        min(len(samples), len(held_out)) < FEWEST_ROWS
        or samples.shape[1:] != (units,)
        or held_out.shape[1:] != (units,)
    ):
        raise DataError(
            f"samples {list(samples.shape)} and held-out rows {list(held_out.shape)} cannot be compared: each needs at "
            f"least {FEWEST_ROWS} rows of {units} units"
        )
    ours, theirs = (rows.double().numpy() for rows in (samples, held_out))
    distances = {
        feature.name: (_mean_cumulative if feature.is_scaled else _variation)(
            ours[:, schema.slices[feature.name]], theirs[:, schema.slices[feature.name]]
        )
        for feature in schema.features
    }
    return SampleQuality(distances, _correlations(schema, samples, held_out), _auc(schema, ours, theirs, seed))


def _mean_cumulative(ours: Floats, theirs: Floats) -> float:
    return float(np.mean([_cumulative(*columns) for columns in zip(ours.T, theirs.T, strict=True)]))


def _cumulative(ours: Floats, theirs: Floats) -> float:
    first, second = (np.sort(values[~np.isnan(values)]) for values in (ours, theirs))
    if not len(first) or not len(second):
        return float(len(first) != len(second))
    points = np.concatenate([first, second])
    below = [np.searchsorted(values, points, "right") / len(values) for values in (first, second)]
    return float(np.abs(below[0] - below[1]).max())


def _variation(ours: Floats, theirs: Floats) -> float:
    first, second = (values[~np.isnan(values).any(1)] for values in (ours, theirs))
    if not len(first) or not len(second):
        return float(len(first) != len(second))
    apart = np.abs(first.mean(0) - second.mean(0)).sum()
    return float(apart if ours.shape[1] == 1 else apart / 2)


def _correlations(schema: Schema, samples: Tensor, held_out: Tensor) -> tuple[float, float]:
    apart = (_correlation(samples) - _correlation(held_out)).abs()
    of_two_features = (schema.unit_feature[:, None] < schema.unit_feature) & apart.isfinite()
    chosen = apart[of_two_features]
    return (float(chosen.max()), float(chosen.mean())) if len(chosen) else (0.0, 0.0)


def _correlation(rows: Tensor) -> Tensor:
    """Return correlations of all units, over the rows in which both are known; NaN for those that do not vary."""
    rows = rows.double()
    scaled = rows - rows.nanmean(0)
    present = (~rows.isnan()).double()
    scaled = scaled.nan_to_num(0.0)
    squares = scaled.square().T @ present
    scale = (squares * squares.T).sqrt()
    varies = squares.T / (present.T @ present).clamp(min=1) > _VARIES**2
    return torch.where(varies & varies.T, scaled.T @ scaled / scale.clamp(min=1e-300), torch.nan)


def _auc(schema: Schema, ours: Floats, theirs: Floats, seed: int) -> float:
    from sklearn.ensemble import HistGradientBoostingClassifier  # takes half a second
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    random = np.random.default_rng(seed)
    count = min(len(ours), len(theirs), _MOST_ROWS)
    ours, theirs = (rows[random.choice(len(rows), count, replace=False)] for rows in (ours, theirs))
    ours = np.where(np.isnan(theirs), np.nan, ours)
    rows, labels = np.concatenate([ours, theirs]), np.repeat([1, 0], count)
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    classifier = HistGradientBoostingClassifier(max_iter=50, random_state=seed)
    scores = cross_val_predict(classifier, rows, labels, cv=folds, method="predict_proba")[:, 1]
    return float(roc_auc_score(labels, scores))
