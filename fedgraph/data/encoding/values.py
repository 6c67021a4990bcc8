"""Rows of a table as numbers ``[rows, features]``, and back: the step between a file and the units of a network.

A number is itself, in its own units; a category is its position among the categories of its feature; NaN is missing.
An embedding has as many columns as numbers (:attr:`fedgraph.data.schema.schema.Schema.value_slices`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedgraph.data.columns.columns import Floats, read_column, read_numbers
from fedgraph.data.columns.embeddings import part_names, read_embedding
from fedgraph.data.columns.table import Table
from fedgraph.data.schema.inference import SchemaSettings
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.support.errors import DataError

_LARGEST_WHOLE = 2.0**53


def read_values(table: Table, schema: Schema, settings: SchemaSettings | None = None) -> Floats:
    """Read the features of a schema from a table.

    Returns float64 ``[rows, features]``, contiguous by column. Raises DataError when the table lacks a feature, or
    contains words in place of numbers or categories that the schema lacks.

    Parameters
    ----------
    table : Table
        With a column for each feature.
    schema : Schema
        The features.
    settings : SchemaSettings, optional
        Its ``missing-codes`` apply, and its ``unknown`` and ``least-rows`` decide about values that are not a category;
        by default these are an error, however rare.
    """
    settings = settings or SchemaSettings(least_rows=1)
    values = np.empty((table.num_rows, schema.num_values), order="F")
    for feature in schema.features:
        codes, place = settings.missing_codes.get(feature.name, ()), schema.value_slices[feature.name]
        if feature.kind == "embedding":
            values[:, place] = _embedding(table, feature, codes)
        elif feature.categories:
            column = read_column(table, feature.name, codes)
            least = 1 if settings.lists_categories(feature.name) else settings.least_rows
            values[:, place.start] = column.as_codes(feature.categories, settings.unknown == "missing", least)
        elif (numbers := read_numbers(table, feature.name, codes)) is not None:
            values[:, place.start] = numbers
        else:
            read_column(table, feature.name, codes).as_numbers()  # raises an error that lists the words
    return values


def as_table(values: Floats, schema: Schema, where: str = "the rows") -> Table:
    """Convert values ``[rows, features]`` to a table.

    Returns columns of floats, whole numbers or text; values that are not finite are missing. An embedding has a column
    for each of its numbers. Raises DataError when the number of columns is not that of the schema's values.
    """
    check_shape(values, schema)
    columns: dict[str, pa.Array] = {}
    for feature in schema.features:
        own = values[:, schema.value_slices[feature.name]]
        names = part_names(feature.name, feature.size) if feature.kind == "embedding" else [feature.name]
        columns |= {name: _column(own[:, place], feature) for place, name in enumerate(names)}
    return Table(columns, where)


def check_shape(values: Floats, schema: Schema) -> None:
    """Check that values have the columns of a schema. Raises DataError when ``values`` are not ``[rows, features]``."""
    if values.ndim != 2 or values.shape[1] != schema.num_values:
        raise DataError(
            f"values of shape {list(values.shape)} do not fit the schema: it needs [rows, {schema.num_values}]"
        )


def _embedding(table: Table, feature: Feature, codes: Sequence[str | float]) -> Floats:
    values = read_embedding(table, feature.name, codes)
    if values.shape[1] != feature.size:
        raise DataError(
            f"the embedding '{feature.name}' has {feature.size} numbers, but {values.shape[1]} in {table.where}"
        )
    return values


def _column(values: NDArray[np.float64], feature: Feature) -> pa.Array:
    missing = ~np.isfinite(values)
    if feature.kind in ("real", "embedding"):
        return pa.array(values, pa.float64(), mask=missing)
    # Every whole float64 up to 2^53 is an exact int64.
    whole = np.clip(np.where(missing, 0.0, values).round(), -_LARGEST_WHOLE, _LARGEST_WHOLE).astype(np.int64)
    if not feature.categories:
        return pa.array(whole, pa.int64(), mask=missing)
    codes = pa.array(np.clip(whole, 0, len(feature.categories) - 1), pa.int64(), mask=missing)
    return pa.array(feature.categories, pa.string()).take(codes)
