"""Tables from CSV and Parquet files, column by column as numbers or as categories."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from fedgraph.data.own import LOOKED_FOR
from fedgraph.support.errors import DataError
from fedgraph.support.files import DECIMAL_COMMA, separator_of

if TYPE_CHECKING:
    import pandas as pd


class Table:
    """Columns by name. Text is trimmed, and missing markers are null. ``to_pandas`` makes a data frame of it.

    Attributes
    ----------
    columns : dict of str to pyarrow.Array
        In the order of the file.
    where : str
        Names the table in messages.
    numbered : ndarray of int64 or None
        The rows of a part of a file as they are counted there, from 1, ``[rows]``; None for a whole file.
    """

    def __init__(self, columns: Mapping[str, pa.Array], where: str, numbered: NDArray[np.int64] | None = None) -> None:
        self.columns = dict(columns)
        self.where = where
        self.numbered = numbered

    @property
    def names(self) -> list[str]:
        """Names of the columns, in the order of the file."""
        return list(self.columns)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.columns.values()), ()))

    def __repr__(self) -> str:
        return f"<Table of {self.num_rows:,} rows: {', '.join(self.names)}>"

    def to_pandas(self) -> pd.DataFrame:
        """Return the table as a data frame of pandas."""
        return pa.table(self.columns).to_pandas()

    def part(self, rows: NDArray[np.int64]) -> Table:
        """Return some rows, which messages go on to count as in the file."""
        indices = pa.array(rows)
        numbered = rows + 1 if self.numbered is None else self.numbered[rows]
        return Table({name: column.take(indices) for name, column in self.columns.items()}, self.where, numbered)

    def with_columns(self, columns: Mapping[str, pa.Array]) -> Table:
        """Return the same rows with other columns."""
        return Table(columns, self.where, self.numbered)

    def row_number(self, row: int) -> int:
        """Return which row of the file a row is, counted from 1."""
        return row + 1 if self.numbered is None else int(self.numbered[row])

    def column(self, name: str) -> pa.Array:
        """Return one column; raise DataError listing the columns if none has that name."""
        if name not in self.columns:
            raise DataError(f"{self.where} has no column '{name}'; its columns: {', '.join(self.names)}")
        return self.columns[name]

    def numbers(self, name: str) -> NDArray[np.float64] | None:
        """Return a column as float64, NaN where missing; None if it contains anything but numbers.

        Raises DataError for numbers that are infinite, naming the first row with one.
        """
        column = self.column(name)
        if pa.types.is_boolean(column.type):
            return None
        try:
            values: NDArray[np.float64] = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        if np.isinf(values).any():
            row = int(np.isinf(values).argmax())
            raise DataError(infinite_message(name, self.where, str(values[row]), self.row_number(row)))
        return values

    def categories(self, name: str, known: Sequence[str] | None = None) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Return a column as codes (-1 for missing) and the list of categories to which they refer.

        Parameters
        ----------
        name : str
            Of the column.
        known : sequence of str, optional
            The categories; by default the sorted distinct values.

        Raises
        ------
        DataError
            For values that ``known`` does not list, and for a column of lists or the like.
        """
        try:
            text = pc.cast(self.column(name), pa.string())
        except pa.ArrowNotImplementedError:
            kind = self.column(name).type
            raise DataError(f"column '{name}' of {self.where} is of type {kind}: use numbers or text") from None
        values = [value for value in pc.unique(text).to_pylist() if value is not None]
        unlisted = sorted(set(values) - set(known)) if known is not None else []
        if unlisted:
            raise DataError(
                f"column '{name}' of {self.where} holds {', '.join(map(repr, unlisted[:5]))}, which its list of "
                f"categories does not: add to [data.categories]"
            )
        listed = tuple(known) if known is not None else tuple(_sorted(values))
        codes = pc.fill_null(pc.index_in(text, value_set=pa.array(listed, pa.string())), -1)
        return codes.to_numpy(zero_copy_only=False).astype(np.int64), listed


def infinite_message(name: str, where: str, cell: str, row: int) -> str:
    """Say which cell of a column of numbers is infinite, and what to do."""
    return (
        f"column '{name}' of {where} holds {cell} in row {row}: leave the cell empty or add \"{cell}\" to [data] "
        "missing if it is missing, or put a number there"
    )


def _sorted(values: Sequence[str]) -> list[str]:
    """Sort in numerical order if all values are numbers, so that 10 comes after 9."""
    try:
        return sorted(values, key=lambda value: (float(value), value))
    except ValueError:
        return sorted(values)


def read_table(
    path: Path, columns: Sequence[str] = (), missing: Sequence[str] = ("",), delimiter: str | None = None
) -> Table:
    """Read a table from a .csv, .csv.gz or .parquet file; the last few files are cached in the process.

    Parameters
    ----------
    path : Path
        Of the file.
    columns : sequence of str
        Names of the columns of a CSV file without a header.
    missing : sequence of str
        Text that means missing.
    delimiter : str, optional
        Between the columns of a CSV file; by default that of its first line (:func:`separator_of`).

    Returns
    -------
    Table
        All columns of a CSV file are text; those of a Parquet file keep their types. Where the columns are not
        separated by commas, numbers with decimal commas have points instead, in columns that are mostly numbers.

    Raises
    ------
    DataError
        When the file is missing, cannot be read, or has no rows, two columns of one name, or another number of columns
        than ``columns``. The message names the file.
    """
    if not path.is_file():
        raise DataError(
            f"there is no table {path.absolute()}: put the file there, or name another by [data] path; {LOOKED_FOR}"
        )
    return _read(path.absolute(), path.stat().st_mtime_ns, tuple(columns), tuple(missing), delimiter)


@lru_cache(maxsize=4)
def _read(
    path: Path, _changed: int, columns: tuple[str, ...], missing: tuple[str, ...], delimiter: str | None
) -> Table:
    is_parquet = path.suffix == ".parquet"
    try:
        separator = None if is_parquet else delimiter or _separator(path)
        arrow = _parquet(path, columns) if separator is None else _csv(path, columns, separator)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as a table: {error}") from None
    if arrow.num_rows == 0:
        raise DataError(f"{path} has no rows")
    advice = "rename one, or list all names in [data] columns"
    table = _cleaned(arrow, str(path), missing, advice)
    if separator in (None, ","):
        return table
    return table.with_columns(
        {
            name: _with_decimal_points(column, f"column '{name}' of {path}") if _is_text(column) else column
            for name, column in table.columns.items()
        }
    )


def table_of(frame: Any, where: str = "the data frame") -> Table:
    """Return a data frame as a table; the index of one of pandas is no column.

    Parameters
    ----------
    frame : data frame
        Of pandas, polars or whatever else hands its columns to Arrow, or a table of pyarrow.
    where : str
        Names it in messages.

    Returns
    -------
    Table
        Truth values are the text ``True`` and ``False``; empty text is missing.

    Raises
    ------
    DataError
        When it is none, has no rows, two columns of one name, or a column that Arrow cannot take.
    """
    if isinstance(frame, Table):
        return frame
    try:
        if hasattr(frame, "iloc"):  # of pandas, whose column names may be numbers
            arrow = pa.Table.from_pandas(frame.rename(columns=str), preserve_index=False)
        else:
            arrow = pa.table(frame)
    except (TypeError, ValueError, pa.ArrowException) as error:
        told = ", ".join(map(str, error.args))
        raise DataError(f"{where}, a {type(frame).__name__}, cannot be read as a data frame: {told}") from None
    if arrow.num_rows == 0:
        raise DataError(f"{where} has no rows")
    table = _cleaned(arrow, where, ("",), "rename one")
    return table.with_columns({name: _spelled(column) for name, column in table.columns.items()})


def _spelled(column: pa.Array) -> pa.Array:
    """Return truth values as Python spells them, as categories are given in dicts too."""
    return pc.if_else(column, "True", "False") if pa.types.is_boolean(column.type) else column


def _cleaned(arrow: pa.Table, where: str, missing: Sequence[str], advice: str) -> Table:
    """Return the columns with text trimmed, and what means missing as null."""
    names = [name.strip() for name in arrow.column_names]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{where} has two columns named {', '.join(twice)}: {advice}")
    markers = pa.array(missing, pa.string())
    cleaned = {}
    for name, column in zip(names, arrow.columns, strict=True):
        array = column.combine_chunks()
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if _is_text(array):
            text = pc.utf8_trim_whitespace(array.cast(pa.string()))
            array = pc.if_else(pc.is_in(text, value_set=markers), pa.scalar(None, pa.string()), text)
        cleaned[name] = array
    return Table(cleaned, where)


def _is_text(array: pa.Array) -> bool:
    kinds = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view
    return any(is_kind(array.type) for is_kind in kinds)


def _parquet(path: Path, columns: tuple[str, ...]) -> pa.Table:
    if columns:
        raise DataError(f"{path} names its columns itself: leave out [data] columns")
    return pyarrow.parquet.read_table(path)


def _open(path: Path) -> TextIO:
    opened = gzip.open if path.suffix == ".gz" else open
    return cast(TextIO, opened(path, "rt", newline="", encoding="utf-8-sig"))


def _separator(path: Path) -> str:
    with _open(path) as lines:
        return separator_of(lines.readline().rstrip("\r\n"))


def _with_decimal_points(text: pa.Array, what: str) -> pa.Array:
    """Numbers with decimal commas with points; a column that is not mostly numbers as it is."""
    commas = pc.match_substring_regex(text, f"^{DECIMAL_COMMA}$")
    points = pc.match_substring_regex(text, r"^[+-]?\d*\.\d+$")
    numbers = pc.or_(pc.or_(commas, points), pc.match_substring_regex(text, r"^[+-]?\d+$"))
    if not pc.any(commas).as_py() or 2 * pc.sum(numbers).as_py() <= pc.count(text).as_py():
        return text
    if pc.any(points).as_py():
        row = points.to_pylist().index(True)
        raise DataError(
            f"{what} holds '{text[row]}' in row {row + 1}, and other cells have decimal commas: write all numbers in "
            "one way",
            quoted=f"'{text[row]}'",
        )
    return pc.if_else(commas, pc.replace_substring(text, ",", "."), text)


def _csv(path: Path, columns: tuple[str, ...], delimiter: str) -> pa.Table:
    """Read all columns as text: types guessed from the first rows would fail at the first row that differs."""
    with _open(path) as lines:
        first = next(csv.reader(lines, delimiter=delimiter), [])
    if columns and len(columns) != len(first):
        raise DataError(f"{path} has {len(first)} columns, and [data] columns names {len(columns)}")
    numbered = [str(position) for position in range(len(first))]
    return pyarrow.csv.read_csv(
        path,
        read_options=pyarrow.csv.ReadOptions(column_names=numbered, skip_rows=0 if columns else 1),
        parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(numbered, pa.string()), strings_can_be_null=False
        ),
    ).rename_columns(list(columns) or first)
