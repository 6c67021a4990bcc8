"""The ranges by which numbers become units from 0 to 1, and how clients come by common ones without sending rows.

- ``given``: the experiment says them. Nothing of the data leaves a client, and units mean the same everywhere.
- ``own``: every client takes quantiles of its own values. Nothing leaves a client, but a unit of 0.5 means one thing
  here and another there: a global model then speaks of positions in a client's own range, and its samples can be
  turned back into original units only with the ranges of one client.
- ``shared-ranges``: clients that consent tell their quantiles (``fedgraph.graphical.statistics``), with noise if
  asked for, and the server merges them.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models. The paper does not say how its numbers are
scaled; its programs scale them to [0, 1].
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from fedgraph.data.columns.columns import Floats
from fedgraph.data.encoding.unit_scale import UnitScale
from fedgraph.data.encoding.values import check_shape
from fedgraph.data.schema.json import check_length
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.support.errors import DataError, ReplyError
from fedgraph.support.settings import Settings

Range = tuple[float, float] | tuple[float, float, float]
"""Low and high, of which the units are 0 and 1; or low, median and high, of which they are 0, 1/2 and 1."""

Skewed = Literal["logarithmic", "straight"]
"""See ``ScalingSettings.skewed``."""

_SKEWED = 0.2
"""Of a range: a median that is so near to an end. Exponential numbers have it at 0.15, normal ones at 0.5; in between,
as for the weights of babies, a straight scale predicts no worse."""

_LARGEST = 1e30
_NARROWEST = 1e-30


def _rising(limits: Range) -> Range:
    low, high = limits[0], limits[-1]
    if not high - low >= _NARROWEST or not all(low <= each <= high for each in limits) or max(-low, high) > _LARGEST:
        raise ValueError("a range is [low, high] or [low, median, high] with low below high, neither beyond 1e30")
    return limits


Ranges = dict[str, Annotated[Range, AfterValidator(_rising)]]
"""By feature, checked by pydantic."""

Bounds = dict[str, Annotated[tuple[float, float], AfterValidator(_rising)]]
"""The same without medians."""

_RANGES = TypeAdapter(Ranges)


class ScalingSettings(Settings):
    """How numbers become units.

    source   : of the ranges: ``given``, ``own`` or ``shared-ranges``.
    ranges   : ``[low, high]`` by feature; they hold whatever the source. ``[low, median, high]`` is for a skewed one.
    quantile : what share of a client's values lies below its low, and as many above its high. Outliers then do not
               squeeze all others together.
    skewed   : real numbers whose median is in the lowest or highest fifth of their range get a ``logarithmic`` scale
               on which it is in the middle (:mod:`fedgraph.data.encoding.unit_scale`); for that the median is measured,
               and told, as part of the range. Otherwise, as all other numbers do, they keep a ``straight`` scale.
               Predictions of numbers on a logarithmic scale are nearer to medians than to means.
    merge    : of ranges that clients told: from the lowest low to the highest high (``widest``), or the ``median`` low
               and high, on which one client has little influence. Of medians it is always the median.
    outside  : a value outside its range is kept, so that its unit is below 0 or above 1, or clipped to it (``keep``,
               ``clip``). Clipped values cannot be restored, and errors of predictions hide at the ends.
    """

    source: Literal["given", "own", "shared-ranges"] = "own"
    ranges: Ranges = Field(default_factory=dict)
    quantile: float = Field(default=0.01, ge=0, lt=0.5)
    skewed: Skewed = "logarithmic"
    merge: Literal["widest", "median"] = "widest"
    outside: Literal["keep", "clip"] = "keep"


@dataclass(frozen=True)
class Scaling:
    """Ranges by feature. Binary features and ordered words need none."""

    ranges: Mapping[str, Range] = field(default_factory=dict)

    @classmethod
    def measured(cls, values: Floats, schema: Schema, quantile: float, skewed: Skewed = "logarithmic") -> Scaling:
        """From the quantiles of values ``[rows, features]``: (0, 1) for a feature without any."""
        check_shape(values, schema)
        return cls(
            {
                feature.name: quantile_range(
                    values[:, schema.value_slices[feature.name]].ravel(), quantile, may_be_skewed(feature, skewed)
                )
                for feature in schema.features
                if needs_range(feature)
            }
        )

    @classmethod
    def merged(cls, told: Sequence[Mapping[str, Range]], how: Literal["widest", "median"] = "widest") -> Scaling:
        """Of the ranges that clients told, each of any features; see ``ScalingSettings.merge``."""
        ranges: dict[str, Range] = {}
        for name in sorted({name for one in told for name in one}):
            of_clients = [one[name] for one in told if name in one]
            lows, highs = np.array([(limits[0], limits[-1]) for limits in of_clients]).T
            ends = (lows.min(), highs.max()) if how == "widest" else (np.median(lows), np.median(highs))
            low, high = float(ends[0]), float(ends[1])
            medians = [limits[1] for limits in of_clients if len(limits) == 3]
            ranges[name] = (low, float(np.clip(np.median(medians), low, high)), high) if medians else (low, high)
        return cls(ranges)

    def completed(self, other: Scaling) -> Scaling:
        """These ranges, and those of ``other`` for further features, such as a client's private ones."""
        return Scaling({**other.ranges, **self.ranges})

    def scales(self, schema: Schema) -> tuple[UnitScale, ...]:
        """Of every feature; those of categories are their positions, the first being 0 and the last 1.

        Raises DataError that names the features without a range.
        """
        lacking = [part.name for part in schema.features if needs_range(part) and part.name not in self.ranges]
        if lacking:
            raise DataError(
                f"there is no range for {', '.join(lacking)}: give it under ranges, or let clients measure it "
                f'(source = "own" or "shared-ranges")'
            )
        return tuple(
            _scale(self.ranges[part.name]) if needs_range(part) else UnitScale(0.0, max(1.0, len(part.categories) - 1))
            for part in schema.features
        )

    @classmethod
    def given(cls, ranges: Mapping[str, Range]) -> Scaling:
        """The scaling that a person asks for. Raises DataError that names the feature whose range is none."""
        try:
            return cls(_RANGES.validate_python(dict(ranges)))
        except ValidationError as error:
            found = error.errors(include_input=False)[0]
            raise DataError(f"the range of '{found['loc'][0]}' cannot be used: {found['msg']}") from None

    def as_json(self) -> str:
        """One line, read by ``from_json``."""
        return json.dumps({name: list(limits) for name, limits in self.ranges.items()})

    @classmethod
    def from_json(cls, text: str, what: str = "the scaling") -> Scaling:
        """The scaling that somebody sent. Raises ReplyError when it is none."""
        check_length(text, what)
        try:
            return cls(_RANGES.validate_json(text))
        except ValidationError as error:
            raise ReplyError(f"{what} is malformed: {error.errors(include_input=False)[0]['msg']}") from None


def agreed_scaling(schema: Schema, settings: ScalingSettings, told: Sequence[Mapping[str, Range]] = ()) -> Scaling:
    """What the server sends to all clients; each completes it with ``Scaling.measured`` of its own values.

    schema : of the common features.
    told   : ranges of the clients that told any.

    Raises
    ------
    DataError
        When a common feature would have no common range, unless every client takes its own.
    """
    scaling = Scaling({name: limits for name, limits in settings.ranges.items() if name in schema.names})
    if settings.source == "shared-ranges":
        scaling = scaling.completed(Scaling.merged(told, settings.merge))
    if settings.source != "own":
        scaling.scales(schema)
    return scaling


def needs_range(feature: Feature) -> bool:
    """Whether a feature is a number in units of its own, or several such."""
    return feature.is_scaled and not feature.categories


def may_be_skewed(feature: Feature, skewed: Skewed) -> bool:
    """Whether a feature may have a range with the median."""
    return feature.kind == "real" and skewed == "logarithmic"


def quantile_range(values: Floats, quantile: float, with_median: bool = False) -> Range:
    """Low and high quantile of ``values [rows]`` without NaN, the first below the second; (0, 1) without any value.

    Where both are one value, such as 0 in a column that counts rare events, they are the quantiles of that value and of
    all that differ from it; a constant column lies in the middle of its range.

    with_median : put the median between them if they are skewed.
    """
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, median, high = np.quantile(values, [quantile, 0.5, 1 - quantile])
    if low == high and len(others := values[values != low]):
        ends = np.quantile(others, [quantile, 1 - quantile])
        low, high = min(low, ends[0]), max(high, ends[1])
    margin = 0.0 if high - low >= _NARROWEST else max(0.5, abs(low) * 1e-6)
    low, high = float(low - margin), float(high + margin)
    return skewed_range(low, float(np.clip(median, low, high)), high) if with_median else (low, high)


def skewed_range(low: float, median: float, high: float) -> Range:
    """With the median where it is far from the middle, without it elsewhere."""
    share = (median - low) / (high - low)
    return (low, median, high) if min(share, 1 - share) < _SKEWED else (low, high)


def _scale(limits: Range) -> UnitScale:
    return UnitScale.of(limits[0], limits[-1], limits[1] if len(limits) == 3 else None)
