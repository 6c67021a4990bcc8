"""Infers the roles of the columns of a file of series: times, names of clients, readings, or none of these.

Where several columns could serve, an error names them and the key that decides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedgraph.data.columns.cells import is_number, to_floats
from fedgraph.data.columns.table import Table
from fedgraph.data.series.stamps import Clock, Times, parse_times
from fedgraph.data.series.time_columns import (
    PARTS_OF_TIMES,
    TIME_WORDS,
    clock_of_columns,
    find_times,
    is_time_column,
    split_words,
)
from fedgraph.support.errors import DataError, quoted

_TELLING = (
    frozenset({"client", "customer", "sensor", "sensors", "station", "stations", "detector", "meter", "device",
               "machine", "household", "home", "house", "turbine", "vehicle", "patient", "user", "asset", "feeder",
               "store", "lclid"}),
    frozenset({"site", "location", "place", "building", "plant", "farm", "region", "zone", "area", "city", "county",
               "country", "district", "zip", "postcode", "road", "segment", "hospital", "clinic", "name"}),
    frozenset({"id", "key", "code"}),
)  # fmt: skip
"""Words in the name of a column that names clients, by decreasing certainty."""

_IDS = {"id", "no", "nr", "row", "rownumber", "record", "unnamed", "level"}
_ROW_NUMBERS = _IDS | {"index", "step", "t", "time", "timestamp", "date", "datetime", "ds", "unix", "epoch"}
"""Words in the name of a column that numbers the rows; other than ``_IDS`` only of the first column."""

_MOST_COUNTED = 10_000
"""Step numbers start below this; larger numbers are times in an unknown unit."""

_FEWEST_COUNTED = 10
"""Fewest rows from which on a column that grows in equal steps numbers them, whatever its name."""

_MOST_DOUBLE = 0.2
"""Share of rows that may repeat time and client by mistake in a column of clients."""


_BETWEEN = "/"
"""Joins the names, and the values, of several columns that name a client together."""


@dataclass(frozen=True)
class Choice:
    """The settings on the columns of a file.

    Attributes
    ----------
    client_columns : tuple of str
        The column that names clients, or several that do so together.
    time_columns : tuple of str
        The column of times, or those of its parts.
    target : str or None
        The column of readings that are forecast.
    features : tuple of str
        The columns of readings that are used, where the settings name them.
    """

    client_columns: tuple[str, ...] = ()
    time_columns: tuple[str, ...] = ()
    target: str | None = None
    features: tuple[str, ...] = ()

    @property
    def client_column(self) -> str | None:
        """The column that names clients, joined from several if need be; None if the settings name none."""
        return _BETWEEN.join(self.client_columns) or None


@dataclass(frozen=True)
class Layout:
    """The roles of the columns of a file.

    Attributes
    ----------
    times : ndarray or None
        Of each row.
    client : str or None
        The column that names the client of each row; None where each of ``values`` is a client, or all are of one.
    values : tuple of str
        The columns with readings.
    of_one : bool
        Whether ``values`` are all of one client.
    notes : tuple of str
        What was left out, and why.
    clock : {"", "UTC", "local"}
        What the times are in.
    """

    times: Times | None
    client: str | None
    values: tuple[str, ...]
    of_one: bool
    notes: tuple[str, ...]
    clock: Clock


def infer_layout(table: Table, choice: Choice) -> tuple[Layout, Table]:
    """Infer the roles of the columns of a table; several client columns are joined to one.

    Raises DataError for columns that the settings name and the table lacks, for cells that are not times, and where it
    is ambiguous which column names clients.

    Returns
    -------
    Layout
        Of the columns.
    Table
        With one column of clients where several name them together.
    """
    if len(choice.client_columns) > 1:
        table = _joined(table, choice.client_columns)
    for name in (choice.client_column, choice.target, *choice.time_columns, *choice.features):
        if name is not None:
            table.column(name)
    found = find_times(table, choice.time_columns)
    first = table.names[0]
    if found is None and choice.client_column is None and _is_words(table, first):
        found = (first,), parse_times(f"column '{first}'", table.columns[first])  # says which cell is not a time
    used, times = found if found is not None else ((), None)
    clock: Clock = clock_of_columns(table, used) if used else ""
    requested = {choice.client_column, choice.target, *choice.features}
    numbering, notes = _row_numbers(table, [name for name in table.names if name not in used], times, requested)
    left = [name for name in table.names if name not in used and name not in numbering]
    client = choice.client_column
    if client is None and times is not None:
        client = _client_column(table, left, times)
    left = [name for name in left if name != client]
    others = [name for name in left if is_time_column(name, table.columns[name])]
    if client is None and choice.target is None:
        others += [name for name in left if name.strip().lower() in PARTS_OF_TIMES]
        values = [name for name in left if name not in others]
        notes += [f"'{name}' left out, as it holds times" for name in others]
        return Layout(times, None, tuple(values), False, tuple(notes), clock), table
    values = [name for name in left if name in requested or (name not in others and not _is_words(table, name))]
    if choice.features:
        values = [name for name in left if name in requested]
    elif words := [name for name in left if name not in values]:
        notes.append(f"{quoted(words)} left out, as {'it holds' if len(words) == 1 else 'they hold'} no numbers")
    return Layout(times, client, tuple(values), client is None, tuple(notes), clock), table


def _joined(table: Table, names: Sequence[str]) -> Table:
    """Join several columns that name clients together."""
    texts = [table.texts(name) for name in names]
    joined = pc.binary_join_element_wise(*texts, _BETWEEN)
    left = {name: column for name, column in table.columns.items() if name not in names}
    return table.with_columns({**left, _BETWEEN.join(names): joined})


def _is_words(table: Table, name: str) -> bool:
    """Return whether more than half of a column's cells are not numbers."""
    if name in table.doubts:
        return False
    column = table.columns[name]
    if pa.types.is_boolean(column.type) or pa.types.is_temporal(column.type):
        return True
    if to_floats(column) is not None:
        return False
    coded = table.texts(name).drop_null().dictionary_encode()
    numbers = np.array([is_number(text) for text in coded.dictionary.to_pylist()])
    return 2 * int(numbers[coded.indices.to_numpy(zero_copy_only=False)].sum()) <= len(coded)


def _row_numbers(
    table: Table, names: Sequence[str], times: Times | None, requested: Collection[str | None]
) -> tuple[list[str], list[str]]:
    """Return the columns that number the rows, and a note on them.

    Without times that is the first column if it grows in equal steps, whatever its name. None is one that is requested.
    """
    found, notes = [], []
    known = _ROW_NUMBERS if times is not None else _ROW_NUMBERS | PARTS_OF_TIMES
    for name in (name for name in names if name not in requested):
        words = set(split_words(name)) - {"0"}
        is_first, is_id = name == table.names[0], bool(words & _IDS)
        is_called = words <= known and (is_first or is_id)
        may_count = is_first and times is None and len(names) > 1
        numbers = to_floats(table.columns[name]) if is_called or may_count else None
        if numbers is None:
            continue
        apart = np.diff(numbers)
        even = len(apart) == 0 or (apart[0] > 0 and np.allclose(apart, apart[0], rtol=1e-6))
        if not is_called and not (even and len(numbers) >= _FEWEST_COUNTED):
            continue
        if even and not is_id and words & TIME_WORDS and not abs(numbers[0]) < _MOST_COUNTED:
            raise DataError(
                f"column '{name}' holds times in an unknown format: write times as 2012-03-01 00:05, or as seconds "
                "from 1970"
            )
        if even or (is_id and bool((apart > 0).all())):
            found.append(name)
            if is_id or not words <= _ROW_NUMBERS:
                notes.append(f"'{name}' left out, as it numbers the rows")
        elif not is_id and bool((numbers == np.rint(numbers)).all()):
            row = int(np.argmax(~np.isclose(apart, np.median(apart)))) + 2
            raise DataError(
                f"the first column, '{name}', seems to number the rows, but not in equal steps (row {row}): put a "
                "row for each step, in order, or times in this column, as 2012-03-01 00:05; if it is a client, give it "
                "another name"
            )
    return found, notes


def _rank(name: str) -> int:
    words = {*split_words(name), name.lower()}
    return next((rank for rank, telling in enumerate(_TELLING) if words & telling), len(_TELLING))


def _client_column(table: Table, names: Collection[str], times: Times) -> str | None:
    """Return the column that names the client of each row; None if each column is a client.

    It repeats its values, has one row per value and time, and has a telling name or holds words.
    """
    rows, weak = table.num_rows, len(_TELLING)
    when, step = np.unique(times, return_inverse=True)
    repeats = len(when) < rows
    codes: dict[str, NDArray[np.int64]] = {}
    doubles: dict[str, int] = {}
    for name in names:
        words, rank, numbers = _is_words(table, name), _rank(name), to_floats(table.columns[name])
        # Without repeated times, a column of words may hold invalid readings: only its name decides.
        serves = (words or rank < weak) if repeats else _is_called(name)
        if not serves or len(names) < 2 or is_time_column(name, table.columns[name]):
            continue
        if numbers is not None and (np.rint(numbers) != numbers)[~np.isnan(numbers)].any():
            continue
        own, known = table.names_in(name)
        if len(known) <= max(1, rows // (2 if repeats else 4)):
            codes[name] = own
            doubles[name] = rows - _distinct(step * (len(known) + 1) + own + 1)
    if not codes:
        return None
    single = [name for name in codes if not doubles[name]]
    single = single or [name for name in codes if doubles[name] <= _MOST_DOUBLE * rows]
    if not single:
        raise DataError(
            f"several rows have the same time, and no column identifies their clients ({quoted(list(codes))} repeat "
            "within a time): name the column, or columns, that do, [data] client-column, and keep one row for each "
            "time and client"
        )
    telling = [name for name in single if _rank(name) < weak] or single
    other = next((name for name in telling[1:] if not _same_parts(codes[name], codes[telling[0]])), None)
    if other is not None:
        raise DataError(
            f"the columns {quoted(telling)} could each name the clients: choose one, [data] client-column = "
            f'"{telling[0]}"'
        )
    # Columns that divide the rows equally name the same clients; words are preferred to numbers.
    alike = [name for name in single if _same_parts(codes[name], codes[telling[0]])]
    return min(alike, key=lambda name: (not _is_words(table, name), _rank(name)))


def _is_called(name: str) -> bool:
    """Return whether a column's name only means client, unlike ``sensor 1``."""
    known = {"no", "nr", "number"}.union(*_TELLING)
    return _rank(name) < len(_TELLING) - 1 and (name.lower() in known or set(split_words(name)) <= known)


def _same_parts(one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
    """Return whether two columns divide the rows in the same way."""
    pairs = _distinct((one + 1) * (int(other.max(initial=0)) + 2) + other + 1)
    return pairs == _distinct(one + 1) == _distinct(other + 1)


def _distinct(codes: NDArray[np.int64]) -> int:
    """Count distinct codes, non-negative integers."""
    if int(codes.max(initial=0)) < 8 * len(codes):
        return int(np.count_nonzero(np.bincount(codes)))
    return len(np.unique(codes))
