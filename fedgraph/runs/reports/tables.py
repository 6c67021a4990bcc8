"""Results of runs as tables of a terminal, and of a notebook."""

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

    Up to four runs are columns, one for each of their models, if the terminal is wide enough. Others become rows, with
    the means of the last metrics that most runs have, those of the longest forecast.

    Parameters
    ----------
    summaries : sequence of mappings
        Contents of ``summary.json``, one per run.

    Returns
    -------
    RenderableType
        To print on a rich console.
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
    """Return rows of metrics, fairness where it was followed, and of the first metric best, worst and groups."""
    found: dict[str, Sequence[str]] = {metric: list(map(shows, results.row(metric))) for metric in wanted}
    summaries = results.summaries
    if any("fairness" in each for each in summaries):
        last = [shown_number(each.get("fairness", {}).get("last")) for each in summaries]
        found |= results.by_run({"fairness": last})
    if not wanted:
        return found
    first = wanted[0]
    over = extreme_clients(summaries, results.split, first)
    for key, label in EXTREMES.items():
        extremes = [shown_number((values or {}).get(key)) for values in results.row(first)]
        if set(extremes) != {"-"}:
            found[f"{first}, {label}, {over}"] = extremes
    if len(results.groups) <= _MOST_GROUPS:
        found |= {f"{first}, {group}": list(map(shows, results.row(first, group))) for group in results.groups}
    return found


@dataclass(frozen=True)
class _ColumnPerRun:
    """A table with a column for each run, or ``otherwise`` where the terminal is too narrow to read it.

    Without ``otherwise`` columns that do not fit stand in further tables below.
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
        """Return the table of the first runs, columns as wide as numbers and the parts of names: labels alone fold."""
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
    """A table with a row for each run, as wide as the terminal: what is less important is left out where it is narrow.

    Numbers are never cut, and names are broken between words alone.
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
        kept = list(self.columns)
        for label in sorted(kept[1:], key=_importance):
            if names + sum(1 + widths[each] for each in kept) <= options.max_width:
                break
            kept.remove(label)
        table = Table(title=self.title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False)
        table.add_column(_OF_RUNS, min_width=names)
        for label in kept:
            table.add_column(escape(_lines(label)), justify="right", no_wrap=True, min_width=widths[label])
        for place, run in enumerate(self.runs):
            table.add_row(run, *(escape(self.columns[label][place]) for label in kept))
        yield table


_OF_RUNS, _OF_RUNS_AND_SPREAD = "mean of clients", "mean ± std of clients"


def _longest(words: Iterable[str]) -> int:
    return max(map(len, words), default=0)


def _lines(label: str) -> str:
    return label.replace(", ", "\n")


def _importance(label: str) -> int:
    """Return 0 for what is left out first: best clients, then time, traffic and worst clients, then metrics."""
    if EXTREMES["best5"] in label:
        return 0
    return {"seconds": 1, UP: 2}.get(label, 3 if EXTREMES["worst5"] in label else 4)


def as_text(summary: Mapping[str, Any]) -> str:
    """Format table and sentence of one run.

    Returns
    -------
    str
        Plain text, 100 columns wide.
    """
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(results_table([summary]))
    console.print(sentence([summary]), markup=False)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def as_html(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Return what a notebook shows of runs: the table of results, and a sentence."""
    results = Results(summaries)
    rows = [(row, *map(spread_text, results.row(row))) for row in results.rows]
    heads = (f"{results.split} data", *(column.name for column in results.columns))
    return table_as_html("", "", heads, rows, sentence(summaries))
