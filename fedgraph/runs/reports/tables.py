"""Results of runs as tables for terminals and notebooks."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from fedgraph.runs.reports.results import Results, Spread
from fedgraph.runs.reports.words import (
    UP,
    costs,
    extreme_clients,
    lost_clients,
    mean_text,
    sentence,
    shown_number,
    spread_text,
    targets,
    title,
)
from fedgraph.support.notebook import table_as_html
from fedgraph.training import EXTREMES

_MOST_RUNS = 4
"""Number of runs that fit side by side."""

_METRICS_OF_MANY = 3
"""Number of metrics that fit where every run is a row."""

_WIDEST = 10_000
_MOST_GROUPS = 20
_MOST_ROWS = 30

_Part = Mapping[str, Sequence[str]]
"""Rows of a table: a cell for each column, by label."""


def results_table(summaries: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Build a table of results: mean and standard deviation over clients of each metric, then the cost of the run.

    Models of up to four runs are columns, if the terminal is wide enough. Otherwise runs are rows, with the means of
    the last metrics that most runs have (the longest forecast).
    """
    few = len(summaries) <= _MOST_RUNS
    results = Results(summaries, further=few)
    heading, names = title(summaries, results.split), list(map(escape, results.heads))
    took, lost = costs(summaries), lost_clients(summaries, results.split)
    means = _metrics(results, mean_text, results.of_longest(_METRICS_OF_MANY))
    rows = _RowPerRun(heading, names, {**means, **results.by_run({**lost, UP: took[UP], "seconds": took["seconds"]})})
    if not few:
        return rows
    every = len(results.rows) <= _MOST_ROWS
    measured = _metrics(results, spread_text, results.rows if every else results.overall)
    parts = (measured, *map(results.by_run, (lost, targets(summaries), took)))
    caption = "" if every or not results.features else "Single features are in the report."
    return _ColumnPerRun(heading, names, parts, rows if len(summaries) > 1 else None, caption)


def _metrics(results: Results, shows: Callable[[Spread | None], str], wanted: Sequence[str]) -> _Part:
    """Return rows of metrics, of fairness if measured, and of extremes and groups for the first metric."""
    rows: dict[str, Sequence[str]] = {metric: list(map(shows, results.row(metric))) for metric in wanted}
    summaries = results.summaries
    if any("fairness" in each for each in summaries):
        last = [shown_number(each.get("fairness", {}).get("last")) for each in summaries]
        rows |= results.by_run({"fairness": last})
    if not wanted:
        return rows
    first = wanted[0]
    over = extreme_clients(summaries, results.split, first)
    for key, label in EXTREMES.items():
        extremes = [shown_number((values or {}).get(key)) for values in results.row(first)]
        if set(extremes) != {"-"}:
            rows[f"{first}, {label}, {over}"] = extremes
    if len(results.groups) <= _MOST_GROUPS:
        rows |= {f"{first}, {group}": list(map(shows, results.row(first, group))) for group in results.groups}
    return rows


@dataclass(frozen=True)
class _ColumnPerRun:
    """A table with a column per run, or ``otherwise`` if the terminal is too narrow.

    Without ``otherwise``, columns that do not fit go into further tables below.
    """

    title: str
    runs: Sequence[str]
    parts: Sequence[_Part]
    otherwise: RenderableType | None
    caption: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or several."""

        def size(table: Table) -> Measurement:
            return Measurement.get(console, options.update_width(_WIDEST), table)

        counts = range(1, len(self.runs) + 1)
        fitting = [count for count in counts if size(self._table(count, str.split)).minimum <= options.max_width]
        fit = max(fitting, default=0)
        if fit < len(self.runs) and self.otherwise is not None:
            yield self.otherwise
            return
        fit = max(fit, 1)
        whole = self._table(fit, str.splitlines)
        yield whole if size(whole).maximum <= options.max_width else self._table(fit, str.split)
        if fit < len(self.runs):
            rest = {label: of[fit:] for label, of in self.parts[0].items()}
            yield _ColumnPerRun(self.title, self.runs[fit:], (rest,), None)

    def _table(self, count: int, parts: Callable[[str], list[str]]) -> Table:
        """Return the table of the first ``count`` runs, in which only row labels are folded."""
        table = Table(title=self.title, title_justify="left", caption=self.caption or None, caption_justify="left")
        table.add_column(_OF_RUNS_AND_SPREAD)
        for place, run in enumerate(self.runs[:count]):
            cells = (line for part in self.parts for of in part.values() for line in of[place].splitlines())
            table.add_column(run, justify="right", width=max(_longest(parts(run)), _longest(cells)))
        for part in self.parts:
            for label, of in part.items():
                table.add_row(escape(label), *map(escape, of[:count]))
            table.add_section()
        return table


@dataclass(frozen=True)
class _RowPerRun:
    """A table with a row per run, without the less important columns on a narrow terminal.

    Numbers are never cut, and names are broken only between words.
    """

    title: str
    runs: Sequence[str]
    columns: Mapping[str, Sequence[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table."""
        names = _longest(word for run in [*self.runs, _OF_RUNS] for word in run.split())
        widths = {
            label: _longest(line for text in (_lines(label), *of) for line in text.splitlines())
            for label, of in self.columns.items()
        }
        labels = list(self.columns)
        for label in sorted(labels[1:], key=_importance):
            if names + sum(1 + widths[each] for each in labels) <= options.max_width:
                break
            labels.remove(label)
        table = Table(title=self.title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False)
        table.add_column(_OF_RUNS, min_width=names)
        for label in labels:
            table.add_column(escape(_lines(label)), justify="right", no_wrap=True, min_width=widths[label])
        for place, run in enumerate(self.runs):
            table.add_row(run, *(escape(self.columns[label][place]) for label in labels))
        yield table


_OF_RUNS, _OF_RUNS_AND_SPREAD = "mean of clients", "mean ± std of clients"


def _longest(words: Iterable[str]) -> int:
    return max(map(len, words), default=0)


def _lines(label: str) -> str:
    return label.replace(", ", "\n")


def _importance(label: str) -> int:
    """Return the rank of a column, 0 for the first to leave out."""
    if EXTREMES["best5"] in label:
        return 0
    return {"seconds": 1, UP: 2}.get(label, 3 if EXTREMES["worst5"] in label else 4)


def as_text(summary: Mapping[str, Any]) -> str:
    """Format the table and sentence of one run as plain text, 100 columns wide."""
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(results_table([summary]))
    console.print(sentence([summary]), markup=False)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def as_html(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of results and the sentence as HTML, for notebooks."""
    results = Results(summaries)
    rows = [(row, *map(spread_text, results.row(row))) for row in results.rows]
    heads = (f"{results.split} data", *(column.name for column in results.columns))
    return table_as_html("", "", heads, rows, sentence(summaries))
