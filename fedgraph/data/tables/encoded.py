"""Encoding of labelled tables: labels as classes or targets, columns as features, and the rows of each client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgraph.data.columns.cells import is_number
from fedgraph.data.columns.columns import (
    has_fraction,
    quote_some,
    read_categories,
    read_column,
)
from fedgraph.data.columns.notes import near_duplicates, notes_on_numbers, two_categories
from fedgraph.data.columns.table import Table
from fedgraph.data.own import OwnData
from fedgraph.data.partition import Indices, client_names, partition
from fedgraph.data.shared_tests import draw_shared_test
from fedgraph.data.tables.options import TableSettings
from fedgraph.support.errors import DataError, similar

Floats = NDArray[np.float64]

_FEW_CATEGORIES = 20
_FEW_NUMBERS = 10
"""Up to this many distinct numbers may be category codes."""


class Encoded(NamedTuple):
    """Encoded rows: inputs ``[rows, features]`` with NaN for missing numbers, ``numeric`` ``[features]``.

    ``shared`` are the shared test rows, which belong to no client. ``resolved`` are settings that encode another table
    in the same way. ``notes`` are on the columns.
    """

    inputs: Floats
    features: tuple[str, ...]
    numeric: NDArray[np.bool_]
    targets: Floats
    classes: tuple[str, ...]
    clients: dict[str, Indices]
    shared: Indices
    resolved: TableSettings
    notes: tuple[str, ...]


@lru_cache(maxsize=4)
def encode(table: Table, tested: Table | None, settings_json: str, own: OwnData | None) -> Encoded:
    """Encode a table, followed by the rows of ``tested``.

    Cached, as many nodes load different clients of one table; hence the settings are JSON, which is hashable.
    """
    settings = TableSettings.model_validate_json(settings_json)
    for name in settings.categories:
        table.column(name)
    if own is not None:
        check_declared(table, settings)
    targets, classes = encoded_targets(table, settings)
    kept = np.isfinite(targets)
    owners: tuple[str, ...] = ()
    if settings.client_column is not None:
        codes, owners = table.names_in(settings.client_column)
        kept &= codes >= 0
    if not kept.any():
        raise DataError(f"{table.where} has no row with a label in column '{settings.label}' (and a client)")
    inputs, features, numeric = encoded_inputs(table, settings, np.flatnonzero(kept))
    targets, resolved = targets[kept], resolved_settings(table, settings)
    labels = targets.astype(np.int64) if classes else np.zeros(len(targets), dtype=np.int64)
    whole, shared = np.arange(len(targets)), np.arange(0)
    if tested is not None:
        more_inputs, more_targets = _encode_test(tested, table, resolved, features)
        shared = len(targets) + np.arange(len(more_targets))
        inputs, targets = np.concatenate([inputs, more_inputs]), np.concatenate([targets, more_targets])
    elif settings.test == "shared":
        shared = draw_shared_test(labels, settings.shares[2], settings.partition_seed)
        whole = np.setdiff1d(whole, shared)
    if settings.client_column is not None:
        parts = [whole[codes[kept][whole] == code] for code in range(len(owners))]
        clients = {owner: rows for owner, rows in zip(owners, parts, strict=True) if len(rows)}
    elif own is not None:
        clients = {own.only_client(): whole}
    else:
        if not classes and settings.partition not in ("iid", "power-law"):
            raise DataError(
                f'partition = "{settings.partition}" divides classes, and a regression has none: '
                f'use "iid", "power-law" or client-column'
            )
        parts = [whole[part] for part in partition(settings, labels[whole], settings.partition_seed)]
        clients = dict(zip(client_names(len(parts)), parts, strict=True))
    notes = tuple(_notes(table, settings, clients))
    return Encoded(inputs, features, numeric, targets, classes, clients, shared, resolved, notes)


def resolved_settings(table: Table, settings: TableSettings) -> TableSettings:
    """Return settings with the features of a table and the values of all categorical ones filled in."""
    columns = tuple(_features(table, settings))
    texts = [name for name in columns if name in settings.categories or _numbers(table, name) is None]
    if settings.task == "classification":
        texts.append(settings.label)
    listed = {name: read_categories(table, name, settings.categories.get(name))[1] for name in texts}
    return settings.model_copy(update={"features": columns, "categories": listed})


def _encode_test(
    tested: Table, table: Table, resolved: TableSettings, features: tuple[str, ...]
) -> tuple[Floats, Floats]:
    """Return inputs and targets of the labelled rows of ``tested``, with the features of ``table``."""
    targets, _ = encoded_targets(tested, resolved)
    kept = np.isfinite(targets)
    if not kept.any():
        raise DataError(f"{tested.where} has no row with a label in column '{resolved.label}' to test on")
    advice = "add marks of missing values to [data] missing, or list all values, [data.categories]"
    inputs = encode_inputs_like(tested, resolved, features, np.flatnonzero(kept), table.where, advice)
    return inputs, targets[kept]


def encode_inputs_like(
    table: Table, resolved: TableSettings, features: tuple[str, ...], rows: Indices, first: str, advice: str
) -> Floats:
    """Encode some rows of a table like those of the table that ``first`` names; ``resolved`` has its categories."""
    inputs, found, _ = encoded_inputs(table.of_cells(), resolved, rows)
    if found != features:
        odd = next(name for name, known in zip(found, features, strict=False) if name != known)
        raise DataError(
            f"column '{odd.partition('=')[0]}' holds words in {table.where} and numbers in {first}: {advice}"
        )
    return inputs


def encoded_targets(table: Table, settings: TableSettings) -> tuple[Floats, tuple[str, ...]]:
    """Return class indices, or numbers, ``[rows]`` with NaN where the label is missing; and the class names."""
    if settings.task == "regression":
        values = table.numbers(settings.label)
        if values is None:
            column = read_column(table, settings.label)
            words = [text for text in column.texts.to_pylist() if not is_number(text)]
            raise DataError(
                f"column '{settings.label}' of {table.where} holds more than numbers, {quote_some(words)} (the first "
                f"in row {column.row_of(words)}): a regression needs numbers; add marks of missing values to missing, "
                "or "
                'use task = "classification"',
                quoted=quote_some(words),
            )
        return values, ()
    listed = settings.categories.get(settings.label)
    codes, classes = read_categories(table, settings.label, listed)
    if listed is None and (len(classes) > settings.max_categories or any(map(has_fraction, classes))):
        raise DataError(
            f"column '{settings.label}' of {table.where} has {len(classes):,} different values, each of which would be "
            'a class: use task = "regression" to predict a number, or list the classes, [data.categories] '
            f"{settings.label} = [...]"
        )
    if len(classes) < 2:
        raise DataError(
            f"column '{settings.label}' of {table.where} must hold two classes or more, and holds "
            f"{quote_some(classes) if classes else 'none'}; cells that are empty or read NA, nan or the like "
            "are missing ([data] default-missing)",
            quoted=quote_some(classes) if classes else "",
        )
    return np.where(codes >= 0, codes, np.nan), classes


def check_declared(table: Table, settings: TableSettings, least_rows: int | None = None) -> None:
    """Raise DataError if the settings do not list the values of a categorical column of a node's own table.

    With ``least_rows``, they may be lacking for columns each of whose values has as many rows.
    """
    undeclared = [
        name for name in _features(table, settings) if name not in settings.categories and _numbers(table, name) is None
    ]
    table.column(settings.label)
    if settings.task == "classification" and settings.label not in settings.categories:
        undeclared.append(settings.label)
    why = "nodes with their own data must agree on the values of categorical columns"
    if least_rows is not None:
        undeclared = [name for name in undeclared if (read_column(table, name).counts < least_rows).any()]
        why = f"names of values in fewer than {least_rows} rows do not leave this node ([agreement] least-rows)"
    if undeclared:
        raise DataError(
            f"{why}, and the experiment does "
            f"not list those of {', '.join(repr(name) for name in undeclared)} of {table.where}: list all values that "
            f"any node may have, [data.categories] {undeclared[0]} = [...]"
        )


def _features(table: Table, settings: TableSettings) -> Sequence[str]:
    """Return the columns to predict from."""
    reserved = (settings.label, settings.client_column)
    for name in settings.drop:
        if name not in table.names:
            known = f"{similar([name], table.names)}; its columns: {', '.join(table.names)}"
            raise DataError(f"[data] drop: {table.where} has no column '{name}'{known}")
    chosen = settings.features or [name for name in table.names if name not in (*reserved, *settings.drop)]
    if not chosen or any(name in reserved for name in chosen):
        raise DataError(f"[data] features of {table.where} must be other columns than the label and client-column")
    return chosen


def _numbers(table: Table, name: str) -> Floats | None:
    """Return a column as numbers, None if it is categorical. Raises DataError for a few words among numbers."""
    values = None if name in table.categorical else table.numbers(name)
    if values is None:
        read_column(table, name).check_words(
            f"add marks of missing values to missing, or list the values of a categorical column, [data.categories] "
            f"{name} = [...]"
        )
    return values


def encoded_inputs(
    table: Table, settings: TableSettings, rows: Indices
) -> tuple[Floats, tuple[str, ...], NDArray[np.bool_]]:
    """Return the features of ``rows``, their names, and a mask of numeric (not one-hot) ones."""
    blocks: list[Floats] = []
    names: list[str] = []
    numeric: list[bool] = []
    for name in _features(table, settings):
        values = None if name in settings.categories else _numbers(table, name)
        if values is not None:
            blocks.append(values[rows, None])
            names.append(name)
            numeric.append(True)
            continue
        codes, listed = read_categories(table, name, settings.categories.get(name))
        if len(listed) > settings.max_categories:
            raise DataError(
                f"column '{name}' of {table.where} has {len(listed):,} different values, too many for one-hot "
                f"(max-categories = {settings.max_categories}): leave it out (drop), or raise max-categories"
            )
        blocks.append((codes[rows, None] == np.arange(len(listed))).astype(np.float64))
        names += [f"{name}={value}" for value in listed]
        numeric += [False] * len(listed)
    return np.concatenate(blocks, axis=1), tuple(names), np.array(numeric)


def _notes(table: Table, settings: TableSettings, clients: Iterable[str]) -> Iterator[str]:
    """Yield notes on columns that may have been misread."""
    if settings.client_column is not None and (pair := near_duplicates(list(clients))):
        yield f"'{pair[0]}' and '{pair[1]}' are two clients"
    yield from notes_on_columns(table, settings, [*_features(table, settings), settings.label])


def notes_on_columns(
    table: Table, settings: TableSettings, names: Iterable[str], leaves_out: str = "[data] drop"
) -> Iterator[str]:
    """Yield notes on features and the label that may have been misread; ``leaves_out`` is the key that drops one."""
    for name in names:
        declared = name in settings.categories or name in table.categorical
        categorical = declared or (name == settings.label and settings.task == "classification")
        values = None if categorical else table.numbers(name)
        if values is not None:
            yield from notes_on_numbers(table, name, values, "[data.categories]")
            if name != settings.label and _counts_rows(values):
                yield f"'{name}' numbers the rows, and is a feature unless {leaves_out} leaves it out"
            continue
        texts = read_column(table, name).texts.to_pylist()
        yield from two_categories(name, sorted(texts))
        numbers = sum(map(is_number, texts))
        if not declared and len(texts) > max(_FEW_CATEGORIES, table.num_rows // 4):
            yield f"'{name}' is {len(texts):,} categories, nearly one for each row"
        elif not declared and numbers < len(texts) < 2 * numbers and numbers > _FEW_NUMBERS:
            yield f"'{name}' is categories, as {len(texts) - numbers} of its {len(texts)} values are no numbers"


def _counts_rows(values: Floats) -> bool:
    """Return whether numbers increase by one from row to row."""
    return len(values) > _FEW_NUMBERS and bool((np.diff(values) == 1).all())
