"""A schema as text, with a summary of its table if given."""

from __future__ import annotations

import numpy as np

from fedgraph.data.columns.columns import Column, read_column
from fedgraph.data.columns.embeddings import read_embedding, with_embeddings
from fedgraph.data.columns.table_files import Table
from fedgraph.data.schema.inference import SchemaSettings
from fedgraph.data.schema.schema import Feature, Schema

_LONGEST = 60
_WORDS = {"?", ".", "-", "na", "n/a", "nan", "null", "unknown"}


def as_text(schema: Schema, table: Table | None = None, settings: SchemaSettings | None = None) -> str:
    """Describe a schema, one line per feature: name, kind, categories.

    Parameters
    ----------
    schema : Schema
        The features.
    table : Table, optional
        Adds the range of numbers, the fraction of missing rows, and codes that look like missing values, and lists the
        columns that are not features at the end. This reveals data: it is for the owner of the table only.
    settings : SchemaSettings, optional
        Its ``missing-codes`` apply to ``table``.
    """
    settings = settings or SchemaSettings()
    units = sum(feature.width for feature in schema.features)
    lines = [f"{len(schema.features)} features, {units} units"]
    rows = []
    for feature in schema.features:
        is_embedding = feature.kind == "embedding"
        shown = f"{feature.size} numbers" if is_embedding else ", ".join(feature.categories)
        row = [feature.name, feature.kind, shown if len(shown) <= _LONGEST else shown[: _LONGEST - 4] + " ..."]
        if table is not None and is_embedding:
            values = read_embedding(table, feature.name, settings.missing_codes.get(feature.name, ()))
            row = [*row, f"{np.isnan(values[:, 0]).mean():.1%} missing", ""]
        elif table is not None:
            column = read_column(table, feature.name, settings.missing_codes.get(feature.name, ()))
            row = [
                *row[:2],
                row[2] or _spread(column),
                f"{np.mean(column.codes < 0):.1%} missing",
                _hint(feature, column),
            ]
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if table is not None and (others := _others(schema, table)):
        lines.append(f"not features: {', '.join(others)}")
    return "\n".join(lines)


def _others(schema: Schema, table: Table) -> list[str]:
    embeddings = {feature.name for feature in schema.features if feature.kind == "embedding"}
    return [name for name in with_embeddings(table.names, embeddings) if name not in schema.names]


def _spread(column: Column) -> str:
    if column.numbers is None or not len(column.numbers):
        return ""
    return f"{column.numbers.min():g} to {column.numbers.max():g}, {len(column.numbers):,} values"


def _hint(feature: Feature, column: Column) -> str:
    """Suggest a value that may mean missing: an outlying number of nines, or a word such as NA."""
    odd = [category for category in feature.categories if category.lower() in _WORDS]
    if odd:
        return f"{odd[0]} may mean missing: missing-codes?"
    if feature.categories or column.numbers is None or len(column.numbers) < 3:
        return ""
    second, highest = np.sort(column.numbers)[-2:]
    is_code = set(f"{highest:g}") == {"9"} and highest - second > 1
    return f"{highest:g} may mean missing: missing-codes?" if is_code else ""
