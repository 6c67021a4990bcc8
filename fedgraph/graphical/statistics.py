"""Statistics that a client discloses besides its schema, where they are asked for: ranges of numbers.

Without noise, a range is two quantiles, and the median of a skewed real number. These are, or lie between, values of
single persons, so nothing is disclosed about a number that few rows have; that is a precaution, not a guarantee.

With noise, the guarantee is that of ``fedgraph.privacy.noise.counts``: epsilon bounds the privacy loss of a row from
everything that a client discloses at once. As one row may move a quantile anywhere, values are counted in cells between
public bounds, the counts get noise, and quantiles are read from the counts that noise cannot explain, to the resolution
of the cells.

Repeated requests must get the earlier answer (``fedgraph.privacy.ledger``), as averaging would remove fresh noise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

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


class StatisticsSettings(Settings):
    """How clients disclose their ranges, where ``source = "shared-ranges"`` of the scaling asks for them.

    Attributes
    ----------
    noise  : on everything that is disclosed: on ranges, and on the sums of ``[fedngm.recovery] source =
             "summed-statistics"``, each with the whole epsilon, so that a run with both has twice that. Sums with
             noise need ranges that are not measured on the client's own rows.
    bounds : ``[low, high]`` by feature, known without looking at data; values beyond count as the bound. Ranges with
             noise need them.
    cells  : number of cells between the bounds in which values are counted.
    """

    noise: CountNoiseSettings | None = None
    bounds: Bounds = Field(default_factory=dict)
    cells: Annotated[int, Field(ge=4, le=10_000)] = 64


class _StatisticsJson(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    ranges: Ranges


@dataclass(frozen=True)
class SharedStatistics:
    """Statistics that one client discloses.

    Attributes
    ----------
    ranges : mapping of str to tuple of float
        Range by feature, of the features that enough rows have.
    """

    ranges: Mapping[str, Range] = field(default_factory=dict)

    def as_json(self) -> str:
        """Return the statistics as one line of JSON, read by :meth:`from_json`."""
        return json.dumps({"ranges": {name: list(limits) for name, limits in self.ranges.items()}})

    @classmethod
    def from_json(cls, text: str, schema: Schema) -> SharedStatistics:
        """Parse what a client sent about the common features ``schema``.

        Raises ReplyError when the text is too long or malformed, or contains ranges of features that are not common
        numbers.
        """
        check_length(text, "the statistics of a client")
        try:
            read = _StatisticsJson.model_validate_json(text)
        except ValidationError as error:
            problem = error.errors(include_input=False)[0]["msg"]
            raise ReplyError(f"the ranges of a client are malformed: {problem}") from None
        numbers = {part.name for part in schema.features if needs_range(part)}
        if not set(read.ranges) <= numbers:
            raise ReplyError("a client sent ranges of a feature that is not a common number")
        return cls(read.ranges)


def shared_statistics(
    values: Floats,
    schema: Schema,
    scaling: ScalingSettings,
    settings: StatisticsSettings,
    least_rows: int = 10,
    generator: torch.Generator | None = None,
) -> SharedStatistics:
    """Compute what a client discloses about its values: what is requested, and nothing else.

    Raises DataError when bounds are lacking, or ranges of embeddings are requested with noise.

    Parameters
    ----------
    values : array
        Rows of the client, ``[rows, features]``.
    schema : Schema
        Schema of the common features.
    scaling : ScalingSettings
        Whether ranges are requested, and at which quantiles.
    settings : StatisticsSettings
        Noise, bounds and cells.
    least_rows : int
        A number that fewer rows have is left out; with noise, one whose noisy counts sum to less.
    generator : torch.Generator, optional
        Source of the noise, for tests and simulations only.
    """
    check_shape(values, schema)
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
            if len(columns[name]) >= least_rows
        }
    else:
        if several := [name for name in ranged if schema[name].kind == "embedding"]:
            raise DataError(
                f"a row counts once for each number of {', '.join(several)}, which noise would not hide: give ranges "
                "of embeddings, under ranges of the scaling"
            )
        cells = {name: _cells(columns[name], name, settings) for name in ranged}
        noisy = _with_noise(cells, settings.noise, generator)
        # Largest count that noise may give to an empty cell.
        largest = settings.noise.largest(settings.cells * max(1, len(ranged)), len(noisy))
        kept = {name: np.where(noisy[name] > largest, noisy[name], 0) for name in ranged}
        ranges = {
            name: _range(one, settings.bounds[name], scaling.quantile, ranged[name])
            for name, one in kept.items()
            if one.sum() >= max(1, least_rows)
        }
    return SharedStatistics(ranges)


def _cells(values: Floats, name: str, settings: StatisticsSettings) -> Counts:
    if name not in settings.bounds:
        raise DataError(f"ranges with noise need public bounds; none are given for {name}")
    bounds = settings.bounds[name]
    return np.histogram(np.clip(values, *bounds), settings.cells, bounds)[0]


def _with_noise(
    histograms: Mapping[str, Counts], noise: CountNoiseSettings, generator: torch.Generator | None
) -> dict[str, Counts]:
    """Return all histograms with the noise of one release, in which a row counts once in each."""
    if not histograms:
        return {}
    together = torch.from_numpy(np.concatenate(list(histograms.values())))
    drawn = noisy_counts(together, len(histograms), noise, generator).numpy()
    ends = np.cumsum([len(one) for one in histograms.values()])
    return dict(zip(histograms, np.split(drawn, ends[:-1]), strict=True))


def _range(counts: Counts, bounds: tuple[float, float], quantile: float, with_median: bool) -> Range:
    """Return the range from the lower edge of the low quantile's cell to the upper edge of the high quantile's cell.

    With ``with_median``, the median is the centre of its cell.
    """
    edges = np.linspace(*bounds, len(counts) + 1)
    below = np.cumsum(counts)
    first = int(np.argmax(below > quantile * below[-1]))
    last = int(np.argmax(below >= (1 - quantile) * below[-1]))
    low, high = float(edges[first]), float(edges[last + 1])
    middle = int(np.argmax(2 * below >= below[-1]))
    return skewed_range(low, float(edges[middle] + edges[middle + 1]) / 2, high) if with_median else (low, high)
