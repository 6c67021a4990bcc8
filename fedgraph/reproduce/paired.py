"""Paired differences between one row of a table and the others, seed by seed, with confidence intervals.

Nadeau, Bengio: Inference for the Generalization Error (Machine Learning 52, 2003), where seeds split one data set anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from fedgraph.reproduce.results import Results, Spread
from fedgraph.reproduce.table import ColumnTable, MetricTable, RowTable
from fedgraph.support.files import as_csv

_LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """The reference row minus another one, over the seeds that both have.

    Attributes
    ----------
    values : dict of int to float
        Differences by seed.
    mean : float
        Their mean.
    margin : float or None
        Half the width of the 95 % interval of the mean; None for a single seed.
    above : int
        Number of seeds for which the reference has the larger value.
    """

    values: dict[int, float]
    mean: float
    margin: float | None
    above: int

    @classmethod
    def between(cls, reference: Spread, other: Spread, overlap: float) -> Difference | None:
        """Compute differences with Student's t; the variance of their mean is theirs times ``1 / seeds + overlap``.

        None where no seed has both.
        """
        both = reference.values.keys() & other.values.keys()
        if not both:
            return None
        values = {seed: reference.values[seed] - other.values[seed] for seed in sorted(both)}
        every, count = np.array(list(values.values())), len(values)
        margin = None
        if count > 1:
            quantile = float(stdtrit(count - 1, (1 + _LEVEL) / 2))
            margin = quantile * float(every.std(ddof=1)) * math.sqrt(1 / count + overlap)
        return cls(values, float(every.mean()), margin, int((every > 0).sum()))

    def __str__(self) -> str:
        """Format as ``+0.012 [-0.003, +0.027] 4/5``: mean, interval, and how often the reference is above."""
        interval = ""
        if self.margin is not None:
            interval = f" [{self.mean - self.margin:+.3f}, {self.mean + self.margin:+.3f}]"
        return f"{self.mean:+.3f}{interval} {self.above}/{len(self.values)}"


def difference(results: Results, row: RowTable, column: ColumnTable, metric: MetricTable) -> Difference | None:
    """Return the reference row minus ``row``; None for the reference itself, and where no seed has both."""
    reference = results.table.reference
    if reference is None or reference.label == row.label:
        return None
    ours, other = (results.ours(each, column, metric) for each in (reference, row))
    if ours is None or other is None:
        return None
    return Difference.between(ours, other, results.table.table.overlap)


def differences(results: Results, column: ColumnTable) -> Iterator[tuple[RowTable, list[Difference | None]]]:
    """Yield the rows that can be compared, each with a difference for every metric of the column."""
    for row in results.rows(column):
        found = [difference(results, row, column, metric) for metric in results.table.metrics_of(column)]
        if any(found):
            yield row, found


def explanation(results: Results) -> str:
    """Explain the differences in words."""
    overlap = results.table.table.overlap
    wider = (
        " Seeds split the same samples anew, so that they are not independent: intervals are widened for it (Nadeau "
        f"and Bengio 2003, {overlap:.3g} test samples per training sample)."
        if overlap
        else ""
    )
    return (
        f"{results.table.table.compare} less each other row, seed by seed: mean, 95 % interval of the mean (Student's "
        f"t), and for how many seeds it is the larger.{wider}"
    )


def paired_csv(results: Results) -> str:
    """Format differences as CSV, a line per row, column and metric."""
    lines: list[tuple[object, ...]] = [
        ("table", "profile", "column", "metric", "reference", "row", "mean", "low", "high", "above", "seeds", "values")
    ]
    for column in results.columns:
        for row, found in differences(results, column):
            for metric, each in zip(results.table.metrics_of(column), found, strict=True):
                if each is not None:
                    low, high = (None if each.margin is None else each.mean + sign * each.margin for sign in (-1, 1))
                    where = (results.name, results.profile_name, column.key, metric.title, results.table.table.compare)
                    values = " ".join(f"{seed}:{value}" for seed, value in each.values.items())
                    lines.append((*where, row.label, each.mean, low, high, each.above, len(each.values), values))
    return as_csv(lines)
