"""Inference of a table's schema: the kind of each column, by rules that settings can override.

- Text is categorical, and binary if there are two values; so are unordered categories of a data frame, also where they
  are numbers. Whole numbers of few values with words among them are text; a few words among other numbers are an error,
  as they usually mean missing.
- Whole numbers are binary if there are two values (usually 0 and 1), integer up to 100 distinct values, real beyond.
  All other numbers are real, even if there are only two: measurements do not leave a client as categories.
- A constant column of text or whole numbers is categorical with one category; it takes the kind that it has at other
  clients (``fedgraph.data.schema.agreement``).
- Ordinal features and embeddings must be declared. An embedding is a column of lists of equally many numbers, or
  columns ``scan.0``, ``scan.1``, ..., which form the embedding ``scan``.
- A column without any value is not a feature, unless the settings give its kind.

Categories are values of the data and leave the client with its schema, except those in fewer than ``least-rows`` rows,
which might identify a person: they count as missing unless another client sends them. Drop columns that must not leave
the client, or list their categories for all clients.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, section 2 (data setup).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from fedgraph.data.columns.columns import Column, Floats, as_category, read_column, read_numbers
from fedgraph.data.columns.embeddings import read_embedding, with_embeddings
from fedgraph.data.columns.table import Table
from fedgraph.data.schema.schema import Feature, Kind, Schema
from fedgraph.support.errors import DataError, ExperimentError, similar
from fedgraph.support.settings import Settings

ExclusionReason = Literal["empty", "rare", "partly"]
"""Why a column is not a feature, or not with all of its values."""

_MAX_INTEGER_VALUES = 100
"""Whole numbers with more distinct values are real."""


class KindSettings(Settings):
    """The kind of a column, given by the user.

    Attributes
    ----------
    kind       : of feature.
    categories : all of them, in the order of their units; by default those found in the table. Ordinal features that
                 are words need them, from the least to the most.
    """

    kind: Kind
    categories: tuple[Annotated[str, BeforeValidator(as_category)], ...] = ()

    @model_validator(mode="after")
    def _categories_fit(self) -> KindSettings:
        if self.categories:
            try:
                Feature("", self.kind, self.categories)
            except DataError as error:
                raise ValueError(str(error).removeprefix("feature '' ")) from None
        return self


def _from_kind(given: Any) -> Any:
    return {"kind": given} if isinstance(given, str) else given


class SchemaSettings(Settings):
    """The features among the columns of a table, and their kinds where the rules do not suffice.

    Attributes
    ----------
    features           : the columns that are features, in this order; by default all, in the order of the table.
    drop               : columns that are not features, such as the name of a person. Unknown names are an error; where
                         clients have their own files, only names similar to a column's.
    kinds              : by column, ``"ordinal"``, ``"embedding"`` or the like; or ``{ kind = "ordinal", categories =
                         ["low", "high"] }`` with all categories, so that no client needs to send those of its data.
    missing_codes      : by column, values that mean missing, e.g. ``[99, 9999]`` or ``["unknown"]``.
    unknown            : a value that is not one of a feature's categories is an ``error``, or ``missing``.
    max_categories     : most distinct values of a categorical feature; it has a unit for each.
    least_rows         : a value in fewer rows of a client is not sent as a category, and is missing in them unless
                         another client sends it. Categories listed under ``kinds`` are known to all anyway.
    """

    features: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    kinds: dict[str, Annotated[KindSettings, BeforeValidator(_from_kind)]] = Field(default_factory=dict)
    missing_codes: dict[str, tuple[int | float | str, ...]] = Field(default_factory=dict)
    unknown: Literal["error", "missing"] = "error"
    max_categories: PositiveInt = 100
    least_rows: PositiveInt = 5

    @model_validator(mode="after")
    def _keys_fit(self) -> SchemaSettings:
        both = sorted(set(self.features or ()) & set(self.drop))
        if both:
            raise ValueError(f"'{both[0]}' is among features and drop")
        if len(set(self.features or ())) < len(self.features or ()):
            raise ValueError("features names a column twice")
        return self

    @property
    def embeddings(self) -> set[str]:
        """Features that ``kinds`` makes embeddings."""
        return {name for name, chosen in self.kinds.items() if chosen.kind == "embedding"}

    def with_least_rows(self, least_rows: int) -> SchemaSettings:
        """Return the settings with this ``least_rows`` at least."""
        return self.model_copy(update={"least_rows": max(self.least_rows, least_rows)})

    def lists_categories(self, name: str) -> bool:
        """Return whether the settings list all categories of a column."""
        return name in self.kinds and bool(self.kinds[name].categories)

    @property
    def named(self) -> set[str]:
        """All columns that the settings name."""
        return {*(self.features or ()), *self.drop, *self.kinds, *self.missing_codes}


def infer_schema(table: Table, settings: SchemaSettings | None = None, partial: bool = False) -> Schema:
    """Infer the features of a table.

    Returns a Schema with at least one feature. Raises DataError for a column that the settings name and the table
    lacks; for too many categories; for a kind that does not fit the column's values; for a few words among numbers; and
    when no feature is left.

    Parameters
    ----------
    table : Table
        With all columns that the settings name, unless ``partial``.
    settings : SchemaSettings, optional
        By default every category counts, however rare, since nothing leaves the process.
    partial : bool
        Whether the settings also name other clients' columns, so that this table may lack some; :func:`check_used`
        finds names that no client knows.
    """
    settings = settings or SchemaSettings(least_rows=1)
    if partial:
        check_dropped(table, settings, partial)
    else:
        for name in sorted(settings.named - settings.embeddings):
            table.column(name)
        for name in sorted(settings.embeddings):
            read_embedding(table, name)
    found = (_feature(table, name, settings) for name in _chosen(table, settings))
    schema = Schema(tuple(feature for feature in found if feature is not None))
    if not schema.features:
        raise DataError(f"{table.where} has no feature: none of its columns {', '.join(table.names)} is left")
    return schema


def excluded_columns(table: Table, settings: SchemaSettings, schema: Schema) -> dict[str, ExclusionReason]:
    """Return the columns that :func:`infer_schema` excluded, in whole or in part, and why.

    ``empty`` has no value; ``rare`` has only words in fewer than ``least-rows`` rows, such as names of persons;
    ``partly`` is a feature, but has such words among others. Columns that the settings leave out are not listed.

    Parameters
    ----------
    table : Table
        The table.
    settings : SchemaSettings
        With which the schema was inferred.
    schema : Schema
        The features that it has.
    """
    none = [name for name in _chosen(table, settings) if name not in schema.names]
    codes = settings.missing_codes
    found: dict[str, ExclusionReason] = {
        name: "rare" if len(read_column(table, name, codes.get(name, ())).texts) else "empty" for name in none
    }
    for feature in schema.features:
        if feature.categories and not settings.lists_categories(feature.name):
            column = read_column(table, feature.name, codes.get(feature.name, ()))
            if (column.counts < settings.least_rows).any():
                found[feature.name] = "partly"
    return found


def check_dropped(table: Table, settings: SchemaSettings, partial: bool = False) -> None:
    """Raise DataError if ``drop`` names an unknown column; if ``partial``, only if it is similar to a known one."""
    absent = [name for name in settings.drop if name not in with_embeddings(table.names, settings.embeddings)]
    left = [name for name in table.names if name not in settings.drop]
    for name in absent:
        candidates = [other for other in left if re.sub(r"\d", "", other) != re.sub(r"\d", "", name)]
        hint = similar([name], candidates if partial else left)
        if hint or not partial:
            raise DataError(
                f"drop of [data.table-schema] names '{name}', and {table.where} has no such column{hint}; its columns: "
                f"{', '.join(table.names)}"
            )


def check_used(settings: SchemaSettings, schemas: Iterable[Schema]) -> None:
    """Raise ExperimentError if ``features``, ``kinds`` or ``missing-codes`` name a column that no schema has."""
    known = {name for schema in schemas for name in schema.names}
    keys: dict[str, Collection[str]] = {
        "features": settings.features or (),
        "kinds": settings.kinds,
        "missing-codes": settings.missing_codes,
    }
    for key, names in keys.items():
        unused = sorted(set(names) - known - set(settings.drop))
        if unused:
            raise ExperimentError(
                f"{key} names {', '.join(unused)}, of which no client has a value; "
                f"the features are {', '.join(sorted(known))}"
            )


def _chosen(table: Table, settings: SchemaSettings) -> list[str]:
    columns = with_embeddings(table.names, settings.embeddings)
    chosen = columns if settings.features is None else [name for name in settings.features if name in columns]
    return [name for name in chosen if name not in settings.drop]


def _feature(table: Table, name: str, settings: SchemaSettings) -> Feature | None:
    chosen = settings.kinds.get(name)
    if chosen is not None and chosen.kind == "embedding":
        size = read_embedding(table, name, settings.missing_codes.get(name, ())).shape[1]
        return Feature(name, "embedding", size=size)
    if chosen is not None and chosen.categories:
        return Feature(name, chosen.kind, chosen.categories)
    codes = settings.missing_codes.get(name, ())
    numbers = None if chosen is None and name in table.categorical else read_numbers(table, name, codes)
    if chosen is not None and chosen.kind in ("real", "integer", "ordinal"):
        if numbers is None:
            _check_numbers(read_column(table, name, codes), chosen.kind)
        return Feature(name, chosen.kind)
    if chosen is None and numbers is not None and not _are_whole(numbers):
        return Feature(name, "real")
    column = read_column(table, name, codes)
    if chosen is None:
        column.check_words('list marks of missing values under missing-codes, or make it "categorical" under kinds')
    if chosen is None and numbers is not None and len(column.texts) > 2:
        return Feature(name, "integer" if len(column.texts) <= _MAX_INTEGER_VALUES else "real")
    most = 2 if chosen is not None and chosen.kind == "binary" else settings.max_categories
    if int((column.counts >= settings.least_rows).sum()) > most:
        raise DataError(_too_many(column, most))
    categories = column.categories(settings.least_rows)
    if not categories:
        return None
    is_binary = len(categories) == 2 and (chosen is None or chosen.kind == "binary")
    return Feature(name, "binary" if is_binary else "categorical", categories)


def _are_whole(numbers: Floats) -> bool:
    present = numbers[np.isfinite(numbers)]
    return bool((present == present.round()).all())


def _check_numbers(column: Column, kind: Kind) -> None:
    if kind == "ordinal" and column.numbers is None:
        raise DataError(
            f"column '{column.name}' of {column.where} is ordinal and holds words: list them in order, "
            f'kinds.{column.name} = {{ kind = "ordinal", categories = ["least", ..., "most"] }}'
        )
    column.as_numbers()


def _too_many(column: Column, most: int) -> str:
    if most == 2:
        advice = "make it categorical under kinds, or name those that mean missing under missing-codes"
    else:
        advice = "leave it out (drop), raise max-categories, or make it numbers under kinds"
    return (
        f"column '{column.name}' of {column.where} has {len(column.texts):,} different values, more than "
        f"{most:,} categories: {advice}"
    )
