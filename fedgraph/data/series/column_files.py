"""Series from files of columns, CSV and Parquet: a column for each client, or a row for each time and client."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedgraph.data.columns.cells import MISSING, Thousands, floats_of, is_number
from fedgraph.data.columns.table_files import Table, read_table
from fedgraph.data.series.layout import Choice, Layout, layout_of
from fedgraph.data.series.stamps import Times
from fedgraph.data.series.times import joined_steps
from fedgraph.support.errors import DataError


class Readings(NamedTuple):
    """The contents of a file.

    Attributes
    ----------
    values : float32 ``[time, clients, features]``, NaN where there is no reading.
    names : of the clients; empty where all columns are of one, whom the file does not name.
    times : datetime64[s] ``[time]``.
    by : what tells clients, in words.
    rows : int64 ``[time, 2]``: the first row of the file of each time, counted from 1, and the position of its client;
        None where there is a column for each client.
    """

    values: NDArray[np.float32]
    names: list[str]
    times: Times | None
    features: tuple[str, ...]
    by: str
    rows: NDArray[np.int64] | None
    notes: tuple[str, ...]


class Reading(NamedTuple):
    """How a file is read: the meaning of its columns, what marks missing cells, and the clients to read.

    Attributes
    ----------
    choice : the settings on its columns.
    missing : texts that mean missing, in addition to the usual ones.
    only, without : the clients that are wanted, None for all, and those that are not: their cells are not looked at.
    """

    choice: Choice = Choice()
    missing: tuple[str, ...] = ()
    thousands: Thousands | None = None
    only: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()

    def wants(self, name: str) -> bool:
        """Return whether the readings of a client are wanted."""
        return (self.only is None or name in self.only) and name not in self.without


AS_IT_IS = Reading()


def read_column_file(path: Path, how: Reading = AS_IT_IS) -> Readings:
    """Read a .csv, .csv.gz or .parquet file.

    Cells, times, names of clients and readings are recognised as :mod:`fedgraph.data.columns.table_files`,
    :mod:`fedgraph.data.series.stamps` and :mod:`fedgraph.data.series.layout` say. Raises DataError for cells that are
    not readings, and for columns whose meaning is ambiguous.
    """
    table = read_table(path, missing=(*MISSING, *how.missing), thousands=how.thousands)
    layout, table = layout_of(table, how.choice)
    if not layout.values:
        raise DataError("holds no readings")
    notes = (*table.notes, *layout.notes)
    if layout.client is not None:
        return _of_rows(table, layout, how)._replace(notes=notes)
    wanted = [name for name in layout.values if layout.of_one or how.wants(name)]
    values = np.full((table.num_rows, len(layout.values)), np.nan, dtype=np.float32)
    for place, name in enumerate(layout.values):
        if name in wanted:
            values[:, place] = _numbers(table, name, layout.of_one)
    if layout.of_one:
        return Readings(values[:, None], [], layout.times, layout.values, "", None, notes)
    if len(layout.values) > 1:
        notes += ("each column is a client",)
    return Readings(values[:, :, None], list(layout.values), layout.times, ("value",), "", None, notes)


def _of_rows(table: Table, layout: Layout, how: Reading) -> Readings:
    """Readings of a file with a row for each time and client, in order of time; clients as they come."""
    assert layout.client is not None
    codes, known = table.names_in(layout.client)
    if (codes < 0).any():
        row = table.row_number(int((codes < 0).argmax()))
        raise DataError(f"row {row} has no client in column '{layout.client}': fill it in, or leave the row out")
    order = np.argsort(np.unique(codes, return_index=True)[1])
    place = np.argsort(order)[codes]
    names = [known[code] for code in order]
    times = layout.times
    if times is None:
        when, step = None, _count_within(place)
    else:
        if np.isnat(times).any():
            row = table.row_number(int(np.isnat(times).argmax()))
            raise DataError(f"row {row} has no time: fill it in, or leave the row out")
        times = joined_steps(times, place, names)
        when, step = np.unique(times, return_inverse=True)
    cell = step * len(names) + place
    again = np.flatnonzero(np.bincount(cell)[cell] > 1)
    if len(again) and layout.times is not None:
        first = int(again[0])
        other = int(np.flatnonzero(cell == cell[first])[1])
        at = str(layout.times[first])
        raise DataError(
            f"rows {first + 1} and {other + 1} are both of client '{names[place[first]]}' at {at}: keep one row for "
            f"each time and client (clients are told by '{layout.client}'; another column: [data] client-column)",
            quoted=at,
        )
    unwanted = np.array([not how.wants(name) for name in names])[place]
    values = np.full((int(step.max()) + 1, len(names), len(layout.values)), np.nan, dtype=np.float32)
    for feature, name in enumerate(layout.values):
        values[step, place, feature] = _numbers(table, name, True, unwanted)
    firsts = np.full(len(values), table.num_rows)
    np.minimum.at(firsts, step, np.arange(table.num_rows))
    rows = np.column_stack([firsts + 1, place[firsts]])
    return Readings(values, names, when, layout.values, layout.client, rows, ())


def _count_within(place: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the how manieth row of its client each row is, from 0."""
    order = np.argsort(place, kind="stable")
    counts = np.bincount(place)
    found = np.empty(len(place), dtype=np.int64)
    found[order] = np.arange(len(place)) - np.repeat(counts.cumsum() - counts, counts)
    return found


def _numbers(
    table: Table, name: str, is_feature: bool, unwanted: NDArray[np.bool_] | None = None
) -> NDArray[np.float32]:
    """A column as numbers; DataError that names the first cell that is not one."""
    column = table.column(name)
    table.check_certain(name)
    if unwanted is not None and unwanted.any():
        column = pc.if_else(pa.array(unwanted), pa.scalar(None, column.type), column)
    values = floats_of(column)
    if values is not None:
        return values.astype(np.float32)
    cells = table.texts(name) if column.type != pa.bool_() else column.cast(pa.string())
    cells = pc.if_else(pc.is_valid(column), cells, None).to_pylist()
    row, cell = next((row, cell) for row, cell in enumerate(cells) if cell is not None and not is_number(cell))
    way = "[data] features names others" if is_feature else f'[data] without = ["{name}"] leaves the column out'
    raise DataError(
        f"column '{name}' holds no number in row {row + 1}, but '{cell}': leave the cell empty if nothing was read, or "
        f"add it to [data] missing; {way}",
        quoted=f"'{cell}'",
    )
