"""Cells of rows whose settings are chosen on validation data.

Every combination of values is a trial, run with ``choose-seeds``. The row is run with the best combination and all
seeds; trials with the same seed are reused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any

from fedgraph.reproduce.cells import Cell, CellMaker
from fedgraph.reproduce.execution import failure
from fedgraph.reproduce.quantity import Quantity
from fedgraph.reproduce.table import ColumnTable, RowTable
from fedgraph.runs import RunFolder
from fedgraph.support.csv_text import as_csv


@dataclass(frozen=True)
class Trial:
    """One candidate of a row in a column.

    ``settings`` are its values by key, ``cells`` its runs, one per seed, ``quantity`` the criterion on validation data.
    """

    settings: tuple[tuple[str, Any], ...]
    cells: tuple[Cell, ...]
    quantity: Quantity

    @property
    def overrides(self) -> list[str]:
        """The settings as ``table.key=value``."""
        # JSON is TOML except for tables and null, which are not allowed here.
        return [f"{key}={json.dumps(value)}" for keys, value in self.settings for key in keys.split()]

    @property
    def is_over(self) -> bool:
        """Whether all runs have finished or failed."""
        return all(RunFolder(cell.path).is_finished or failure(cell) is not None for cell in self.cells)

    @property
    def value(self) -> float | None:
        """Mean over seeds; None if a run failed or has no finite value, for example because it diverged."""
        if any(failure(cell) is not None for cell in self.cells):
            return None
        values = [self.quantity.value(RunFolder(cell.path).summary()) for cell in self.cells]
        finite = [value for value in values if value is not None]
        return fmean(finite) if len(finite) == len(values) else None


@dataclass(frozen=True)
class Choice:
    """Candidates for the settings of a row in a column; ``tried`` are the values by key."""

    row: RowTable
    column: ColumnTable
    tried: dict[str, tuple[Any, ...]]
    trials: tuple[Trial, ...]

    @property
    def waits_for(self) -> str:
        """Description of the missing trials; empty if all are over."""
        over = sum(trial.is_over for trial in self.trials)
        if over == len(self.trials):
            return ""
        return f"its settings are not chosen yet: {over} of {len(self.trials)} trials are over"

    @property
    def missing(self) -> list[Cell]:
        """Runs of trials that are not over."""
        return [cell for trial in self.trials if not trial.is_over for cell in trial.cells]

    @property
    def best(self) -> Trial | None:
        """The trial with the best value on validation data, the first of equals; None if all have failed."""
        measured = [(value, trial) for trial in self.trials if (value := trial.value) is not None]
        if not measured:
            return None
        choose = min if measured[0][1].quantity.better == "lower" else max
        return choose(measured, key=lambda each: each[0])[1]

    def words(self, best: Trial) -> str:
        """Describe the choice and the values tried."""
        parts = [chosen_of(key, value, self.tried[key]) for key, value in best.settings]
        seeds = ", ".join(str(cell.seed) for cell in best.cells)
        return f"chosen by {best.quantity}, seed{'s' if len(best.cells) > 1 else ''} {seeds}: {'; '.join(parts)}"


def chosen_of(key: str, value: Any, tried: Sequence[Any]) -> str:
    """Describe the chosen value of a key and the values tried, and whether it is the smallest or largest number."""
    numbers = [one for one in tried if isinstance(one, int | float) and not isinstance(one, bool)]
    at_end = len(numbers) == len(tried) > 1 and value in (min(numbers), max(numbers))
    others = ", ".join(json.dumps(one) for one in tried)
    return f"{key} {json.dumps(value)} of {others}{' (at the end of what was tried)' if at_end else ''}"


def plan_choices(maker: CellMaker, seeds: Sequence[int]) -> list[Choice]:
    """Return all choices of a table; by default trials use the first of the table's ``seeds``."""
    return [_choice(maker, row, column, seeds) for row, column in maker.places() if row.choose]


def plan_cells(maker: CellMaker, seeds: Sequence[int], choices: Sequence[Choice] = ()) -> list[Cell]:
    """Return all cells of a table, ordered by seed; those without chosen settings are pending."""
    by_place = {(choice.row.label, choice.column.key): choice for choice in choices}
    return [
        _settled(maker, row, column, seed, by_place.get((row.label, column.key)))
        for seed in seeds
        for row, column in maker.places()
    ]


def trials_csv(choices: Sequence[Choice]) -> str:
    """Format trials as CSV: a line per trial and seed, with its value on validation data."""
    lines: list[tuple[Any, ...]] = [("row", "column", "settings", "seed", "by", "value", "chosen", "run")]
    for choice in choices:
        best = None if choice.waits_for else choice.best
        for trial in choice.trials:
            for cell in trial.cells:
                folder = RunFolder(cell.path)
                value = trial.quantity.value(folder.summary()) if folder.is_finished else None
                about = (cell.row, cell.column, " ".join(trial.overrides), cell.seed, str(trial.quantity))
                lines.append((*about, value, trial is best, cell.path.name))
    return as_csv(lines)


def _choice(maker: CellMaker, row: RowTable, column: ColumnTable, seeds: Sequence[int]) -> Choice:
    table = maker.table
    quantity = table.choice_quantity(row, column)
    # Settings given on the command line are not tuned.
    overridden = {override.partition("=")[0].strip() for override in maker.overrides}
    tried = {keys: values for keys, values in row.choose.items() if overridden.isdisjoint(keys.split())}
    trials = []
    for values in product(*tried.values()):
        settings = tuple(zip(tried, values, strict=True))
        trial = Trial(settings, (), quantity)
        cells = [maker.cell(row, column, seed, trial.overrides) for seed in table.table.choose_seeds or seeds[:1]]
        trials.append(replace(trial, cells=tuple(cells)))
    return Choice(row, column, tried, tuple(trials) if tried else ())


def _settled(maker: CellMaker, row: RowTable, column: ColumnTable, seed: int, choice: Choice | None) -> Cell:
    if choice is None or not choice.trials:
        return maker.cell(row, column, seed)
    nowhere = Cell(row.label, column.key, seed, None, maker.cells_dir / "not-chosen-yet")
    if choice.waits_for:
        first = choice.trials[0].cells[0]
        return replace(nowhere, experiment=first.experiment, pending=choice.waits_for)
    best = choice.best
    if best is None:
        reasons = dict.fromkeys(filter(None, map(failure, _cells(choice))))
        return replace(nowhere, problem=f"every trial has failed: {'; '.join(reasons) or 'none has a finite value'}")
    return replace(maker.cell(row, column, seed, best.overrides), chosen=choice.words(best))


def _cells(choice: Choice) -> Iterator[Cell]:
    for trial in choice.trials:
        yield from trial.cells
