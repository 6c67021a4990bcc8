"""Rows in the forms that users pass to a model: a table, an array of values, or dicts by feature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fedgraph.data.columns.columns import Floats, as_category
from fedgraph.data.columns.embeddings import with_embeddings
from fedgraph.data.columns.files import Table
from fedgraph.data.encoding.values import check_shape, read_values
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.support.errors import DataError

Row = Mapping[str, Any]
"""Values by feature; None is missing."""

Rows = Table | Floats | Row | Sequence[Row]
"""Rows of a table. A dict is a single row; an array contains the values of :mod:`fedgraph.data.encoding.values`."""


def values_of(rows: Rows, schema: Schema, ignored: Sequence[str] = ()) -> Floats:
    """Convert rows to values ``[rows, features]``; NaN for features that are missing, absent or ``ignored``.

    Parameters
    ----------
    rows : Rows
        Columns of a table that are no features are ignored; in a dict they are taken for mistakes.
    schema : Schema
        The features.
    ignored : sequence of str
        Features to leave out.

    Returns
    -------
    ndarray of float64
        As :func:`read_values` returns them.

    Raises
    ------
    DataError
        For a feature in a dict that the schema lacks, for words in place of numbers, for categories that the schema
        lacks, and for a table without any feature.
    """
    if isinstance(rows, np.ndarray):
        check_shape(rows, schema)
        values = rows.astype(np.float64)
    else:
        table = rows if isinstance(rows, Table) else _table([rows] if isinstance(rows, Mapping) else rows, schema)
        known = with_embeddings(table.names, {part.name for part in schema.features if part.kind == "embedding"})
        if isinstance(rows, Table) and not set(known) & set(schema.names):
            raise DataError(f"{table.where} has none of the features {', '.join(schema.names)}")
        there = [name for name in schema.names if name in known and name not in ignored]
        values = np.full((_count(rows), schema.num_values), np.nan)
        if there:
            values[:, _places(schema, there)] = read_values(table, schema.select(there))
    values[:, _places(schema, ignored)] = np.nan
    return values


def _places(schema: Schema, names: Sequence[str]) -> list[int]:
    """Return the columns of values of some features."""
    every = range(schema.num_values)
    return [place for name in names for place in every[schema.value_slices[name]]]


def _count(rows: Table | Row | Sequence[Row]) -> int:
    return rows.num_rows if isinstance(rows, Table) else 1 if isinstance(rows, Mapping) else len(rows)


def _table(rows: Sequence[Row], schema: Schema) -> Table:
    named = dict.fromkeys(name for row in rows for name in row)
    return Table({name: _column([row.get(name) for row in rows], schema[name]) for name in named}, "the rows")


def _column(values: Sequence[Any], feature: Feature) -> pa.Array:
    if feature.kind == "embedding":
        return _embedding(values, feature)
    there = [None if value is None or value != value else value for value in values]
    if feature.categories:
        return pa.array([None if value is None else as_category(value) for value in there], pa.string())
    try:
        return pa.array([None if value is None else float(value) for value in there], pa.float64())
    except (TypeError, ValueError):
        raise DataError(f"'{feature.name}' is {feature.kind} and cannot be {there!r}") from None


def _embedding(values: Sequence[Any], feature: Feature) -> pa.Array:
    kind = pa.list_(pa.float64(), feature.size)
    try:
        return pa.array([None if value is None else [float(number) for number in value] for value in values], kind)
    except (TypeError, ValueError, pa.ArrowInvalid):
        raise DataError(f"'{feature.name}' is an embedding: give it as {feature.size} numbers, or None") from None
