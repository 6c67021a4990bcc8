"""A table: columns by name, as Arrow arrays with null for missing values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedgraph.data.columns.cells import to_floats
from fedgraph.support.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class RawRows:
    """Rows of a file as they were read, before marks of missing values and the like: columns and what was between them.

    Texts of cells, joined again, do not depend on the settings by which the file was divided into cells.
    """

    columns: Sequence[pa.Array | pa.ChunkedArray]
    separator: str = "\x1f"

    @cached_property
    def identities(self) -> NDArray[np.int64]:
        """A number for each row ``[rows]``, which follows from its cells; equal rows are numbered in their order."""
        import pandas as pd

        cells = [_texts(column) for column in self.columns]
        joined = pc.binary_join_element_wise(*cells, self.separator, null_handling="replace", null_replacement="")
        rows = pd.Series(pc.replace_substring(joined, '"', "").to_numpy(zero_copy_only=False), dtype=object)
        numbered = rows + "\x1e" + rows.groupby(rows).cumcount().astype(str)
        return pd.util.hash_pandas_object(numbered, index=False).to_numpy().view(np.int64)


def _texts(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    try:
        return pc.cast(array, pa.string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # lists, and bytes that are no text
        return pa.array([repr(cell) for cell in array.to_pylist()], pa.string())


class Table:
    """Columns by name, with text trimmed and null for missing values.

    Attributes
    ----------
    columns : dict of str to pyarrow.Array
        In the order of the file.
    where : str
        Names the table in messages.
    numbered : ndarray of int64 or None
        The rows of a part of a file as they are counted there, from 1, ``[rows]``; None for a whole file.
    doubts : dict of str to DataError
        By column, why its numbers are ambiguous, such as thousands that may be decimals.
    notes : tuple of str
        Notes on the file, in short sentences.
    categorical : frozenset of str
        Columns that are categories by their type, also where these are numbers.
    raw : RawRows
        All rows of the file, of which a part may be left; by default the columns themselves.
    """

    def __init__(
        self,
        columns: Mapping[str, pa.Array],
        where: str,
        numbered: NDArray[np.int64] | None = None,
        doubts: Mapping[str, DataError] | None = None,
        notes: Sequence[str] = (),
        categorical: Collection[str] = (),
        raw: RawRows | None = None,
    ) -> None:
        self.columns = dict(columns)
        self.where = where
        self.numbered = numbered
        self.doubts = dict(doubts or {})
        self.notes = tuple(notes)
        self.categorical = frozenset(categorical)
        self.raw = raw or RawRows(list(self.columns.values()))

    @property
    def names(self) -> list[str]:
        """Names of the columns, in the order of the file."""
        return list(self.columns)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.columns.values()), ()))

    @property
    def identities(self) -> NDArray[np.int64]:
        """Numbers of the rows by their content in the file, ``[rows]``, whatever columns and cells are used of it."""
        every = self.raw.identities
        return every if self.numbered is None else every[self.numbered - 1]

    def __repr__(self) -> str:
        return f"<Table of {self.num_rows:,} rows: {', '.join(self.names)}>"

    def to_pandas(self) -> pd.DataFrame:
        """Return the table as a data frame of pandas."""
        return pa.table(self.columns).to_pandas()

    def part(self, rows: NDArray[np.int64]) -> Table:
        """Return some rows; messages still count rows as in the file."""
        indices = pa.array(rows)
        numbered = rows + 1 if self.numbered is None else self.numbered[rows]
        columns = {name: column.take(indices) for name, column in self.columns.items()}
        return Table(columns, self.where, numbered, self.doubts, self.notes, self.categorical, self.raw)

    def with_columns(self, columns: Mapping[str, pa.Array]) -> Table:
        """Return the same rows with other columns."""
        return Table(columns, self.where, self.numbered, self.doubts, self.notes, self.categorical, self.raw)

    def of_cells(self) -> Table:
        """Return the table without the types of its columns: categories that are numbers are numbers."""
        return Table(self.columns, self.where, self.numbered, self.doubts, self.notes, raw=self.raw)

    def row_number(self, row: int) -> int:
        """Return the number of a row in the file, counted from 1."""
        return row + 1 if self.numbered is None else int(self.numbered[row])

    def column(self, name: str) -> pa.Array:
        """Return a column by name. Raises DataError listing the known columns."""
        if name not in self.columns:
            listed = ", ".join(self.names).replace("\n", "\\n")  # as a TOML file has it
            raise DataError(f"{self.where} has no column '{name}'; its columns: {listed}")
        return self.columns[name]

    def numbers(self, name: str) -> NDArray[np.float64] | None:
        """Return a column as float64, NaN where missing; None if it contains anything but numbers.

        Raises DataError for ambiguous numbers and, with the first row, for infinite ones.
        """
        column = self.column(name)
        self.check_certain(name)
        values = to_floats(column)
        if values is not None and np.isinf(values).any():
            row = int(np.isinf(values).argmax())
            raise infinite_error(name, self.where, str(values[row]), self.row_number(row))
        return values

    def check_certain(self, name: str) -> None:
        """Raise the DataError of a column whose numbers are ambiguous."""
        if name in self.doubts:
            doubt = self.doubts[name]
            raise DataError(str(doubt), doubt.quoted)

    def names_in(self, name: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Return a column of names, such as those of clients, exactly as written.

        Codes ``[rows]``, -1 where missing, and the names that they stand for; numbers by size, else by text.
        """
        coded = self.texts(name).dictionary_encode()
        names = coded.dictionary.to_pylist()
        floats = to_floats(coded.dictionary)
        sizes = [0.0] * len(names) if floats is None else floats.tolist()
        order = sorted(range(len(names)), key=lambda place: (sizes[place], names[place]))
        places = np.append(np.argsort(order), -1).astype(np.int64)
        codes = pc.fill_null(coded.indices, len(names)).to_numpy(zero_copy_only=False)
        return places[codes], tuple(names[place] for place in order)

    def texts(self, name: str) -> pa.Array:
        """Return a column as texts. Raises DataError for a column of lists or the like."""
        column = self.column(name)
        try:
            return pc.cast(column, pa.string())
        except pa.ArrowNotImplementedError:
            raise DataError(f"column '{name}' of {self.where} is of type {column.type}: use numbers or text") from None


def infinite_error(name: str, where: str, cell: str, row: int) -> DataError:
    """Return the error about an infinite number."""
    return DataError(
        f"column '{name}' of {where} holds {cell} in row {row}: leave the cell empty or add \"{cell}\" to [data] "
        "missing if it is missing, or put a number there",
        quoted="" if cell in ("inf", "-inf") else cell,
    )
