"""A schema as text, with a summary of its table."""

from __future__ import annotations

import numpy as np

from fedgraph.data.columns.columns import Column, quote_some, read_column
from fedgraph.data.columns.embeddings import read_embedding, with_embeddings
from fedgraph.data.columns.table import Table
from fedgraph.data.schema.inference import SchemaSettings
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.support.errors import counted

_LONGEST = 60
_WORDS = {"?", ".", "-", "na", "n/a", "nan", "null", "unknown"}


def as_text(schema: Schema, table: Table, settings: SchemaSettings) -> str:
    """Describe a schema, one line per feature, and at the end the columns of its table that are not features.

    A line has name, kind, categories or the range of numbers, the fraction of missing rows, codes that look like
    missing values unless ``missing-codes`` of the settings lists them, and values that are missing because they are
    rare. This reveals data: it is for the owner of the table only.
    """
    units = sum(feature.width for feature in schema.features)
    lines = [f"{counted(len(schema.features), 'feature')}, {counted(units, 'unit')}"]
    rows = []
    for feature in schema.features:
        codes = settings.missing_codes.get(feature.name, ())
        if feature.kind == "embedding":
            missing = np.isnan(read_embedding(table, feature.name, codes)[:, 0])
            shown, hint = counted(feature.size, "number"), ""
        else:
            column = read_column(table, feature.name, codes)
            missing, hint = column.codes < 0, _hint(feature, column)
            if feature.categories:
                missing = np.isnan(column.as_codes(feature.categories, unknown_is_missing=True))
                hint = "; ".join(filter(None, (_rare(feature, column, settings), hint)))
            shown = ", ".join(feature.categories) or _spread(column)
        shown = shown if len(shown) <= _LONGEST else shown[: _LONGEST - 4] + " ..."
        rows.append([feature.name, feature.kind, shown, f"{missing.mean():.1%} missing", hint])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    embeddings = {feature.name for feature in schema.features if feature.kind == "embedding"}
    if others := [name for name in with_embeddings(table.names, embeddings) if name not in schema.names]:
        lines.append(f"not features: {', '.join(others)}")
    return "\n".join(lines)


def _spread(column: Column) -> str:
    if column.numbers is None or not len(column.numbers):
        return ""
    return f"{column.numbers.min():g} to {column.numbers.max():g}, {counted(len(column.numbers), 'value')}"


def _rare(feature: Feature, column: Column, settings: SchemaSettings) -> str:
    """Name the values that are no categories, as they are in too few rows."""
    rare = [text for text in column.texts.to_pylist() if text not in feature.categories]
    if not rare or settings.lists_categories(feature.name):
        return ""
    few = f"in fewer than {settings.least_rows} rows (least-rows)"
    return f"{quote_some(rare)} {few}: missing unless another client has more"


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
