"""Baselines: models of one target from all other features.

Gradient-boosted trees, and linear or logistic regression, with scikit-learn's defaults except more iterations; and two
constant ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from fedgraph.data.columns import Floats
from fedgraph.data.encoding import check_shape
from fedgraph.data.schema import Feature, Schema
from fedgraph.support.errors import DataError
from fedgraph.support.randomness import derive_seed

Yardstick = Literal["trees", "weighted-trees", "linear", "mean", "median"]
"""``trees``: histogram gradient boosting; ``weighted-trees``: the same with balanced class weights, for categories
alone; ``linear``: a ridge or logistic regression. Trivial, the same for every row: ``mean``, the mean of numbers, and
of categories how frequent each is; ``median``, the median of numbers, and the most frequent category.
"""

_MOST_CATEGORIES = 255
"""Most categories that trees support; with more, indices count as numbers."""


@dataclass(frozen=True)
class TargetModel:
    """A fitted model of one target.

    inputs    : columns of values that it uses.
    estimator : of scikit-learn; None where the target was ``constant``.
    """

    schema: Schema
    target: Feature
    inputs: list[int]
    estimator: Any
    constant: float

    def predict(self, values: Floats) -> Floats:
        """Predict rows of values ``[rows, features]``: numbers ``[rows]``, or probabilities ``[rows, categories]``."""
        check_shape(values, self.schema)
        inputs = values[:, self.inputs]
        if self.target.is_number:
            if self.estimator is None:
                return np.full(len(values), self.constant)
            return np.asarray(self.estimator.predict(inputs), dtype=np.float64)
        chances = np.zeros((len(values), len(self.target.categories)))
        if self.estimator is None:
            chances[:, int(self.constant)] = 1
        else:
            chances[:, self.estimator.classes_.astype(np.int64)] = self.estimator.predict_proba(inputs)
        return chances


def fit_target(yardstick: Yardstick, schema: Schema, values: Floats, target: str, seed: int = 0) -> TargetModel:
    """Fit a model of ``target`` to the rows of ``values`` ``[rows, features]`` where it is known.

    Inputs are all other features but those that are missing in all these rows.

    Trees handle missing inputs themselves. The linear model takes numbers in standard deviations, with the mean for
    missing ones and an indicator of missingness, and categories as indicators, missing being one of them.

    Raises DataError for an unknown yardstick or target, for an embedding as target, for other columns, and where the
    target is known in no row, or no other feature in any of these.
    """
    check_shape(values, schema)
    if yardstick not in get_args(Yardstick):
        raise DataError(f"unknown yardstick {yardstick!r}; known are {', '.join(get_args(Yardstick))}")
    feature = schema[target]
    if feature.kind == "embedding":
        raise DataError(f"'{target}' is an embedding, which no yardstick predicts")
    place = schema.value_slices[target].start
    rows = values[~np.isnan(values[:, place])]
    inputs = [other for other in np.flatnonzero(~np.isnan(rows).all(0)).tolist() if other != place]
    if not len(rows) or not inputs:
        raise DataError(
            f"a model of '{target}' needs rows in which it is known, and other features known in them; there are "
            f"{len(rows)} and {len(inputs)}"
        )
    wanted = rows[:, place]
    if (wanted == wanted[0]).all():
        return TargetModel(schema, feature, inputs, None, float(wanted[0]))
    of_column = [part for part in schema.features for _ in range(part.size)]
    random, parts = derive_seed(seed, "yardstick", target) % 2**32, [of_column[each] for each in inputs]
    if yardstick == "linear":
        estimator = _linear(parts, feature, random)
    elif yardstick in ("mean", "median"):
        estimator = _trivial(feature, yardstick)
    else:
        estimator = _trees(parts, feature, random, "balanced" if yardstick == "weighted-trees" else None)
    return TargetModel(schema, feature, inputs, estimator.fit(rows[:, inputs], wanted), float("nan"))


def fit_targets(
    yardstick: Yardstick, schema: Schema, training: Floats, targets: Sequence[str], seed: int = 0
) -> dict[str, TargetModel]:
    """Fit a model of each target to ``training``, as :func:`fit_target` does.

    Numbers have no classes to weight, and no model of ``weighted-trees``. Returns a dict of str to TargetModel by
    target. Raises DataError as :func:`fit_target`.
    """
    if yardstick == "weighted-trees":
        targets = [name for name in targets if not schema[name].is_number]
    return {name: fit_target(yardstick, schema, training, name, seed) for name in targets}


def _trees(inputs: list[Feature], target: Feature, seed: int, weights: Literal["balanced"] | None) -> Any:
    from sklearn import ensemble  # takes a second to import

    few = [not feature.is_scaled and len(feature.categories) <= _MOST_CATEGORIES for feature in inputs]
    if target.is_number:
        return ensemble.HistGradientBoostingRegressor(categorical_features=few, random_state=seed)
    return ensemble.HistGradientBoostingClassifier(categorical_features=few, random_state=seed, class_weight=weights)


def _trivial(target: Feature, how: Literal["mean", "median"]) -> Any:
    from sklearn import dummy

    if target.is_number:
        return dummy.DummyRegressor(strategy=how)
    return dummy.DummyClassifier(strategy="prior" if how == "mean" else "most_frequent")


def _linear(inputs: list[Feature], target: Feature, seed: int) -> Any:
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = [place for place, feature in enumerate(inputs) if feature.is_scaled]
    others = [place for place, feature in enumerate(inputs) if not feature.is_scaled]
    filled = make_pipeline(StandardScaler(), SimpleImputer(add_indicator=True))
    columns = ColumnTransformer(
        [("numbers", filled, numbers), ("others", OneHotEncoder(handle_unknown="ignore"), others)]
    )
    model = Ridge() if target.is_number else LogisticRegression(max_iter=1000, random_state=seed)
    return make_pipeline(columns, model)
