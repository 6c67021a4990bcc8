"""Series from files of columns, CSV and Parquet: a column for each client, or a row for each time and client."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedgraph.data.columns.cells import MISSING, Thousands, is_number, to_floats
from fedgraph.data.columns.table_files import Table, read_table
from fedgraph.data.series.layout import Choice, Layout, infer_layout
from fedgraph.data.series.stamps import Clock, Times
from fedgraph.data.series.times import IF_CLOCK_WENT_BACK, joined_steps
from fedgraph.support.errors import DataError


class Readings(NamedTuple):
    """The contents of a file.

    Attributes
    ----------
    values : float32 ``[time, clients, features]``, NaN where there is no reading.
    names : of the clients; empty if all columns belong to one unnamed client.
    times : datetime64[s] ``[time]``.
    by : the column that names clients, or empty.
    rows : int64 ``[time, 2]``: the first row of each time in the file, from 1, and the position of its client; None if
        each column is a client.
    clock : {"", "UTC", "local"}
        What the times are in.
    """

    values: NDArray[np.float32]
    names: list[str]
    times: Times | None
    features: tuple[str, ...]
    by: str
    rows: NDArray[np.int64] | None
    notes: tuple[str, ...]
    clock: Clock


class Reading(NamedTuple):
    """How a file is read: its columns, missing values, and the clients to read.

    Attributes
    ----------
    choice : the settings on its columns.
    missing : texts that mean missing, in addition to the usual ones.
    only, without : the clients to read (None for all), and those to skip without looking at their cells.
    """

    choice: Choice = Choice()
    missing: tuple[str, ...] = ()
    thousands: Thousands | None = None
    only: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()

    def wants(self, name: str) -> bool:
        """Return whether a client is read."""
        return (self.only is None or name in self.only) and name not in self.without


DEFAULT_READING = Reading()


def read_column_file(path: Path, how: Reading = DEFAULT_READING) -> Readings:
    """Read a .csv, .csv.gz or .parquet file.

    Its columns are interpreted by :mod:`fedgraph.data.columns.table_files`,
    :mod:`fedgraph.data.series.time_columns` and :mod:`fedgraph.data.series.layout`. Raises DataError for invalid cells
    and ambiguous columns.
    """
    table = read_table(path, missing=(*MISSING, *how.missing), thousands=how.thousands)
    layout, table = infer_layout(table, how.choice)
    if not layout.values:
        raise DataError("holds no readings")
    notes, clock = (*table.notes, *layout.notes), layout.clock
    if clock == "UTC":
        notes += ("times are in UTC",)
    if layout.client is not None:
        return _read_long(table, layout, how)._replace(notes=notes)
    wanted = [name for name in layout.values if layout.of_one or how.wants(name)]
    values = np.full((table.num_rows, len(layout.values)), np.nan, dtype=np.float32)
    for place, name in enumerate(layout.values):
        if name in wanted:
            values[:, place] = _numbers(table, name, layout.of_one)
    if layout.of_one:
        return Readings(values[:, None], [], layout.times, layout.values, "", None, notes, clock)
    if len(layout.values) > 1:
        notes += ("each column is a client",)
    return Readings(values[:, :, None], list(layout.values), layout.times, ("value",), "", None, notes, clock)


def _read_long(table: Table, layout: Layout, how: Reading) -> Readings:
    """Return the readings of a file with a row for each time and client, in order of time; clients by first row."""
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
            f"each time and client (clients are named by '{layout.client}'; set [data] client-column for another "
            f"column); {IF_CLOCK_WENT_BACK}",
            quoted=at,
        )
    unwanted = np.array([not how.wants(name) for name in names])[place]
    values = np.full((int(step.max()) + 1, len(names), len(layout.values)), np.nan, dtype=np.float32)
    for feature, name in enumerate(layout.values):
        values[step, place, feature] = _numbers(table, name, True, unwanted)
    firsts = np.full(len(values), table.num_rows)
    np.minimum.at(firsts, step, np.arange(table.num_rows))
    rows = np.column_stack([firsts + 1, place[firsts]])
    return Readings(values, names, when, layout.values, layout.client, rows, (), layout.clock)


def _count_within(place: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of each row among those of its client, from 0."""
    order = np.argsort(place, kind="stable")
    counts = np.bincount(place)
    found = np.empty(len(place), dtype=np.int64)
    found[order] = np.arange(len(place)) - np.repeat(counts.cumsum() - counts, counts)
    return found


def _numbers(
    table: Table, name: str, is_feature: bool, unwanted: NDArray[np.bool_] | None = None
) -> NDArray[np.float32]:
    """Return a column as numbers. Raises DataError naming the first cell that is not one."""
    column = table.column(name)
    table.check_certain(name)
    if unwanted is not None and unwanted.any():
        column = pc.if_else(pa.array(unwanted), pa.scalar(None, column.type), column)
    values = to_floats(column)
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
