"""Results of a table, read from its run folders, with the published values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from fedgraph.reproduce.cells import Cell
from fedgraph.reproduce.execution import failure, missing_data
from fedgraph.reproduce.quantity import FAIRNESS, RUN, Quantity, over_rounds
from fedgraph.reproduce.spreads import Difference, Spread
from fedgraph.reproduce.table import (
    NOT_PRINTED,
    ColumnTable,
    MetricTable,
    ProfileTable,
    PublishedTable,
    PublishedValue,
    RowTable,
)
from fedgraph.runs import RunFolder, fairness
from fedgraph.runs.reports import extreme_clients
from fedgraph.training import EXTREMES

State = Literal["finished", "failed", "no data", "not run"]
"""State of a cell; ``not run`` also while it is running."""


@dataclass(frozen=True)
class Outcome:
    """State of a cell, with the reason for a failure or the missing data, or the summary of a finished run."""

    cell: Cell
    state: State
    reason: str = ""
    summary: dict[str, Any] | None = None

    @property
    def commit(self) -> str:
        """Commit of this project that the run was started with, or ``unknown``."""
        file = self.cell.path / "environment.json"
        return str((json.loads(file.read_text()) if file.exists() else {}).get("commit") or "unknown")


@dataclass(frozen=True)
class Results:
    """A table in a profile, with the outcome of every cell.

    ``name`` and ``profile_name`` are for example ``sfl-table1`` and ``small``; ``seeds`` those of the planned cells;
    ``overrides`` those of the command line.
    """

    name: str
    table: PublishedTable
    profile_name: str
    profile: ProfileTable
    seeds: tuple[int, ...]
    overrides: tuple[str, ...]
    outcomes: tuple[Outcome, ...]

    @property
    def columns(self) -> list[ColumnTable]:
        """Columns of the profile."""
        return self.table.columns_in(self.profile)

    def rows(self, column: ColumnTable) -> list[RowTable]:
        """Return the rows that are run for, or published in, a column."""
        return [row for row in self.table.rows if row.runs_in(column.key) or column.key in row.published]

    @cached_property
    def _by_place(self) -> dict[tuple[str, str], list[Outcome]]:
        places: dict[tuple[str, str], list[Outcome]] = {}
        for outcome in self.outcomes:
            places.setdefault((outcome.cell.row, outcome.cell.column), []).append(outcome)
        return places

    def at(self, row: RowTable, column: ColumnTable) -> list[Outcome]:
        """Return the outcomes of a row in a column, one per seed; empty if it is only published."""
        return self._by_place.get((row.label, column.key), [])

    def folders_with(self, name: str) -> dict[str, list[Path]]:
        """Return the folders of finished runs with a file ``name``, one per seed, by titles of column and row.

        Titles leave out the row if only one has such a file.
        """
        by_place = {
            (column.title, row.label): folders
            for column in self.columns
            for row in self.rows(column)
            if (folders := [each.cell.path for each in self.at(row, column)
                            if each.summary and (each.cell.path / name).exists()])
        }  # fmt: skip
        several = len({label for _, label in by_place}) > 1
        return {f"{title}, {label}" if several else title: folders for (title, label), folders in by_place.items()}

    def ours(self, row: RowTable, column: ColumnTable, metric: MetricTable) -> Spread | None:
        """Return the values of our runs in the unit of the published value; None if no seed has one."""
        values = {}
        for outcome in self.at(row, column):
            value = self.value(outcome, row, column, metric)
            if value is not None:
                values[outcome.cell.seed] = value
        if not values:
            return None
        spread = Spread.over(values)
        return spread._replace(deviation=None) if column.seeds_differ else spread

    def value(self, outcome: Outcome, row: RowTable, column: ColumnTable, metric: MetricTable) -> float | None:
        """Return the value of one run in the unit of the published value, or None."""
        quantity = self.table.quantity(row, column, metric)
        if quantity.statistic == FAIRNESS:
            return self._fairness(outcome, quantity, metric)
        value = quantity.value(outcome.summary)
        return None if value is None else value * metric.factor

    def _fairness(self, outcome: Outcome, quantity: Quantity, metric: MetricTable) -> float | None:
        """Compute fairness against the stand-alone row; None for that row itself."""
        cell, alone = outcome.cell, self.stand_alone(outcome.cell)
        if cell.row == self.table.table.stand_alone or alone is None or outcome.summary is None:
            return None
        if metric.rounds is None:
            reached = quantity.by_client(outcome.summary)
        else:
            reached = over_rounds(cell.path, quantity, metric.rounds)
        value = fairness(metric.quantity.by_client(alone), reached)
        return None if math.isnan(value) else value * metric.factor

    def stand_alone(self, cell: Cell) -> dict[str, Any] | None:
        """Return the summary of the stand-alone row for a cell's column and seed, or None."""
        outcomes = self._by_place.get((self.table.table.stand_alone, cell.column), [])
        return next((outcome.summary for outcome in outcomes if outcome.cell.seed == cell.seed), None)

    def published(self, row: RowTable, column: ColumnTable, metric: MetricTable) -> PublishedValue | None:
        """Return the value printed in the paper, or None."""
        printed = row.published.get(column.key)
        value = NOT_PRINTED if printed is None else printed[self.table.metrics_of(column).index(metric)]
        return None if isinstance(value, str) else value

    def difference(self, row: RowTable, column: ColumnTable, metric: MetricTable) -> Difference | None:
        """Return the reference row minus ``row``; None for the reference itself, or without common seeds."""
        reference = self.table.reference
        if reference is None or reference.label == row.label:
            return None
        ours, other = (self.ours(each, column, metric) for each in (reference, row))
        return None if ours is None or other is None else Difference.between(ours, other, self.table.table.overlap)

    def differences(self, column: ColumnTable) -> Iterator[tuple[RowTable, list[Difference | None]]]:
        """Yield the comparable rows, each with a difference for every metric of the column."""
        for row in self.rows(column):
            differences = [self.difference(row, column, metric) for metric in self.table.metrics_of(column)]
            if any(differences):
                yield row, differences

    def heading(self, column: ColumnTable, metric: MetricTable) -> str:
        """Return the heading of our values: the title, with the number of extreme clients or of nodes if relevant."""
        summaries = [
            outcome.summary for row in self.rows(column) for outcome in self.at(row, column) if outcome.summary
        ]
        quantity = metric.quantity
        if quantity.statistic in EXTREMES and summaries:
            return f"{metric.title}, {extreme_clients(summaries, quantity.split, quantity.metric)}"
        if (quantity.split, quantity.metric) == (RUN, "bytes"):
            nodes = sorted({summary["nodes"] for summary in summaries if summary.get("nodes")})
            return f"{metric.title}, {' or '.join(map(str, nodes)) or 'unknown'} nodes in all"
        return metric.title

    def published_of(self, column: ColumnTable) -> str:
        """Describe the data of the published values; empty if it is the same as ours."""
        data = column.published_data
        if not data:
            return ""
        ours = self.descriptions(column)
        return "" if ours and all(is_same_data(data, text) for text in ours) else data

    def published_heading(self, column: ColumnTable) -> str:
        """Return the heading of published values."""
        return ", ".join(filter(None, ("published", self.published_of(column))))

    def has_published(self, column: ColumnTable) -> bool:
        """Return whether a column has published values."""
        return any(column.key in row.published for row in self.table.rows)

    def differs(self, row: RowTable, column: ColumnTable) -> str:
        """Describe how our runs differ from the published row; empty if it is only published."""
        if not row.runs_in(column.key):
            return ""
        remarks = dict.fromkeys((outcome.summary or {}).get("remark", "") for outcome in self.at(row, column))
        return "; ".join(
            filter(None, (self.differs_as_a_whole(column), row.differs, *remarks, self.chosen(row, column)))
        )

    def chosen(self, row: RowTable, column: ColumnTable) -> str:
        """Describe the chosen settings of a row and the values tried."""
        return "; ".join(dict.fromkeys(outcome.cell.chosen for outcome in self.at(row, column) if outcome.cell.chosen))

    def differs_as_a_whole(self, column: ColumnTable) -> str:
        """Describe how all our runs of a column differ from the published ones."""
        about = self.profile.differs_for.get(column.key, column.differs)
        data = " / ".join(dict.fromkeys(text.partition(":")[0] for text in self.descriptions(column)))
        return "; ".join(filter(None, (self.profile.differs, about.replace("{data}", data))))

    def trouble(self, row: RowTable, column: ColumnTable) -> str:
        """Describe why values are missing; empty if none is."""
        outcomes = self.at(row, column)
        unfinished = [outcome for outcome in outcomes if outcome.state != "finished"]
        if not unfinished:
            is_alone = row.label == self.table.table.stand_alone
            lacking = [
                f"{self.table.quantity(row, column, metric)}{without}"
                for metric in self.table.metrics_of(column)
                if not (is_alone and metric.quantity.statistic == FAIRNESS)
                and (without := self._without(row, column, metric)) is not None
            ]
            return f"its runs have no {', '.join(dict.fromkeys(lacking))}" if lacking else ""
        worst = min(unfinished, key=lambda outcome: get_args(State).index(outcome.state))
        seeds = ", ".join(str(outcome.cell.seed) for outcome in unfinished)
        some = f" for seed{'s' if len(unfinished) > 1 else ''} {seeds}"
        reason = f": {worst.reason}" if worst.reason else ""
        return f"{worst.state}{some if len(unfinished) < len(outcomes) else ''}{reason}"

    def _without(self, row: RowTable, column: ColumnTable, metric: MetricTable) -> str | None:
        """Return which seeds lack a value, as text: empty for all, None if no seed does."""
        outcomes = self.at(row, column)
        lacking = [outcome.cell.seed for outcome in outcomes if self.value(outcome, row, column, metric) is None]
        if not lacking:
            return None
        return "" if len(lacking) == len(outcomes) else f" with seed {', '.join(map(str, lacking))}"

    def descriptions(self, column: ColumnTable) -> list[str]:
        """Return the descriptions of data by the runs of a column."""
        summaries = [outcome.summary for row in self.rows(column) for outcome in self.at(row, column)]
        return list(dict.fromkeys(summary["data"] for summary in summaries if summary))

    def best(self, column: ColumnTable, metric: MetricTable) -> str | None:
        """Return the label of the row with our best mean, or None."""
        means = {row.label: ours.mean for row in self.rows(column) if (ours := self.ours(row, column, metric))}
        better = metric.quantity.better
        if not means or better is None:
            return None
        return (min if better == "lower" else max)(means, key=lambda label: means[label])


def is_same_data(published: str, ours: str) -> bool:
    """Return whether a run with data described as ``ours`` used all of the paper's data.

    ``published`` is the beginning of such a description; see ``published-data`` of ``[[columns]]``.
    """
    begins = re.match(rf"{re.escape(published)}(?![\w-])", ours) is not None
    return begins and "not comparable" not in ours and re.search(r"\d of [\d,]+ ", ours) is None


def read_outcomes(cells: Sequence[Cell], data_dir: Path) -> tuple[Outcome, ...]:
    """Read the outcome of every cell from its folder."""
    return tuple(_outcome(cell, data_dir) for cell in cells)


def _outcome(cell: Cell, data_dir: Path) -> Outcome:
    folder = RunFolder(cell.path)
    if folder.is_finished:
        return Outcome(cell, "finished", summary=folder.summary())
    missing = missing_data(cell.experiment, data_dir) if cell.experiment else None
    if missing:
        return Outcome(cell, "no data", missing)
    if cell.pending:
        return Outcome(cell, "not run", cell.pending)
    failed = failure(cell)
    return Outcome(cell, "failed", failed) if failed else Outcome(cell, "not run")
