"""Preprocessing of labelled tables, and the scales of clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph.data.columns.columns import Floats, read_categories
from fedgraph.data.columns.table import Table
from fedgraph.data.own import UNNAMED
from fedgraph.data.preprocessing import Form, NewData
from fedgraph.data.tables.encoded import encode_inputs_like, encoded_targets
from fedgraph.data.tables.new_rows import NewRows, check_columns, column_notes, rows_by_client
from fedgraph.data.tables.options import TableSettings
from fedgraph.support.errors import DataError, counted

_LEAST_ROWS = 20
"""Fewest rows to measure the scale of an unknown client."""


class TableForm(Form):
    """How a table is encoded.

    Attributes
    ----------
    settings : with the features in order, and the values of all that are words, classes included.
    """

    settings: TableSettings

    def read(self, place: Path, client: str | None) -> NewData:
        """See :class:`Form`; the label and the column of clients are optional."""
        settings = self.settings
        columns = settings.features or ()
        table = settings.read(place, columns)
        check_columns(table, columns)
        labelled = settings.label in table.names
        for name in (*columns, *([settings.label] if labelled else [])):
            self._check_known(table, name)
        rows = rows_by_client(table, settings.client_column, client, UNNAMED)
        advice = "leave cells empty where nothing is known"
        every = np.arange(table.num_rows)
        values = encode_inputs_like(table, settings, self.task.features, every, "those of training", advice)
        targets = encoded_targets(table, settings)[0] if labelled else None
        used = (*columns, settings.label, settings.client_column or "")
        return NewRows(
            self.task, values, targets, rows, table.where, self._measure, column_notes(table, used, rows, values)
        )

    def _measure(self, values: Floats, targets: Floats | None) -> dict[str, Tensor]:
        settings = self.settings
        if settings.scaling == "client":
            if len(values) < _LEAST_ROWS:
                few = f"{counted(len(values), 'row')} {'is' if len(values) == 1 else 'are'} too few"
                raise DataError(f"{few} to measure a scale, which needs {_LEAST_ROWS}")
            if settings.task == "regression" and (targets is None or np.isnan(targets).all()):
                raise DataError(f"the scale of '{settings.label}' cannot be measured, as no row has it")
        numeric = np.array([name.partition("=")[0] not in settings.categories for name in self.task.features])
        return measured_scales(values, np.zeros(len(values)) if targets is None else targets, numeric, settings)

    def _check_known(self, table: Table, name: str) -> None:
        """Raise DataError for categories unknown in training."""
        listed = self.settings.categories.get(name)
        if listed is None:
            return
        known_here = set(listed)
        unknown = [value for value in read_categories(table, name)[1] if value not in known_here]
        if unknown:
            known = ", ".join(map(repr, listed[:8])) + (" ..." if len(listed) > 8 else "")
            raise DataError(
                f"column '{name}' of {table.where} holds {', '.join(map(repr, unknown[:5]))}, unknown in training "
                f"({known}): leave such cells empty to count them as missing"
            )


def measured_scales(
    values: Floats, targets: Floats, numeric: NDArray[np.bool_], settings: TableSettings
) -> dict[str, Tensor]:
    """Measure the scales of a client on its rows.

    See :class:`fedgraph.data.preprocessing.Preprocessing`.

    Parameters
    ----------
    values : ``[rows, inputs]``, NaN for missing numbers.
    targets : ``[rows]``.
    numeric : which inputs are numbers, ``[inputs]``.
    settings : ``scaling`` and ``task`` decide whether inputs and targets are scaled.
    """
    centre, spread = np.zeros(values.shape[1]), np.ones(values.shape[1])
    mean, deviation = 0.0, 1.0
    if settings.scaling == "client":
        found = centre_and_spread(values)
        centre, spread = np.where(numeric, found[0], centre), np.where(numeric, found[1], spread)
        if settings.task == "regression":
            mean, deviation = (float(part[0]) for part in centre_and_spread(targets[:, None]))
    numbers = {"centre": centre, "spread": spread, "fill": np.zeros_like(centre), "mean": mean, "std": deviation}
    return {name: torch.as_tensor(value, dtype=torch.float64) for name, value in numbers.items()}


def centre_and_spread(values: Floats) -> tuple[Floats, Floats]:
    """Return mean and deviation of each column without NaN; 0 and 1 for an empty column, 1 for a constant one."""
    present = np.isfinite(values)
    count = np.maximum(present.sum(0), 1)
    centre = np.where(present, values, 0.0).sum(0) / count
    spread = np.sqrt((np.where(present, values - centre, 0.0) ** 2).sum(0) / count)
    return centre, np.where(spread > 1e-12, spread, 1.0)
