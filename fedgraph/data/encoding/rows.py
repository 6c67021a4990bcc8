"""Conversion of the rows that users pass to a model: tables, arrays of values, dicts by feature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from fedgraph.data.columns.columns import Floats, as_category
from fedgraph.data.columns.embeddings import feature_of, with_embeddings
from fedgraph.data.columns.table import Table
from fedgraph.data.encoding.values import check_shape, read_values
from fedgraph.data.schema.inference import SchemaSettings
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.support.errors import DataError

Row = Mapping[str, Any]
"""Values by feature; None is missing."""


class Frame(Protocol):
    """A data frame of pandas, polars or another library that exports its columns to Arrow, or a table of pyarrow."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the columns (Arrow's PyCapsule interface)."""


Rows = Table | Frame | Floats | Row | Sequence[Row]
"""Rows of a table. A dict is a single row; an array contains the values of :mod:`fedgraph.data.encoding.values`."""

_KINDS = (
    "a data frame (pandas, polars, pyarrow), a Table, a dict by feature for one row, a list of such dicts, or an array "
    "of floats [rows, features]"
)


def to_values(
    rows: Rows, schema: Schema, ignored: Sequence[str] = (), settings: SchemaSettings | None = None
) -> Floats:
    """Convert rows to values ``[rows, features]``; NaN for features that are missing, absent or ``ignored``.

    Returns an ndarray of float64 as :func:`read_values` returns them. Raises DataError for rows of another kind, for a
    feature in a dict that the schema lacks, for words in place of numbers, for categories that the schema lacks, and
    for a table without any feature.

    Parameters
    ----------
    rows : Rows
        Columns of a table or data frame that are not features are ignored; in a dict they are an error.
    schema : Schema
        The features.
    ignored : sequence of str
        Features to leave out.
    settings : SchemaSettings, optional
        As for :func:`read_values`, for tables.
    """
    if isinstance(rows, np.ndarray):
        check_shape(rows, schema)
        values = rows.astype(np.float64)
    else:
        table, count = _read(rows, schema, ignored)
        known = with_embeddings(table.names, _embeddings(schema))
        if not isinstance(rows, Mapping | Sequence) and not set(known) & set(schema.names):
            raise DataError(f"{table.where} has none of the features {', '.join(schema.names)}")
        present = [name for name in schema.names if name in known and name not in ignored]
        values = np.full((count, schema.num_values), np.nan)
        if present:
            values[:, _places(schema, present)] = read_values(table, schema.select(present), settings)
    values[:, _places(schema, ignored)] = np.nan
    return values


def _places(schema: Schema, names: Sequence[str]) -> list[int]:
    """Return the columns of values of some features."""
    every = range(schema.num_values)
    return [place for name in names for place in every[schema.value_slices[name]]]


def as_dicts(rows: Rows) -> list[Row]:
    """Return the rows that were given as dicts; none for tables, data frames and arrays."""
    if isinstance(rows, Mapping):
        return [rows]
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, Sequence) else []


def _read(rows: Rows, schema: Schema, ignored: Sequence[str]) -> tuple[Table, int]:
    """Return rows as a table, and their number, as a table may have no columns."""
    if isinstance(rows, Table):
        return rows, rows.num_rows
    dicts = as_dicts(rows)
    if isinstance(rows, Mapping | Sequence) and len(dicts) == (1 if isinstance(rows, Mapping) else len(rows)):
        named = dict.fromkeys(name for row in dicts for name in row)
        columns = {
            name: _column([_single(row.get(name), schema[name]) for row in dicts], schema[name]) for name in named
        }
        return Table(columns, "the rows"), len(dicts)
    try:
        frame = pa.table(rows)
    except (TypeError, ValueError, pa.ArrowException) as error:
        why = f": {', '.join(map(str, error.args))}" if hasattr(rows, "columns") else ""
        raise DataError(f"rows are {_KINDS}; this {type(rows).__name__} cannot be read as one of them{why}") from None
    embeddings = _embeddings(schema)
    names = dict.fromkeys(frame.column_names)
    features = {name: feature_of(name, embeddings) for name in names if feature_of(name, embeddings) in schema.names}
    columns = {}
    for name, feature in features.items():
        if feature in ignored:
            continue
        whole = frame.column(name).combine_chunks()
        columns[name] = whole if feature in embeddings else _column(whole.to_pylist(), schema[feature])
    known = columns or {name: pa.nulls(frame.num_rows) for name in features}
    return Table(known, f"the {type(rows).__name__}"), frame.num_rows


def _embeddings(schema: Schema) -> set[str]:
    return {part.name for part in schema.features if part.kind == "embedding"}


def _column(values: Sequence[Any], feature: Feature) -> pa.Array:
    if feature.kind == "embedding":
        return _embedding(values, feature)
    present = [None if is_missing(value) else value for value in values]
    if feature.categories:
        return pa.array([None if value is None else as_category(value) for value in present], pa.string())
    return pa.array([None if value is None else _number(value, feature) for value in present], pa.float64())


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, NaT, or NA of pandas."""
    import pandas as pd

    found = pd.isna(value)
    # Of several values, such as an embedding, it returns an array.
    return np.ndim(found) == 0 and bool(found)


def _single(value: Any, feature: Feature) -> Any:
    """Return the value of a feature in a dict. Raises DataError for several."""
    # Arrays of no dimension have __len__ too.
    several = hasattr(value, "__len__") and not isinstance(value, str) and np.ndim(value) > 0
    if several and feature.kind != "embedding":
        raise DataError(
            f"'{feature.name}' of a row has {len(value)} values ({type(value).__name__}): a dict is one row; give "
            "several rows as a data frame or a list of dicts"
        )
    return value


def _number(value: Any, feature: Feature) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise DataError(f"'{feature.name}' is {feature.kind} and cannot be {value!r}") from None


def _embedding(values: Sequence[Any], feature: Feature) -> pa.Array:
    kind = pa.list_(pa.float64(), feature.size)
    try:
        return pa.array([None if value is None else [float(number) for number in value] for value in values], kind)
    except (TypeError, ValueError, pa.ArrowInvalid):
        raise DataError(f"'{feature.name}' is an embedding: give it as {feature.size} numbers, or None") from None
