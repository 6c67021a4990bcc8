"""Result files: the results of a table by seed, as a CSV file that is versioned with the project.

``fedgraph reproduce sfl-table1 --results simulations/sfl/results`` merges its results into
``simulations/sfl/results/table1-small.csv``: a line for every row, column, metric and seed. Lines of other seeds or
rows stay, unless the settings of their row have changed. Pages take their numbers from these files
(``python -m fedgraph.simulations.pages``).
"""

from __future__ import annotations

import csv
import io
import tomllib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np

from fedgraph.experiment import find_experiment
from fedgraph.reproduce.cells import Cell, overrides_that_count, tables_that_count
from fedgraph.reproduce.results import Results
from fedgraph.reproduce.spreads import Difference, Spread
from fedgraph.reproduce.table import (
    ColumnTable,
    MetricTable,
    Profile,
    ProfileTable,
    PublishedTable,
    PublishedValue,
    RowTable,
)
from fedgraph.reproduce.table_files import load_table
from fedgraph.support.csv_text import as_csv
from fedgraph.support.errors import ExperimentError, if_any
from fedgraph.support.files import json_digest, write_atomically

PUBLISHED = "published"
"""Source of a value printed in the paper, in a file without a table."""


@dataclass(frozen=True)
class ResultLine:
    """A line of a result file, as text.

    Attributes
    ----------
    row, column, metric : str
        Label of the row, key of the column, title of the metric.
    seed : str
        Seed of the run; empty for a mean over seeds.
    value : str
        Value of the run, or mean over seeds, in the unit of the table.
    deviation, seeds : str
        For a mean over seeds: its sample deviation, and the seeds, separated by blanks.
    settings : str
        Digest of the row's settings when it was run.
    source : str
        Commit of the run, or a description of another source.
    """

    row: str
    column: str
    metric: str
    seed: str = ""
    value: str = ""
    deviation: str = ""
    seeds: str = ""
    settings: str = ""
    source: str = ""

    @property
    def place(self) -> tuple[str, str, str]:
        """Row, column and metric."""
        return self.row, self.column, self.metric


_HEADINGS = tuple(field.name for field in fields(ResultLine))


class ResultFile:
    """A result file, with the published values of its table.

    ``simulations/sfl/results/table1-small.csv`` belongs to ``simulations/sfl/tables/table1.toml``. A file without a
    table may have published values as lines with the source ``published``.

    Parameters
    ----------
    path : Path
        The file.

    Attributes
    ----------
    lines : list of ResultLine
        Its lines, in order.

    Raises
    ------
    ExperimentError
        When the file cannot be read, or is not a result file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = read_lines(path)
        self._lines: dict[tuple[str, str, str], list[ResultLine]] = {}
        self._printed: dict[tuple[str, str, str], ResultLine] = {}
        for line in self.lines:
            if line.source == PUBLISHED:
                self._printed[line.place] = line
            else:
                self._lines.setdefault(line.place, []).append(line)

    @property
    def rows(self) -> list[str]:
        """Labels of all rows, in the order of the file."""
        return list(dict.fromkeys(line.row for line in self.lines))

    def spread(self, row: str, column: str, metric: str) -> Spread | None:
        """Return mean and deviation over seeds, or None; ``values`` is empty if only the mean is known."""
        lines = self._lines.get((row, column, metric), [])
        by_seed = {int(line.seed): float(line.value) for line in lines if line.seed}
        if by_seed:
            return Spread.over(by_seed)
        for line in lines:
            return Spread(float(line.value), float(line.deviation) if line.deviation else None, {})
        return None

    def check_known(self, row: str, column: str, metric: str) -> None:
        """Raise ExperimentError for a row, column or metric that neither the file nor its table has."""
        for what, name, known in zip(("row", "column", "metric"), (row, column, metric), self._known, strict=True):
            if name not in known:
                raise ExperimentError(f"{self.path} has no {what} '{name}'{if_any('; known: ', '; '.join(known))}")

    @cached_property
    def _known(self) -> tuple[list[str], list[str], list[str]]:
        rows, columns, metrics = ([line.place[part] for line in self.lines] for part in range(3))
        if self.table is not None:
            rows += [row.label for row in self.table.rows]
            columns += [column.key for column in self.table.columns]
            metrics += [each.title for column in self.table.columns for each in self.table.metrics_of(column)]
        return list(dict.fromkeys(rows)), list(dict.fromkeys(columns)), list(dict.fromkeys(metrics))

    def num_seeds(self, row: str, column: str, metric: str) -> int:
        """Return the number of seeds of a value."""
        lines = self._lines.get((row, column, metric), [])
        single = sum(bool(line.seed) for line in lines)
        return single or max((len(line.seeds.split()) for line in lines), default=0)

    def compared(self, row: str, column: str, metric: str) -> Difference | None:
        """Return the table's reference row minus this one; None without a reference or common seeds."""
        about = None if self.table is None else self.table.table
        if about is None or not about.compare:
            return None
        reference, other = (self.spread(each, column, metric) for each in (about.compare, row))
        return None if reference is None or other is None else Difference.between(reference, other, about.overlap)

    def published(self, row: str, column: str, metric: str) -> PublishedValue | None:
        """Return the value printed in the paper, or None."""
        if self.table is not None:
            in_rows = next((each for each in self.table.rows if each.label == row), None)
            in_columns = next((each for each in self.table.columns if each.key == column), None)
            titles = [each.title for each in self.table.metrics_of(in_columns)] if in_columns else []
            printed = in_rows.published.get(column) if in_rows else None
            if printed is not None and metric in titles:
                value = printed[titles.index(metric)]
                return None if isinstance(value, str) else value
        line = self._printed.get((row, column, metric))
        if line is None:
            return None
        return (float(line.value), float(line.deviation)) if line.deviation else float(line.value)

    def outdated(self) -> list[ResultLine]:
        """Return lines that were measured with other settings than the table has now; those without settings pass."""
        if self.table is None or self._profile is None:
            return []
        table, profile, folder = self.table, self.table.profiles[self._profile], self.path.parent.parent
        now = {
            (row.label, column.key, metric): settings
            for column in table.columns_in(profile)
            for row in table.rows
            if row.runs_in(column.key)
            for metric, settings in declared(table, profile, row, column, folder).items()
        }
        return [line for line in self.lines if line.settings and line.settings != now.get(line.place)]

    @cached_property
    def table(self) -> PublishedTable | None:
        """The table of the file, or None."""
        name = self.path.stem.removesuffix(f"-{self._profile}")
        file = self.path.parent.parent / "tables" / f"{name}.toml"
        return load_table(str(file))[1] if self._profile is not None and file.is_file() else None

    @property
    def _profile(self) -> Profile | None:
        return next((profile for profile in get_args(Profile) if self.path.stem.endswith(f"-{profile}")), None)


def read_lines(path: Path) -> list[ResultLine]:
    """Read the lines of a result file. Raises ExperimentError for an invalid file, naming the line."""
    try:
        rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"))))
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(f"cannot read the result file {path}: {error}") from None
    if not rows or tuple(rows[0]) != _HEADINGS:
        raise ExperimentError(f"{path} is not a result file: its first line must be '{','.join(_HEADINGS)}'")
    lines = []
    for number, entries in enumerate(rows[1:], 2):
        if len(entries) != len(_HEADINGS):
            raise ExperimentError(f"{path}, line {number}: expected {len(_HEADINGS)} entries, got {len(entries)}")
        line = ResultLine(*entries)
        if not (_is_number(line.value) and (not line.deviation or _is_number(line.deviation))):
            raise ExperimentError(
                f"{path}, line {number}: value and deviation must be numbers, got '{','.join(entries)}'"
            )
        if line.seed and not line.seed.isdecimal():
            raise ExperimentError(f"{path}, line {number}: a seed must be a whole number, got '{line.seed}'")
        lines.append(line)
    return lines


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def export(results: Results, cells: Iterable[Cell], experiments_dir: Path, folder: Path) -> Path:
    """Merge the results of the finished ``cells`` into the result file of their table and profile.

    Other finished runs of the table are ignored: a single seed would replace a mean over several. ``experiments_dir``
    is the folder of the table's file, ``folder`` that of the result file, whose path is returned.

    Raises
    ------
    ExperimentError
        When an existing file is not a result file, or the file cannot be written.
    """
    paper = f"{experiments_dir.parent.name}-"
    path = folder / f"{results.name.removeprefix(paper)}-{results.profile_name}.csv"
    wanted = {(cell.row, cell.column, cell.seed) for cell in cells}
    merge_into(path, _measured_lines(results, wanted, experiments_dir), _places(results))
    return path


def merge_into(path: Path, new: Sequence[ResultLine], order: Sequence[tuple[str, str, str]] = ()) -> None:
    """Merge lines into a result file, created if missing; see :func:`merged`. Raises ExperimentError."""
    _write(path, merged(read_lines(path) if path.exists() else [], new, order))


def _write(path: Path, lines: Iterable[ResultLine]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, as_csv([_HEADINGS, *(astuple(line) for line in lines)]).encode())
    except OSError as error:
        raise ExperimentError(f"--results: cannot write {path}: {error}") from None


def check_no_overrides(overrides: Sequence[str]) -> None:
    """Raise ExperimentError for overrides of the command line, which a result file does not record."""
    if overrides:
        raise ExperimentError(
            f"--results cannot be combined with --set {overrides[0]}: a result file records only the labels of rows; "
            "add a row with this setting to the table"
        )


def merged(
    old: Sequence[ResultLine], new: Sequence[ResultLine], order: Sequence[tuple[str, str, str]] = ()
) -> list[ResultLine]:
    """Merge lines: for a row, column and metric in both, keep old lines of other seeds with the same settings.

    A mean over seeds is replaced by new single seeds. ``order`` is that of rows, columns and metrics; lines that are
    not in it come last.
    """
    settings = {line.place: line.settings for line in new}
    replaced = {(line.place, line.seed) for line in new}
    remaining = [
        line
        for line in old
        if line.place not in settings
        or (line.seed and line.settings == settings[line.place] and (line.place, line.seed) not in replaced)
        or line.source == PUBLISHED
    ]
    every = dict.fromkeys([*order, *(line.place for line in remaining)])
    places = {place: number for number, place in enumerate(every)}
    return sorted([*remaining, *new], key=lambda line: (places.get(line.place, len(places)), int(line.seed or -1)))


def _places(results: Results) -> list[tuple[str, str, str]]:
    return [
        (row.label, column.key, metric.title)
        for column in results.table.columns
        for row in results.table.rows
        for metric in results.table.metrics_of(column)
    ]


def _measured_lines(
    results: Results, wanted: Collection[tuple[str, str, int]], experiments_dir: Path
) -> list[ResultLine]:
    lines = []
    for column in results.columns:
        for row in results.rows(column):
            if not results.at(row, column):
                continue
            settings = declared(results.table, results.profile, row, column, experiments_dir)
            for metric in results.table.metrics_of(column):
                for outcome in results.at(row, column):
                    value = results.value(outcome, row, column, metric)
                    chosen = (row.label, column.key, outcome.cell.seed) in wanted
                    if chosen and value is not None:
                        place = (row.label, column.key, metric.title)
                        seed, commit = str(outcome.cell.seed), f"commit {outcome.commit[:12]}"
                        lines.append(
                            ResultLine(*place, seed, f"{value:.9g}", settings=settings[metric.title], source=commit)
                        )
    return lines


def declared(
    table: PublishedTable, profile: ProfileTable, row: RowTable, column: ColumnTable, experiments_dir: Path
) -> dict[str, str]:
    """Return by metric a digest of what a table and its experiment files declare for a value, without seeds and labels.

    Settings are not resolved, so that a new key with a default does not change the digest; keys without effect on
    results, and tables of other methods, do not count.
    """

    def run(row: RowTable) -> dict[str, Any]:
        file = find_experiment(profile.experiment_file(row, column, experiments_dir))
        overrides = [*table.set_in(column, profile), *row.set, *row.set_for.get(column.key, ())]
        return {
            "method": row.method,
            "experiment": tables_that_count(tomllib.loads(file.read_text(encoding="utf-8")), row.method),
            "set": overrides_that_count(overrides, row.method),
            "choose": row.choose,
        }

    first = next((each for each in table.rows if each.label == row.after), None)
    declaration = {
        "run": run(row),
        "after": None if first is None else run(first),
        "client": row.client or column.client,
        "suffix": row.suffix,
    }

    def with_metric(metric: MetricTable) -> dict[str, Any]:
        return {**declaration, "metric": metric.model_dump(exclude_defaults=True, exclude={"title"})}

    return {each.title: json_digest(with_metric(each), default=str)[:8] for each in table.metrics_of(column)}
