"""New rows of a table, for models that predict one label."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedgraph.data.base import CohortData
from fedgraph.data.columns.columns import Floats
from fedgraph.data.columns.table import Table
from fedgraph.data.examples import ExampleSplit, row_table
from fedgraph.data.partition import Indices
from fedgraph.data.preprocessing import NewData, Preprocessing, label_answers
from fedgraph.data.preprocessing.preprocessing import Scales
from fedgraph.models import TaskSpec
from fedgraph.support.errors import DataError, counted

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class NewRows(NewData):
    """New rows, encoded but not scaled.

    Attributes
    ----------
    values : ``[rows, inputs]``, NaN for missing numbers.
    targets : classes, or numbers in their unit, ``[rows]``, NaN where unknown; None without a column of labels.
    where : names the file in messages.
    measure : measures scales from values and targets of a client's rows.
    notes : see :class:`NewData`.
    """

    task: TaskSpec
    values: Floats
    targets: Floats | None
    rows: Mapping[str, Indices]
    where: str
    measure: Callable[[Floats, Floats | None], dict[str, Tensor]]
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The clients whose rows these are."""
        return tuple(self.rows)

    def measured(self, name: str, like: Scales) -> dict[str, Tensor]:
        """See :class:`NewData`."""
        own = self.rows[name]
        try:
            return self.measure(self.values[own], None if self.targets is None else self.targets[own])
        except DataError as error:
            raise error.at(self.where) from None

    def cohort(self, scales: Scales) -> CohortData:
        """See :class:`NewData`."""
        values, scaled = torch.from_numpy(self.values), torch.zeros(self.values.shape, dtype=torch.float64)
        targets = np.full(len(values), np.nan) if self.targets is None else self.targets.copy()
        for place, own in enumerate(self.rows.values()):
            scale = Preprocessing.input_scale({name: each[place] for name, each in scales.items()})
            scaled[own] = scale.inputs(values[own])
            targets[own] = (targets[own] - scales["mean"][place].item()) / scales["std"][place].item()
        goal = torch.from_numpy(np.nan_to_num(targets))
        goal = goal.long() if self.task.kind == "classification" else goal.float()[:, None]
        split = ExampleSplit(scaled.float(), goal, row_table(list(self.rows.values())))
        mean, std = scales["mean"].float(), scales["std"].float()
        return CohortData(self.names, self.task, {"test": split}, mean, std)

    def known(self, data: CohortData) -> CohortData | None:
        """See :class:`NewData`: the labelled rows."""
        if self.targets is None or np.isnan(self.targets).all():
            return None
        split = data.splits["test"]
        assert isinstance(split, ExampleSplit)
        known = [own[~np.isnan(self.targets[own])] for own in self.rows.values()]
        return replace(data, splits={"test": replace(split, rows=row_table(known))})

    def answers(self, data: CohortData, outputs: Tensor) -> pd.DataFrame:
        """Return the columns ``client``, ``row`` (from 1), ``label`` where known, ``predicted``, and probabilities."""
        import pandas as pd

        parts = []
        for place, (name, own) in enumerate(self.rows.items()):
            targets = None if self.targets is None else torch.from_numpy(self.targets[own])
            if targets is not None and self.task.kind == "classification":
                targets = targets.nan_to_num(-1).long()
            columns = label_answers(self.task, outputs[place, : len(own)], targets)
            parts.append(pd.DataFrame({"client": name, "row": own + 1, **columns}))
        return pd.concat(parts, ignore_index=True).sort_values("row", ignore_index=True)


def rows_by_client(table: Table, column: str | None, client: str | None, unnamed: str) -> dict[str, Indices]:
    """Return the rows of each client, by a column if there is one. Raises DataError if it has no row of ``client``."""
    if column is None or column not in table.names:
        return {unnamed if client is None else client: np.arange(table.num_rows)}
    codes, owners = table.names_in(column)
    found = {owner: np.flatnonzero(codes == place) for place, owner in enumerate(owners)}
    if client is None:
        return found
    if client not in found:
        raise DataError(f"{table.where} has no row of '{client}' in its column '{column}'; it has {_some(owners)}")
    return {client: found[client]}


def check_columns(table: Table, wanted: Sequence[str]) -> None:
    """Raise DataError for columns that a table lacks."""
    absent = [name for name in wanted if name not in table.names]
    if absent:
        raise DataError(
            f"{table.where} has no column {_some(absent)}, from which the models predict; its columns: "
            f"{_some(table.names)}"
        )


def column_notes(table: Table, used: Sequence[str], rows: Mapping[str, Indices], values: Floats) -> tuple[str, ...]:
    """Return notes on unused columns, rows without a client, and missing values."""
    notes = []
    unused = [name for name in table.names if name not in used]
    if unused:
        notes.append(f"unused, as the models were trained without: {_some(unused)}")
    unassigned = table.num_rows - sum(map(len, rows.values()))
    if unassigned:
        notes.append(f"{counted(unassigned, 'row')} without a client left out")
    gaps = int(np.isnan(values).any(1).sum())
    if gaps:
        notes.append(f"numbers are missing in {counted(gaps, 'row')}, and replaced by the mean, as in training")
    return tuple(notes)


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:8])) + (" ..." if len(names) > 8 else "")
