"""Ranges that map numbers to units in [0, 1], and how clients agree on them without sending rows.

- ``given``: set by the experiment. No information about the data leaves a client, and units mean the same everywhere.
- ``own``: every client takes quantiles of its own values. Nothing leaves a client, but a unit of 0.5 stands for
  different numbers at different clients: a global model then describes positions in a client's own range, and its
  samples can be converted to original units only with the ranges of one client.
- ``shared-ranges``: clients send their quantiles (``fedgraph.graphical.statistics``), with noise if requested, and the
  server merges them.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models. The paper does not state how its numbers are
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
"""Low and high, with units 0 and 1; or low, median and high, with units 0, 1/2 and 1."""

Skewed = Literal["logarithmic", "straight"]
"""See ``ScalingSettings.skewed``."""

_SKEWED = 0.2
"""Numbers are skewed if their median is closer to an end of their range than this fraction of it.

Exponential numbers have it at 0.15, normal ones at 0.5; in between, as for birth weights, a straight scale predicts no
worse.
"""

_LARGEST = 1e30
_NARROWEST = 1e-30


def _rising(limits: Range) -> Range:
    low, high = limits[0], limits[-1]
    if not high - low >= _NARROWEST or not all(low <= each <= high for each in limits) or max(-low, high) > _LARGEST:
        raise ValueError("a range is [low, high] or [low, median, high] with low below high, neither beyond 1e30")
    return limits


Ranges = dict[str, Annotated[Range, AfterValidator(_rising)]]
"""Ranges by feature, validated by pydantic."""

Bounds = dict[str, Annotated[tuple[float, float], AfterValidator(_rising)]]
"""Ranges without medians by feature, validated by pydantic."""

_RANGES = TypeAdapter(Ranges)


class ScalingSettings(Settings):
    """How numbers become units.

    Attributes
    ----------
    source   : of the ranges: ``given``, ``own`` or ``shared-ranges``.
    ranges   : ``[low, high]`` by feature, used with any source. ``[low, median, high]`` is for a skewed feature.
    quantile : fraction of a client's values below the low end, and above the high end, of a measured range. Outliers
               then do not squeeze all other values together.
    skewed   : real numbers whose median is in the lowest or highest fifth of their range get a ``logarithmic`` scale
               on which it is in the middle (:mod:`fedgraph.data.encoding.unit_scale`); the median is then measured,
               and sent, as part of the range. With ``straight``, and for all other numbers, the scale is linear.
               Predictions of numbers on a logarithmic scale are nearer to medians than to means.
    merge    : of the ranges that clients send: from the lowest low to the highest high (``widest``), or the ``median``
               low and high, on which one client has little influence. Medians are always merged by their median.
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
    """Ranges of the numbers of a schema. Binary features and ordered words need none.

    Attributes
    ----------
    ranges : mapping of str to Range
        By feature.
    """

    ranges: Mapping[str, Range] = field(default_factory=dict)

    @classmethod
    def measured(cls, values: Floats, schema: Schema, quantile: float, skewed: Skewed = "logarithmic") -> Scaling:
        """Measure the ranges as quantiles of values ``[rows, features]``; (0, 1) for a feature without values."""
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
    def merged(
        cls, client_ranges: Sequence[Mapping[str, Range]], how: Literal["widest", "median"] = "widest"
    ) -> Scaling:
        """Merge the ranges that clients sent, each of any features; see :class:`ScalingSettings`."""
        ranges: dict[str, Range] = {}
        for name in sorted({name for one in client_ranges for name in one}):
            of_clients = [one[name] for one in client_ranges if name in one]
            lows, highs = np.array([(limits[0], limits[-1]) for limits in of_clients]).T
            ends = (lows.min(), highs.max()) if how == "widest" else (np.median(lows), np.median(highs))
            low, high = float(ends[0]), float(ends[1])
            medians = [limits[1] for limits in of_clients if len(limits) == 3]
            ranges[name] = (low, float(np.clip(np.median(medians), low, high)), high) if medians else (low, high)
        return cls(ranges)

    def completed(self, other: Scaling) -> Scaling:
        """Add the ranges of ``other`` for features without one here, such as a client's private features."""
        return Scaling({**other.ranges, **self.ranges})

    def scales(self, schema: Schema) -> tuple[UnitScale, ...]:
        """Return the scale of every feature; categories are at their positions, the first at 0 and the last at 1.

        Raises DataError when features have no range, naming them.
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
        """Validate ranges. Raises DataError naming the feature with an invalid range."""
        try:
            return cls(_RANGES.validate_python(dict(ranges)))
        except ValidationError as error:
            found = error.errors(include_input=False)[0]
            raise DataError(f"the range of '{found['loc'][0]}' cannot be used: {found['msg']}") from None

    def as_json(self) -> str:
        """Return one line of JSON that :meth:`from_json` reads."""
        return json.dumps({name: list(limits) for name, limits in self.ranges.items()})

    @classmethod
    def from_json(cls, text: str, what: str = "the scaling") -> Scaling:
        """Read a scaling from a message; ``what`` names it in errors. Raises ReplyError if it is malformed."""
        check_length(text, what)
        try:
            return cls(_RANGES.validate_json(text))
        except ValidationError as error:
            raise ReplyError(f"{what} is malformed: {error.errors(include_input=False)[0]['msg']}") from None


def agreed_scaling(
    schema: Schema, settings: ScalingSettings, client_ranges: Sequence[Mapping[str, Range]] = ()
) -> Scaling:
    """Return the scaling that the server sends to all clients.

    Each client completes it with :meth:`Scaling.measured` of its own values. Complete for ``schema`` unless the source
    is ``own``. Raises DataError when a common feature would have no common range, unless every client takes its own.

    Parameters
    ----------
    schema : Schema
        The common features.
    settings : ScalingSettings
        Given ranges, and how those of clients are merged.
    client_ranges : sequence of mapping
        Ranges of the clients that sent any.
    """
    scaling = Scaling({name: limits for name, limits in settings.ranges.items() if name in schema.names})
    if settings.source == "shared-ranges":
        scaling = scaling.completed(Scaling.merged(client_ranges, settings.merge))
    if settings.source != "own":
        scaling.scales(schema)
    return scaling


def needs_range(feature: Feature) -> bool:
    """Return whether a feature is scaled by a range: real, integer, embedding, or an ordinal of numbers."""
    return feature.is_scaled and not feature.categories


def may_be_skewed(feature: Feature, skewed: Skewed) -> bool:
    """Return whether the range may have a median: of real features, if skewed ones get a logarithmic scale."""
    return feature.kind == "real" and skewed == "logarithmic"


def quantile_range(values: Floats, quantile: float, with_median: bool = False) -> Range:
    """Return the range between a low and a high quantile.

    If both quantiles are equal, such as 0 in a column that counts rare events, they are taken of that value and of
    all values that differ from it; a constant column lies in the middle of its range. Low is below high; (0, 1) if
    there are no values.

    Parameters
    ----------
    values : ndarray
        ``[rows]``; values that are not finite do not count.
    quantile : float
        Below 0.5; the high end is the quantile ``1 - quantile``.
    with_median : bool
        Whether to include the median if the values are skewed.
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
    """Return ``(low, median, high)`` if the median is in the lowest or highest fifth, else ``(low, high)``."""
    share = (median - low) / (high - low)
    return (low, median, high) if min(share, 1 - share) < _SKEWED else (low, high)


def _scale(limits: Range) -> UnitScale:
    return UnitScale.of(limits[0], limits[-1], limits[1] if len(limits) == 3 else None)
