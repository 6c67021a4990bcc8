"""The table of results behind terminal, page, notebook, pictures and JSON.

A metric such as ``mae-60min-no-graph`` is the row ``mae-60min`` in the column of the model without a graph, so that
several models of one run can be compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedgraph.support.errors import ExperimentError
from fedgraph.training import AFTER_TURN, LAST, direction

if TYPE_CHECKING:
    import pandas as pd

Spread = Mapping[str, float | None]
"""Mean, deviation, and the means of the best and of the worst clients, as in ``summary.json``."""

MODELS = {
    "-local": "own model",
    "-personal": "personal model",
    "-no-graph": "no graph",
    "-given-graph": "given graph",
    "-permuted-graph": "permuted graph",
    "-complete-graph": "complete graph",
    "-learned-graph": "learned graph",
    "-linear": "linear model",
    "-mean": "mean",
    "-median": "median",
    "-weighted-trees": "weighted trees",
    "-trees": "trees",
    AFTER_TURN: "after its turn",
    LAST: "last round",
}
"""Labels of the models that are evaluated in addition to the run's own, by suffix of their metrics."""

_AHEAD = re.compile(r"-(?=(\d+(\.\d+)?(min|hours?|days?|weeks?)|step\d+)(-|$))")


@dataclass(frozen=True)
class Column:
    """A model that was measured.

    Attributes
    ----------
    run : int
        Index of its run.
    label : str
        Name of the run.
    ending : str
        Suffix of its metrics, a key of ``MODELS``; empty for the run's own model.
    name : str
        Heading: the run, the model, or both if several runs have several models.
    """

    run: int
    label: str
    ending: str
    name: str


@dataclass(frozen=True)
class Results:
    """Final metrics of runs on one split: a row for each metric, a column for each model that was measured.

    Parameters
    ----------
    summaries : sequence of mappings
        Contents of ``summary.json``, one per run, with labels for methods.
    further : bool
        Whether models other than the runs' own have columns.
    """

    summaries: Sequence[Mapping[str, Any]]
    further: bool = True

    @cached_property
    def split(self) -> str:
        """The split to show, which is test if it was measured, else the last one."""
        return shown_split(self.summaries)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """A column per model, ordered by run."""
        columns = []
        for place, summary in enumerate(self.summaries):
            label = str(summary["method"])
            endings = dict.fromkeys(ending for metric in self._metrics(place) for _, ending in [parts(metric)])
            models = sorted(endings or [""], key=lambda each: each != "")
            for ending in models if self.further else models[:1]:
                model = MODELS.get(ending, "")
                alone = model if len(self.summaries) == 1 else f"{label}: {model}"
                columns.append(Column(place, label, ending, alone if ending else label))
        return tuple(columns)

    @property
    def heads(self) -> list[str]:
        """Headings of columns, with the remark of a run on a second line."""
        remarks = ("" if each.ending else self.summaries[each.run].get("remark", "") for each in self.columns)
        named = zip(self.columns, remarks, strict=True)
        return [f"{column.name}\n({remark})" if remark else column.name for column, remark in named]

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """Metrics without the suffixes of models, grouped by measure, in order of measurement."""
        names = dict.fromkeys(
            parts(metric)[0] for place in range(len(self.summaries)) for metric in self._metrics(place)
        )
        families = {family: number for number, family in enumerate(dict.fromkeys(map(_family, names)))}
        return tuple(sorted(names, key=lambda row: families[_family(row)]))

    @cached_property
    def features(self) -> dict[str, tuple[str, str]]:
        """Feature and measure of each row such as ``age-mae``, if there is a row ``mean-mae``."""
        measures = sorted((row[5:] for row in self.rows if row.startswith("mean-")), key=len, reverse=True)
        features = {}
        for row in self.rows:
            measure = next((each for each in measures if row.endswith(f"-{each}")), None)
            if measure is not None and row != f"mean-{measure}":
                features[row] = (row.removesuffix(f"-{measure}"), measure)
        return features

    @property
    def overall(self) -> list[str]:
        """Rows that do not belong to a single feature."""
        return [row for row in self.rows if row not in self.features]

    @cached_property
    def telling(self) -> str | None:
        """The first metric in which clients differ, else the first; None if nothing was measured."""
        differing = (row for row in self.rows if any((of or {}).get("std") for of in self.row(row)))
        return next(differing, self.rows[0] if self.rows else None)

    def by_run(self, rows: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Expand rows with a cell per run to a cell per column, placed in the first column of each run."""
        first = {column.run: place for place, column in reversed(list(enumerate(self.columns)))}
        cells = list(enumerate(self.columns))
        return {
            label: [of[column.run] if first[column.run] == place else "" for place, column in cells]
            for label, of in rows.items()
        }

    def of_longest(self, most: int) -> list[str]:
        """Return the last row of each measure (the longest forecast) among those that most runs have."""
        columns = [column for column in self.columns if not column.ending]
        counts = {row: sum(self.cell(row, column) is not None for column in columns) for row in self.rows}
        last = {_family(row): row for row in self.rows if counts[row] == max(counts.values())}
        return list(last.values())[-most:]

    @property
    def groups(self) -> list[str]:
        """Groups of clients with results of their own."""
        groups = (group for each in self.summaries for group in each.get("per_group", {}).get(self.split, {}))
        return list(dict.fromkeys(groups))

    def row(self, metric: str, group: str | None = None) -> list[Spread | None]:
        """Return :meth:`cell` for every column."""
        return [self.cell(metric, column, group) for column in self.columns]

    def cell(self, metric: str, column: Column, group: str | None = None) -> Spread | None:
        """Return a metric of a column, over all clients or a group; None if it was not measured."""
        summary = self.summaries[column.run]
        metrics = summary["metrics"] if group is None else {
            split: of.get(group, {}) for split, of in summary.get("per_group", {}).items()
        }  # fmt: skip
        values = metrics.get(self.split, {}).get(f"{metric}{column.ending}")
        return values if values and values.get("mean") is not None else None

    def measured(self, column: Column) -> bool:
        """Return whether a column has any metric."""
        return any(self.cell(row, column) is not None for row in self.rows)

    def clients(self, metric: str, column: Column) -> dict[str, float]:
        """Return a metric by client, without clients that were not measured."""
        metrics = self.summaries[column.run].get("per_client", {}).get(self.split, {})
        values = metrics.get(f"{metric}{column.ending}", {})
        return {name: value for name, value in values.items() if value is not None}

    def records(self, run: int) -> list[dict[str, Any]]:
        """Return mean, deviation and extremes of each metric and model of a run, as JSON values."""
        return [
            {"metric": row, "model": MODELS.get(column.ending, column.label), "split": self.split, **values}
            for column in self.columns
            if column.run == run
            for row in self.rows
            if (values := self.cell(row, column)) is not None
        ]

    def to_pandas(self) -> pd.DataFrame:
        """Return a row per ``<split>/<metric>``, and columns ``mean`` and ``std`` for each run."""
        import pandas as pd

        columns = {
            (summary["method"], spread): {
                f"{split}/{metric}": values[spread]
                for split, metrics in summary["metrics"].items()
                for metric, values in metrics.items()
            }
            for summary in self.summaries
            for spread in ("mean", "std")
        }
        return pd.DataFrame(columns).astype(float)

    def _metrics(self, run: int) -> Iterable[str]:
        return self.summaries[run]["metrics"].get(self.split, {})


def shown_split(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Return the split to show: test if it was measured, else the last one."""
    measured = list(summaries[0]["metrics"])
    return "test" if "test" in measured or not measured else measured[-1]


def parts(metric: str) -> tuple[str, str]:
    """Split a metric into its row and the suffix of its model, empty for the run's own."""
    for ending in MODELS:
        row = metric.removesuffix(ending)
        if row != metric:
            # An unknown metric such as gap-mean has no suffix of a model.
            with suppress(ExperimentError):
                direction(row)
                return row, ending
    return metric, ""


def _family(row: str) -> str:
    return _AHEAD.split(row, maxsplit=1)[0]
