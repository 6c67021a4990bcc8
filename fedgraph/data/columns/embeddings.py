"""Embeddings in tables: a column of lists, or numbered columns ``scan.0``, ``scan.1``, ..., as in a CSV file."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from fedgraph.data.columns.columns import Floats, read_column, read_numbers
from fedgraph.data.columns.table import Table
from fedgraph.support.errors import DataError


def part_names(name: str, size: int) -> list[str]:
    """Return the names of the columns of an embedding of ``size`` numbers."""
    return [f"{name}.{place}" for place in range(size)]


def feature_of(column: str, embeddings: Collection[str]) -> str:
    """Return the feature of a column: itself, or the embedding to which it belongs."""
    owner = _owner(column)
    return owner if owner is not None and owner in embeddings else column


def with_embeddings(columns: Sequence[str], embeddings: Collection[str]) -> list[str]:
    """Replace the columns of each embedding by the embedding's name, at the position of the first of them."""
    return list(dict.fromkeys(feature_of(column, embeddings) for column in columns))


def read_embedding(table: Table, name: str, missing_codes: Sequence[str | float] = ()) -> Floats:
    """Read the values of an embedding, ``[rows, numbers]``.

    An embedding that lacks a number is missing as a whole (NaN). Raises DataError when there is no such embedding, when
    rows differ in length, or when a value is not a number.

    Parameters
    ----------
    table : with a column of lists called ``name``, or numbered columns.
    missing_codes : values that are missing in numbered columns.
    """
    if name in table.columns:
        values = _of_lists(table.columns[name], f"column '{name}' of {table.where}")
    else:
        values = np.stack([_numbers(table, part, missing_codes) for part in _parts(table, name)], 1)
    values[~np.isfinite(values).all(1)] = np.nan
    return values


def _owner(column: str) -> str | None:
    found = re.fullmatch(r"(.+)\.\d+", column)
    return found.group(1) if found else None


def _parts(table: Table, name: str) -> list[str]:
    found = [column for column in table.names if _owner(column) == name]
    wanted = part_names(name, len(found))
    if not found:
        raise DataError(
            f"{table.where} has no embedding '{name}': it is a column of lists of that name, or columns {name}.0, "
            f"{name}.1, ...; there are {', '.join(table.names)}"
        )
    if lacking := [part for part in wanted if part not in table.columns]:
        raise DataError(
            f"{table.where} has {len(found)} columns of the embedding '{name}', which are numbered from 0, but lacks "
            f"{lacking[0]}"
        )
    return wanted


def _numbers(table: Table, column: str, missing_codes: Sequence[str | float]) -> Floats:
    found = read_numbers(table, column, missing_codes)
    # If there are words, this raises an error that lists them.
    return read_column(table, column, missing_codes).as_numbers() if found is None else found


def _of_lists(column: pa.Array, what: str) -> Floats:
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not is_list or not (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
        raise DataError(f"{what} must be an embedding (lists of numbers), but is of type {kind}")
    rows = column.to_pylist()
    sizes = sorted({len(row) for row in rows if row is not None})
    if len(sizes) != 1 or not sizes[0]:
        listed = ", ".join(map(str, sizes)) or "no list"
        raise DataError(f"{what} must be an embedding with equally many numbers in all rows; found {listed}")
    lacking = [None] * sizes[0]
    return np.array([lacking if row is None else row for row in rows], dtype=np.float64)
