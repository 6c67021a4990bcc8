"""The cells of a table: for each row, column and seed a resolved experiment, in a run folder named by its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedgraph.experiment import Experiment, built_ins, file_contents, load_experiment
from fedgraph.reproduce.table import ColumnTable, ProfileTable, PublishedTable, RowTable
from fedgraph.strategies.engine.chosen import ChosenMethod
from fedgraph.support.errors import ExperimentError
from fedgraph.support.files import json_digest

_WITHOUT_EFFECT = {
    "experiment": ("name", "wait", "timeout"),
    "train": ("workers", "threads", "compile"),
    "f3": ("workers",),
    "vfl": ("workers",),
}
"""Keys that change the name or speed of a run, but not its results."""


@dataclass(frozen=True)
class Cell:
    """One run of a table.

    Attributes
    ----------
    row, column : str
        Label of the row and key of the column.
    seed : int
        Seed of the run.
    experiment : Experiment or None
        Resolved, with the defaults of its method; None if it is invalid.
    path : Path
        Its run folder, which need not exist.
    problem : str
        Why the experiment is invalid.
    nodes : int or None
        Number of nodes; None for that of the command line.
    pending : str
        What it waits for, if its settings are not chosen yet; ``experiment`` is then that of a trial.
    chosen : str
        Description of the chosen settings and of the values tried.
    after : Cell or None
        The cell whose run this one builds on.
    """

    row: str
    column: str
    seed: int
    experiment: Experiment | None
    path: Path
    problem: str = ""
    nodes: int | None = None
    pending: str = ""
    chosen: str = ""
    after: Cell | None = None


@dataclass(frozen=True)
class CellMaker:
    """Factory of the cells of a table in a profile.

    Attributes
    ----------
    table : PublishedTable
        The table.
    profile : ProfileTable
        The profile.
    overrides : tuple of str
        Overrides of the command line, applied last.
    cells_dir : Path
        Folder of the cells of all tables.
    experiments_dir : Path
        Folder that is searched first for experiment files.
    """

    table: PublishedTable
    profile: ProfileTable
    overrides: tuple[str, ...]
    cells_dir: Path
    experiments_dir: Path

    def places(self) -> list[tuple[RowTable, ColumnTable]]:
        """Return the rows and columns that are run, column by column."""
        columns = self.table.columns_in(self.profile)
        return [(row, column) for column in columns for row in self.table.rows if row.runs_in(column.key)]

    def cell(self, row: RowTable, column: ColumnTable, seed: int, chosen: Sequence[str] = ()) -> Cell:
        """Make a cell. Later overrides win: table, column, profile, row, ``chosen``, seed, command line."""
        after = next((self.cell(first, column, seed) for first in self.table.rows if first.label == row.after), None)
        of_row = [*row.set, *row.set_for.get(column.key, ())]
        if after is not None:
            if after.experiment is None:
                return replace(after, row=row.label)
            of_row = [override.replace("{run}", str(after.path)) for override in of_row]
        every = [*self.table.set_in(column, self.profile), *of_row, *chosen, "experiment.seed={seed}", *self.overrides]
        file = self.profile.experiment_file(row, column, self.experiments_dir)
        try:
            experiment = resolved(
                load_experiment(file, [override.replace("{seed}", str(seed)) for override in every], row.method)
            )
        except ExperimentError as error:
            nowhere = self.cells_dir / "cannot-be-resolved"
            return Cell(row.label, column.key, seed, None, nowhere, str(error))
        path = folder_of(experiment, self.cells_dir)
        return Cell(row.label, column.key, seed, experiment, path, nodes=row.nodes, after=after)


def resolved(experiment: Experiment) -> Experiment:
    """Return the experiment with only the table of its method, and all defaults filled in.

    Raises ExperimentError when the method is unknown or its table is invalid.
    """
    return ChosenMethod(experiment).resolved()


def digest(experiment: Experiment) -> str:
    """Return a digest of the computation of a resolved experiment, independent of its name and output folder."""
    tables = tables_that_count(experiment.as_dict())
    if experiment.graph.source == "run":
        # The name of a cell identifies its content, independent of the folder of all cells.
        tables["graph"]["path"] = Path(str(experiment.graph.path)).name
    return json_digest(tables, default=str)[:12]


def content_digest(experiment: Experiment) -> str:
    """Return a digest of the content of the user's own files, preceded by a hyphen; empty if there are none."""
    contents = file_contents(experiment)
    return f"-{json_digest(contents)[:8]}" if contents else ""


def tables_that_count(tables: Mapping[str, Mapping[str, Any]], method: str | None = None) -> dict[str, dict[str, Any]]:
    """Return the tables and keys of an experiment that change its results, of methods only ``method``'s, if given."""
    others = _other_tables(method)
    return {
        name: {key: value for key, value in table.items() if key not in _WITHOUT_EFFECT.get(name, ())}
        for name, table in tables.items()
        if name not in others
    }


def overrides_that_count(overrides: Sequence[str], method: str | None = None) -> tuple[str, ...]:
    """Return the overrides ``table.key=value`` that change results; ``method`` as for :func:`tables_that_count`."""
    idle, others = {f"{table}.{key}" for table, keys in _WITHOUT_EFFECT.items() for key in keys}, _other_tables(method)
    keys = ((override, override.partition("=")[0].strip()) for override in overrides)
    return tuple(override for override, key in keys if key not in idle and key.partition(".")[0] not in others)


def _other_tables(method: str | None) -> set[str]:
    return {"output", *(built_ins() if method is not None else ())} - {method}


def text_digest(*texts: str) -> str:
    """Return a digest of texts: twelve hexadecimal digits."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def folder_of(experiment: Experiment, cells_dir: Path) -> Path:
    """Return the run folder of an experiment: an existing one with the same digest, else the path of a new one.

    Folders from before a key existed are found by resolving their experiments again, with the key's default. A folder
    is of one content of the user's own files.
    """
    data = getattr(experiment.data, "set", "data")
    stem = f"{data}-{experiment.method.name}-seed{experiment.experiment.seed}"
    wanted, files = digest(experiment), content_digest(experiment)
    path = cells_dir / f"{stem}-{wanted}{files}"
    if path.is_dir():
        return path
    present = ((folder, existing) for folder, existing in _present(cells_dir, stem) if folder.name.endswith(files))
    return next((folder for folder, existing in present if existing == wanted), path)


def _present(cells_dir: Path, stem: str) -> Iterator[tuple[Path, str | None]]:
    for file in sorted(cells_dir.glob(f"{stem}-*/experiment.toml")):
        yield file.parent, _digest_of_file(file)


@lru_cache(maxsize=4096)
def _digest_of_file(file: Path) -> str | None:
    try:
        return digest(resolved(load_experiment(file)))
    except ExperimentError:
        return None
