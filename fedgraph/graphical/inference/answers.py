"""Answers of a graphical model in the units of its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedgraph.data.columns import Floats
from fedgraph.data.encoding import Encoding
from fedgraph.data.schema import Feature
from fedgraph.graphical.inference.conditional import Conditional


@dataclass(frozen=True)
class Numbers:
    """Conditional distribution of a number in each row, in its own units; for ordinal features, in category positions.

    Attributes
    ----------
    mean, deviation : array
        Mean and standard deviation, ``[rows]``.
    quantiles : mapping of float to array
        Quantiles ``[rows]`` by level.
    effective : array
        Effective sample size, ``[rows]``: the number of independent rows of the model's joint distribution that would
        give an answer as good; infinite where the answer is exact.
    """

    mean: Floats
    deviation: Floats
    quantiles: Mapping[float, Floats]
    effective: Floats


@dataclass(frozen=True)
class Categories:
    """Conditional distribution of a binary or categorical feature in each row.

    Attributes
    ----------
    categories : tuple of str
        In the order of the schema.
    probabilities : array
        ``[rows, categories]``.
    effective : array
        Effective sample size, ``[rows]``, as in :class:`Numbers`.
    """

    categories: tuple[str, ...]
    probabilities: Floats
    effective: Floats


def answers(
    found: Conditional, encoding: Encoding, targets: Sequence[str], quantiles: Sequence[float]
) -> dict[str, Numbers | Categories]:
    """Convert the distributions of a single model to the units of its table.

    Parameters
    ----------
    found : Conditional
        Of one client.
    encoding : Encoding
        Between the table and the units of the network.
    targets : sequence of str
        Features of ``found``; none of them is an embedding.
    quantiles : sequence of float
        Levels of the quantiles of numbers, between 0 and 1.

    Returns
    -------
    dict of str to Numbers or Categories
        By target.

    Raises
    ------
    DataError
        When a level is not between 0 and 1.
    """
    effective, mean, levels = _floats(found.effective[0]), found.mean[0], found.quantiles(quantiles)[0]
    position = {unit: place for place, unit in enumerate(found.units.tolist())}
    result: dict[str, Numbers | Categories] = {}
    for name in targets:
        feature, column = encoding.schema[name], position[encoding.schema.slices[name].start]
        if not feature.is_number:
            shares = of_all_categories(mean[:, column : column + feature.width], feature)
            result[name] = Categories(feature.categories, shares, effective)
            continue
        scale = encoding.scales[name]
        centre, deviation = scale.moments(_floats(found.expected[0, ..., column]), float(found.noise[0, column]))
        at = {level: scale.values(_floats(levels[:, place, column])) for place, level in enumerate(quantiles)}
        result[name] = Numbers(centre, deviation, at, effective)
    return result


def of_all_categories(shares: Tensor, feature: Feature) -> Floats:
    """Return probabilities of all categories ``[rows, categories]`` from those of a feature's units.

    A binary feature has one unit, with the probability of its second category; the only category of a constant has
    probability 1.
    """
    found = _floats(shares)
    if len(feature.categories) == 1:
        return np.ones_like(found)
    return np.concatenate([1 - found, found], 1) if feature.kind == "binary" else found


def _floats(values: Tensor) -> Floats:
    return values.double().numpy()
