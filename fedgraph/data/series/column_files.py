"""Series from files of columns, CSV and Parquet: a column for each client, or a row for each time and client."""

from __future__ import annotations

import gzip
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from fedgraph.data.columns.columns import is_number
from fedgraph.support.errors import DataError
from fedgraph.support.files import DECIMAL_COMMA, separator_of

_TIMES = ("time", "timestamp", "date", "datetime", "date_time", "ds", "t", "unix", "unixtime", "epoch")
_ROW_NUMBERS = ("", "unnamed: 0", "index", "step", *_TIMES)
_CLIENTS = ("client", "client_id", "sensor", "sensor_id", "station", "station_id", "detector", "id", "name", "site")

_FIRST_UNIX_TIME = 1e8
"""Whole numbers from here on, which is in 1973, may be seconds from 1 January 1970; and then also their fractions."""

_UNITS = ((1e11, "s"), (1e14, "ms"), (1e17, "us"), (np.inf, "ns"))
_GERMAN = ("%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M", "%d.%m.%Y")
_ZONE = r".*:.*(Z|[+-]\d\d:?\d\d)$"

_NO_READINGS = frozenset(pyarrow.csv.ConvertOptions().null_values)


class Readings(NamedTuple):
    """What a file holds: ``values`` float32 ``[time, clients, features]``, NaN where there is no reading."""

    values: NDArray[np.float32]
    names: list[str]
    times: NDArray[np.datetime64] | None
    features: tuple[str, ...]


def read_column_file(path: Path) -> Readings:
    """Read a .csv, .csv.gz or .parquet file.

    Cells of a CSV file are separated by commas, or else by semicolons or tabs, and then decimals may have a comma. A
    leading row or step number is dropped; a column of times becomes the times: ISO with or without a zone (then in
    UTC), day.month.year, or seconds, or fractions of them, from 1970. A file with a column of names of clients beside
    the times has a row for each time and client.

    Raises
    ------
    DataError
        Without the path, for cells that are no readings, and columns that cannot be told apart.
    """
    is_parquet = path.name.lower().endswith(".parquet")
    table = pyarrow.parquet.ParquetFile(path).read() if is_parquet else _read_csv(path)
    columns = {number: table.column(number) for number in range(table.num_columns)}
    labels = [name.strip() for name in table.column_names]
    if not table.num_rows:
        raise DataError("holds no readings")
    times = None
    found = _column_of_times(labels, columns)
    if found is not None:
        times = times_of(f"column '{labels[found]}'", columns.pop(found).to_numpy())
    elif 0 in columns and labels[0].lower() in _ROW_NUMBERS and _counts_rows(labels[0], columns[0]):
        del columns[0]
    clients = None if times is None else _column_of_clients(labels, columns, times)
    if clients is not None and times is not None:
        ids = np.array([str(name).strip() for name in columns.pop(clients).to_pylist()])
        numbers = np.column_stack([_numbers(labels[number], column) for number, column in columns.items()])
        return _of_rows(times, ids, numbers, tuple(labels[number] for number in columns))
    if not columns:
        raise DataError("holds no readings")
    values = np.column_stack([_numbers(labels[number], column) for number, column in columns.items()])
    return Readings(values[:, :, None], [table.column_names[number] for number in columns], times, ("value",))


def times_of(what: str, cells: NDArray[Any]) -> NDArray[np.datetime64]:
    """Times in seconds from dates, texts, or numbers of seconds from 1970; NaT where a cell is empty.

    Raises DataError, which begins with ``what``, for cells that are no times.
    """
    if cells.dtype.kind == "M":
        return cells.astype("datetime64[s]")
    if cells.dtype.kind in "iuf":
        if len(cells) and not np.min(cells) >= _FIRST_UNIX_TIME:
            raise DataError(f"{what} holds numbers that are too small for seconds from 1970: write times as text")
        unit = next(unit for limit, unit in _UNITS if np.abs(cells).max() < limit)
        whole = cells if cells.dtype.kind in "iu" else np.floor(cells)
        return whole.astype(np.int64).astype(f"datetime64[{unit}]").astype("datetime64[s]")
    texts = ["" if cell is None else str(cell).strip() for cell in cells.tolist()]
    zoned = [re.match(_ZONE, text) is not None for text in texts]
    if any(zoned) and not all(zoned):
        raise DataError(f"{what} has times with a zone and without: write all of them in UTC, or all in local time")
    for form in _GERMAN:
        parsed = pc.strptime(pa.array(texts), format=form, unit="s", error_is_null=True)
        if parsed.null_count == texts.count(""):
            return parsed.to_numpy(zero_copy_only=False).astype("datetime64[s]")
    times = np.empty(len(texts), dtype="datetime64[s]")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a zone is converted to UTC, as is meant
        for row, text in enumerate(texts):
            try:
                times[row] = np.datetime64(text or "NaT", "s")
            except ValueError:
                raise DataError(
                    f"{what} holds neither numbers nor times: row {row + 1} has '{text}'; write times as "
                    "2012-03-01 00:05, or as seconds from 1970",
                    quoted=f"'{text}'",
                ) from None
    return times


def _read_csv(path: Path) -> pa.Table:
    with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rt", encoding="utf-8-sig") as lines:
        separator = separator_of(lines.readline().rstrip("\r\n"))

    def read(point: str) -> pa.Table:
        return pyarrow.csv.read_csv(
            path,
            parse_options=pyarrow.csv.ParseOptions(delimiter=separator),
            convert_options=pyarrow.csv.ConvertOptions(decimal_point=point),
        )

    table = read(".")
    if separator != ",":
        texts = [column for column in table.columns if _is_text(column.type)]
        if any(pc.any(pc.match_substring_regex(column, f"^\\s*{DECIMAL_COMMA}\\s*$")).as_py() for column in texts):
            table = read(",")
            _check_no_points(table)
    return table


def _check_no_points(table: pa.Table) -> None:
    """Raise DataError for a number with a point beside decimal commas: 1.234 may be meant as either."""
    for label, column in zip(table.column_names, table.columns, strict=True):
        for row, cell in enumerate(column.to_pylist() if _is_text(column.type) else ()):
            if cell and "." in cell and is_number(cell):
                raise DataError(
                    f"column '{label}' holds '{cell}' in row {row + 1}, and other cells have decimal commas: "
                    "write all numbers in one way",
                    quoted=f"'{cell}'",
                )


def _column_of_times(labels: list[str], columns: Mapping[int, pa.ChunkedArray]) -> int | None:
    """The first column of dates; else of texts or numbers that are called so; else a leading column of texts."""
    for number, column in columns.items():
        if pa.types.is_temporal(column.type):
            return number
    for number, column in columns.items():
        if labels[number].lower() in _TIMES and (_is_text(column.type) or _are_unix_times(column)):
            return number
    return 0 if 0 in columns and _is_text(columns[0].type) else None


def _are_unix_times(column: pa.ChunkedArray) -> bool:
    return _is_number(column.type) and not column.null_count and pc.min(column).as_py() >= _FIRST_UNIX_TIME


def _counts_rows(label: str, column: pa.ChunkedArray) -> bool:
    """Whether a leading column numbers the rows; DataError for whole numbers that seem to, but do not."""
    if not _is_number(column.type):
        return False
    apart = np.diff(column.to_numpy().astype(np.float64))
    if len(apart) == 0 or (apart[0] > 0 and np.allclose(apart, apart[0], rtol=1e-6)):
        return True
    if pa.types.is_integer(column.type):
        row = int(np.argmax(~np.isclose(apart, np.median(apart)))) + 2
        raise DataError(
            f"the first column, '{label}', seems to number the rows, but not in equal steps (row {row}): put a "
            "row for each step, in order, or times in this column, as 2012-03-01 00:05; if it is a client, give it "
            "another name"
        )
    return False


def _column_of_clients(
    labels: list[str], columns: Mapping[int, pa.ChunkedArray], times: NDArray[np.datetime64]
) -> int | None:
    """The column with names of clients, where there is a row for each time and client."""
    rows, different = len(times), len(np.unique(times))
    for number, column in columns.items():
        called = labels[number].lower() in _CLIENTS
        whole = called and pa.types.is_integer(column.type)
        if different < rows and len(columns) > 1 and (whole or _is_text(column.type)):
            cells = column.unique().to_pylist()
            words = sum(cell is not None and not is_number(str(cell)) for cell in cells)
            if called or (len(cells) <= rows // 2 and words > len(cells) // 2):
                return number
    return None


def _of_rows(
    times: NDArray[np.datetime64], ids: NDArray[np.str_], numbers: NDArray[np.float32], features: tuple[str, ...]
) -> Readings:
    """Readings of a file with a row for each time and client, in order of time; clients as they come."""
    if np.isnat(times).any():
        raise DataError(f"row {int(np.isnat(times).argmax()) + 1} has no time: fill it in, or leave the row out")
    when, step = np.unique(times, return_inverse=True)
    names, first, client = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.argsort(order)[client]
    cell = step * len(names) + place
    again = np.flatnonzero(np.bincount(cell)[cell] > 1)
    if len(again):
        other = int(np.flatnonzero(cell == cell[again[0]])[1])
        raise DataError(
            f"rows {again[0] + 1} and {other + 1} are both of client '{ids[again[0]]}' at {times[again[0]]}: keep one "
            "row for each time and client",
            quoted=str(times[again[0]]),
        )
    values = np.full((len(when), len(names), numbers.shape[1]), np.nan, dtype=np.float32)
    values[step, place] = numbers
    return Readings(values, names[order].tolist(), when, features)


def _numbers(label: str, column: pa.ChunkedArray) -> NDArray[np.float32]:
    """A column as numbers; DataError that names the first cell that is none."""
    if _is_number(column.type) or pa.types.is_null(column.type):
        return np.asarray(column.cast(pa.float32()).to_numpy())
    if not _is_text(column.type):
        raise DataError(f"column '{label}' holds no numbers but {column.type}")
    cells = ["" if cell is None else cell.strip() for cell in column.to_pylist()]
    numbers = np.full(len(cells), np.nan, dtype=np.float32)
    for row, cell in enumerate(cells):
        try:
            numbers[row] = np.nan if cell in _NO_READINGS else float(cell)
        except ValueError:
            comma = "decimals have a point, unless semicolons or tabs separate the columns"
            hint = comma if "," in cell else "leave the cell empty if nothing was read"
            raise DataError(
                f"column '{label}' holds no number in row {row + 1}, but '{cell}': {hint}", quoted=f"'{cell}'"
            ) from None
    return numbers


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)
