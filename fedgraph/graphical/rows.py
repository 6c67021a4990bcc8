"""Rows as people write them, for questions to a model: a table, values, or dicts by feature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fedgraph.data.table_files import Table
from fedgraph.errors import DataError
from fedgraph.graphical.columns import Floats, as_category
from fedgraph.graphical.schema import Feature, Schema
from fedgraph.graphical.values import check_shape, read_values

Row = Mapping[str, Any]
"""Values by feature; None is missing."""

Rows = Table | Floats | Row | Sequence[Row]
"""A dict is a single row. Values are those of :mod:`fedgraph.graphical.values`."""


def values_of(rows: Rows, schema: Schema, ignored: Sequence[str] = ()) -> Floats:
    """Values ``[rows, features]``, NaN for features that are missing, not there, or ``ignored``.

    Columns of a table that are no features do not count; in a dict they are taken for mistakes.

    Raises
    ------
    DataError
        For a feature that a dict names and the schema lacks, for words in place of numbers, for categories that the
        schema lacks, and for a table without any feature.
    """
    if isinstance(rows, np.ndarray):
        check_shape(rows, schema)
        values = rows.astype(np.float64)
    else:
        table = rows if isinstance(rows, Table) else _table([rows] if isinstance(rows, Mapping) else rows, schema)
        if isinstance(rows, Table) and not set(table.names) & set(schema.names):
            raise DataError(f"{table.where} has none of the features {', '.join(schema.names)}")
        there = [name for name in schema.names if name in table.columns and name not in ignored]
        values = np.full((_count(rows), len(schema.features)), np.nan)
        if there:
            values[:, [schema.names.index(name) for name in there]] = read_values(table, schema.select(there))
    values[:, [schema.names.index(name) for name in ignored]] = np.nan
    return values


def _count(rows: Table | Row | Sequence[Row]) -> int:
    return rows.num_rows if isinstance(rows, Table) else 1 if isinstance(rows, Mapping) else len(rows)


def _table(rows: Sequence[Row], schema: Schema) -> Table:
    named = dict.fromkeys(name for row in rows for name in row)
    return Table({name: _column([row.get(name) for row in rows], schema[name]) for name in named}, "the rows")


def _column(values: Sequence[Any], feature: Feature) -> pa.Array:
    there = [None if value is None or value != value else value for value in values]
    if feature.categories:
        return pa.array([None if value is None else as_category(value) for value in there], pa.string())
    try:
        return pa.array([None if value is None else float(value) for value in there], pa.float64())
    except (TypeError, ValueError):
        raise DataError(f"'{feature.name}' is {feature.kind} and cannot be {there!r}") from None
