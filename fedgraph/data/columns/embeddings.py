"""Embeddings in tables: a column of lists, or columns ``scan.0``, ``scan.1``, ... of numbers, as in a CSV file."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from fedgraph.data.columns.columns import Floats, read_column, read_numbers
from fedgraph.data.columns.files import Table
from fedgraph.support.errors import DataError


def part_names(name: str, size: int) -> list[str]:
    """The columns of an embedding of so many numbers."""
    return [f"{name}.{place}" for place in range(size)]


def feature_of(column: str, embeddings: Collection[str]) -> str:
    """The feature that a column belongs to: itself, or the embedding of which it is a number."""
    owner = _owner(column)
    return owner if owner is not None and owner in embeddings else column


def with_embeddings(columns: Sequence[str], embeddings: Collection[str]) -> list[str]:
    """Names of columns with those of each embedding's numbers replaced by its name, where the first of them is."""
    return list(dict.fromkeys(feature_of(column, embeddings) for column in columns))


def read_embedding(table: Table, name: str, missing_codes: Sequence[str | float] = ()) -> Floats:
    """The values of an embedding, ``[rows, numbers]``. One that lacks a number is missing, which is NaN in all of them.

    missing_codes : of the numbers in columns of their own.

    Raises
    ------
    DataError
        When there is no such embedding, or rows have different numbers of numbers, or one is no number.
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
    # Otherwise this says which words there are.
    return read_column(table, column, missing_codes).as_numbers() if found is None else found


def _of_lists(column: pa.Array, what: str) -> Floats:
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not is_list or not (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
        raise DataError(f"{what} is to be an embedding, so lists of numbers, but is of type {kind}")
    rows = column.to_pylist()
    sizes = sorted({len(row) for row in rows if row is not None})
    if len(sizes) != 1 or not sizes[0]:
        told = ", ".join(map(str, sizes)) or "no list"
        raise DataError(f"{what} is to be an embedding, with equally many numbers in all rows; there are {told}")
    lacking = [None] * sizes[0]
    return np.array([lacking if row is None else row for row in rows], dtype=np.float64)
