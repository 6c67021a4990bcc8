"""Scores of predictions of single features, in the units of the table.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, section 3.3: MAE and RMSE of numbers, AUC and
AUPR of binary features, precision and recall of categorical ones; beside these the expected calibration error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from fedgraph.data.columns import Floats
from fedgraph.data.encoding import Encoding, check_shape
from fedgraph.data.schema import Feature, Schema
from fedgraph.graphical.network.network import Network
from fedgraph.support.errors import DataError
from fedgraph.support.probability_scores import calibration_error, ranking_scores

Predictions = Mapping[str, Floats]
"""By target: numbers ``[rows]`` in the units of the table (of ordered words, positions), an embedding ``[rows,
numbers]``, or probabilities ``[rows, categories]`` of binary and categorical features."""


def as_predictions(network: Network, encoding: Encoding, units: Tensor, targets: Sequence[str]) -> Predictions:
    """Convert a network's predictions ``[rows, units]`` for one client to units of the table, without rounding."""
    found = {}
    for name in targets:
        feature = encoding.schema[name]
        if feature.is_scaled:
            part = units[:, encoding.schema.slices[name]].detach().cpu().double().numpy()
            found[name] = encoding.scales[name].values(part if feature.kind == "embedding" else part[:, 0])
        else:
            found[name] = network.probabilities(units, name).detach().cpu().double().numpy()
    return found


def score_targets(schema: Schema, values: Floats, predictions: Predictions) -> dict[str, dict[str, float]]:
    """Score predictions of each target for the same rows.

    Returns scores by target and name; see :func:`score`. Raises DataError when predictions have another shape than the
    true values require, or are not finite.

    Parameters
    ----------
    schema : Schema
        Schema of the rows.
    values : array
        True values, ``[rows, features]``, NaN for unknown.
    predictions : mapping of str to array
        By target: numbers ``[rows]``, embeddings ``[rows, numbers]``, or probabilities ``[rows, categories]``.
    """
    check_shape(values, schema)
    return {
        name: score(schema[name], feature_values(schema, values, name), predicted)
        for name, predicted in predictions.items()
    }


def feature_values(schema: Schema, values: Floats, name: str) -> Floats:
    """Return a feature's part of values ``[rows, features]``: ``[rows]``, or ``[rows, numbers]`` of an embedding."""
    part = values[:, schema.value_slices[name]]
    return part if schema[name].kind == "embedding" else part[:, 0]


def score(feature: Feature, truth: Floats, predicted: Floats) -> dict[str, float]:
    """Score predictions of one target in the rows where it is known; ``rows`` is the number of these.

    Numbers, ordinal ones among them: ``mae``, ``rmse``; of an embedding the means over its numbers. Binary and
    categorical, by the most probable category: ``micro-precision``, ``micro-recall``, and ``macro-precision``,
    ``macro-recall``, means over all categories of the feature; as in the paper, the recall of a category is 0 where it
    never was the truth, and the precision 0 where it never was predicted. ``ece`` is the expected calibration error
    of the probability of the most probable category, or of the positive one of two. Without any row all are NaN.

    Binary also: ``auc`` (of the ROC curve) and ``aupr`` (average precision), NaN where only one category occurs. The
    positive category is the one that fewer of these rows have, in the paper the death of a child, and the second if
    both are as frequent; the AUC is the same for either.

    Raises DataError when predictions have another shape than the truth requires, or are not finite.
    """
    wanted: tuple[int, ...] = truth.shape if feature.is_scaled else (*truth.shape, len(feature.categories))
    if predicted.shape != wanted:
        raise DataError(
            f"predictions of '{feature.name}' have the shape {list(predicted.shape)}; it should be {list(wanted)}"
        )
    known = ~np.isnan(truth) if truth.ndim == 1 else ~np.isnan(truth).any(1)
    truth, predicted = truth[known], predicted[known]
    if not np.isfinite(predicted).all():
        raise DataError(f"predictions of '{feature.name}' are not all finite numbers")
    scorer = _number if feature.is_scaled else _binary if feature.kind == "binary" else _categorical
    return {"rows": float(len(truth)), **scorer(truth, predicted)}


def _number(truth: Floats, predicted: Floats) -> dict[str, float]:
    from sklearn import metrics  # takes a second to import

    if not len(truth):
        return dict.fromkeys(("mae", "rmse"), math.nan)
    return {
        "mae": float(metrics.mean_absolute_error(truth, predicted)),
        "rmse": float(metrics.root_mean_squared_error(truth, predicted)),
    }


def _binary(truth: Floats, chances: Floats) -> dict[str, float]:
    rarer = int(2 * truth.sum() <= len(truth))
    return ranking_scores(chances[:, rarer], truth == rarer) | _averaged(truth, chances)


def _categorical(truth: Floats, chances: Floats) -> dict[str, float]:
    confident = chances.max(1, initial=0)
    return _averaged(truth, chances) | {"ece": calibration_error(confident, chances.argmax(1) == truth)}


def _averaged(truth: Floats, chances: Floats) -> dict[str, float]:
    """Return precision and recall over all categories, by the most probable one."""
    names = [f"{how}-{name}" for how in ("micro", "macro") for name in ("precision", "recall")]
    if not len(truth):
        return dict.fromkeys(names, math.nan)
    categories = chances.shape[1]
    pairs = truth.astype(np.int64) * categories + chances.argmax(1)
    table = np.bincount(pairs, minlength=categories**2).reshape(categories, categories)
    right = table.diagonal()
    # With one guess for each row, both are the share of right guesses.
    micro = float(right.sum() / len(truth))
    macro = (float((right / of.clip(1)).mean()) for of in (table.sum(0), table.sum(1)))
    return dict(zip(names, (micro, micro, *macro), strict=True))
