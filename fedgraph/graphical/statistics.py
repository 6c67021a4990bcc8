"""What a client that consents tells of its values besides its schema: ranges of numbers.

Without noise, a range is two quantiles, with the median between them for a skewed real number. These are values of
single persons, or lie between two of them, so nothing is told of what a few rows have; that is caution, not a
guarantee.

With noise, the guarantee is that of ``fedgraph.privacy.noise.counts``: epsilon is the privacy loss of a row from all
that a client tells at once. Noise on a quantile itself would have to be as large as all that the value can be, since
one row may move it anywhere. So values are counted in cells between public bounds, the counts get noise, and quantiles
are read from those counts that noise alone does not explain. The range is as coarse as the cells.

Whoever can ask again must be answered with what was told before (``fedgraph.privacy.released``): an average over fresh
noise takes it away.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedgraph.data.columns import Floats
from fedgraph.data.encoding import (
    Bounds,
    Range,
    Ranges,
    ScalingSettings,
    check_shape,
    may_be_skewed,
    needs_range,
    quantile_range,
    skewed_range,
)
from fedgraph.data.schema import Schema, check_length
from fedgraph.privacy.noise import CountNoiseSettings, noisy_counts
from fedgraph.support.errors import DataError, ReplyError
from fedgraph.support.settings import Settings

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Consent:
    """What a node lets its clients tell; by default nothing.

    ranges      : quantiles of numbers, of skewed ones the median among them.
    sums        : sums over rows, from which one graph of all clients' rows is recovered.
    max_epsilon : only with noise of at most this epsilon, and of at most ``max_delta``.
    least_rows  : nothing is told of a number that fewer rows have; with noise, that its noisy counts say fewer have.
    """

    ranges: bool = False
    max_epsilon: float | None = None
    max_delta: float = 1e-5
    least_rows: int = 10
    sums: bool = False

    def check(self, noise: CountNoiseSettings | None, asked: Literal["ranges", "sums"] = "ranges") -> None:
        """Raise DataError unless this lets ranges, or sums, with such noise be told."""
        if not getattr(self, asked):
            raise DataError(
                f"the experiment asks for {asked} of the data, and this node does not consent to that (node config "
                f'consent = "{asked}")'
            )
        if self.max_epsilon is None:
            return
        if noise is None or noise.epsilon > self.max_epsilon:
            asked_for = "without noise" if noise is None else f"at epsilon {noise.epsilon:g}"
            raise DataError(
                f"the experiment asks for {asked} {asked_for}, and this node consents to an epsilon of at most "
                f"{self.max_epsilon:g}"
            )
        if noise.mechanism == "gaussian" and noise.delta > self.max_delta:
            raise DataError(
                f"the experiment asks for noise of delta {noise.delta:g}, and this node consents to at most "
                f"{self.max_delta:g}"
            )


class StatisticsSettings(Settings):
    """How clients tell their ranges, where ``source = "shared-ranges"`` of the scaling asks for them.

    noise  : on everything that is told: on ranges, and on the sums of ``[fedngm.recovery] source =
             "summed-statistics"``, each with the whole epsilon.
    bounds : ``[low, high]`` by feature, known without looking at data; values beyond count as the bound. Ranges with
             noise need them.
    cells  : in which values between the bounds are counted.
    """

    noise: CountNoiseSettings | None = None
    bounds: Bounds = Field(default_factory=dict)
    cells: Annotated[int, Field(ge=4, le=10_000)] = 64


class _StatisticsJson(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    ranges: Ranges


@dataclass(frozen=True)
class SharedStatistics:
    """What one client tells.

    ranges : by feature, of those of which it has enough rows.
    """

    ranges: Mapping[str, Range] = field(default_factory=dict)

    def as_json(self) -> str:
        """One line, read by ``from_json``."""
        return json.dumps({"ranges": {name: list(limits) for name, limits in self.ranges.items()}})

    @classmethod
    def from_json(cls, text: str, schema: Schema) -> SharedStatistics:
        """What a client sent of the common features ``schema``. Raises ReplyError for anything else."""
        check_length(text, "what a client tells of its data")
        try:
            read = _StatisticsJson.model_validate_json(text)
        except ValidationError as error:
            problem = error.errors(include_input=False)[0]["msg"]
            raise ReplyError(f"the ranges of a client are malformed: {problem}") from None
        numbers = {part.name for part in schema.features if needs_range(part)}
        if not set(read.ranges) <= numbers:
            raise ReplyError("a client tells ranges of what is no common number")
        return cls(read.ranges)


def check_consent(scaling: ScalingSettings, settings: StatisticsSettings, consent: Consent) -> None:
    """Raise DataError when more is asked for than the node consents to."""
    if scaling.source == "shared-ranges":
        consent.check(settings.noise)


def shared_statistics(
    values: Floats,
    schema: Schema,
    scaling: ScalingSettings,
    settings: StatisticsSettings,
    consent: Consent,
    generator: torch.Generator | None = None,
) -> SharedStatistics:
    """What a client tells of its values ``[rows, features]``: what is asked for, and nothing else.

    schema    : of the common features.
    generator : of noise, for tests and simulations only.

    Raises
    ------
    DataError
        When more is asked for than the node consents to, or bounds are lacking.
    """
    check_shape(values, schema)
    check_consent(scaling, settings, consent)
    columns = {name: values[:, place] for name, place in schema.value_slices.items()}
    columns = {name: column[np.isfinite(column).all(1)] for name, column in columns.items()}
    ranged = {
        f.name: may_be_skewed(f, scaling.skewed)
        for f in schema.features
        if scaling.source == "shared-ranges" and needs_range(f) and f.name not in scaling.ranges
    }
    if settings.noise is None:
        ranges = {
            name: quantile_range(columns[name].ravel(), scaling.quantile, with_median)
            for name, with_median in ranged.items()
            if len(columns[name]) >= consent.least_rows
        }
    else:
        if several := [name for name in ranged if schema[name].kind == "embedding"]:
            raise DataError(
                f"a row counts once for each number of {', '.join(several)}, which noise would not hide: give ranges "
                "of embeddings, under ranges of the scaling"
            )
        cells = {name: _cells(columns[name], name, settings) for name in ranged}
        noisy = _with_noise(cells, settings.noise, generator)
        # What a cell without rows may look like with noise.
        largest = settings.noise.largest(settings.cells * max(1, len(ranged)), len(noisy))
        kept = {name: np.where(noisy[name] > largest, noisy[name], 0) for name in ranged}
        ranges = {
            name: _range(one, settings.bounds[name], scaling.quantile, ranged[name])
            for name, one in kept.items()
            if one.sum() >= max(1, consent.least_rows)
        }
    return SharedStatistics(ranges)


def _cells(values: Floats, name: str, settings: StatisticsSettings) -> Counts:
    if name not in settings.bounds:
        raise DataError(f"ranges with noise need bounds known without the data, and there are none for {name}")
    bounds = settings.bounds[name]
    return np.histogram(np.clip(values, *bounds), settings.cells, bounds)[0]


def _with_noise(
    histograms: Mapping[str, Counts], noise: CountNoiseSettings, generator: torch.Generator | None
) -> dict[str, Counts]:
    """All of them with the noise of one release, in which a row counts once in each."""
    if not histograms:
        return {}
    together = torch.from_numpy(np.concatenate(list(histograms.values())))
    drawn = noisy_counts(together, len(histograms), noise, generator).numpy()
    ends = np.cumsum([len(one) for one in histograms.values()])
    return dict(zip(histograms, np.split(drawn, ends[:-1]), strict=True))


def _range(counts: Counts, bounds: tuple[float, float], quantile: float, with_median: bool) -> Range:
    """From the lower edge of the cell in which the low quantile lies to the upper edge of that of the high one.

    The median is the centre of its cell.
    """
    edges = np.linspace(*bounds, len(counts) + 1)
    below = np.cumsum(counts)
    first = int(np.argmax(below > quantile * below[-1]))
    last = int(np.argmax(below >= (1 - quantile) * below[-1]))
    low, high = float(edges[first]), float(edges[last + 1])
    middle = int(np.argmax(2 * below >= below[-1]))
    return skewed_range(low, float(edges[middle] + edges[middle + 1]) / 2, high) if with_median else (low, high)
