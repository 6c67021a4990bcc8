"""A table whose columns are divided among clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from fedgraph.data.columns.options import FileSettings
from fedgraph.data.columns.table import Table
from fedgraph.data.own import Name, OwnData, data_path, data_title, with_notes
from fedgraph.data.owners.preparation import Preparation
from fedgraph.data.owners.shared_samples import Holdings, OwnerSource, SharedSampleSettings, at_keys
from fedgraph.data.tables.encoded import check_declared, encoded_inputs, encoded_targets, notes_on_columns
from fedgraph.data.tables.options import TableSettings
from fedgraph.data.tables.tables import bundled_table
from fedgraph.support.errors import DataError

_BUNDLED_LABEL = "label"


class TableColumnSettings(SharedSampleSettings, FileSettings):
    """The table ``[data]`` with ``set = "table-columns"``: classification only, of a file or of a bundled table.

    Rows without a label are new samples. A client lacks a row if all its cells in it are missing.

    Attributes
    ----------
    path           : .csv, .csv.gz or .parquet file, looked for next to the experiment, in the current folder, and in
                     the data folder. Not needed where every node has its own file (node config ``data``) with the
                     key, the label and the columns of its clients.
    bundled        : instead of path, a table that comes with scikit-learn; its label is the column ``label``.
    label          : the column to predict.
    key_column     : the column that identifies the samples, the same for all clients; by default the row number.
    owners         : columns by client, e.g. ``{ hospital = ["age", "weight"], lab = ["glucose"] }``. Without it all
                     columns of a node's own file belong to the one client that the node names.
    num_owners     : instead of owners, divide the columns in order among this many clients, ``owner-0`` and so on.
    first_rows     : use at most this many rows from the beginning.
    categories     : the values of categorical columns, including the label; by default those found in the file. Nodes
                     with their own files must agree on a list. A numeric column listed here becomes categorical.
    max_categories : most values a one-hot column may have.
    """

    set: Literal["table-columns"] = "table-columns"
    path: str | None = None
    bundled: Literal["iris", "wine", "breast-cancer"] | None = None
    label: Name = _BUNDLED_LABEL
    key_column: Name | None = None
    owners: dict[Name, tuple[Name, ...]] | None = None
    num_owners: PositiveInt | None = None
    first_rows: PositiveInt | None = None
    categories: dict[Name, tuple[Name, ...]] = Field(default_factory=dict)
    max_categories: PositiveInt = 200

    @model_validator(mode="after")
    def _check_sources(self) -> TableColumnSettings:
        if self.path is not None and self.bundled is not None:
            raise ValueError("give either path, your own file, or bundled, a table of scikit-learn")
        one_table = self.path is not None or self.bundled is not None
        ways = (self.owners is not None) + (self.num_owners is not None)
        if ways > 1 or (one_table and not ways):
            raise ValueError("give either owners, the columns of each client, or num-owners")
        if not one_table and (self.num_owners is not None or self.key_column is None):
            raise ValueError(
                "without path and bundled, nodes have their own files: give key-column, which matches their rows, "
                "and owners rather than num-owners"
            )
        for owner, columns in (self.owners or {}).items():
            if not columns or len(set(columns)) < len(columns):
                raise ValueError(f"owners: '{owner}' must have a column or more, each once")
            for reserved, key in ((self.label, "label"), (self.key_column, "key-column")):
                if reserved in columns:
                    raise ValueError(f"owners: '{owner}' cannot have the column '{reserved}', which is the {key}")
        return self


class TableColumnSource(OwnerSource):
    """One table, divided by columns."""

    def __init__(self, settings: TableColumnSettings, data_dir: Path, own: OwnData | None = None) -> None:
        """Raise DataError if the rows of own data cannot be matched with those of others."""
        self.settings: TableColumnSettings = settings
        self.data_dir = data_dir
        self.own = own
        if own is not None and (settings.bundled is not None or settings.key_column is None):
            raise DataError(
                "this node has its own data: the experiment must name key-column, by which rows are matched, and "
                "cannot use a bundled table"
            )
        name = f"{settings.bundled} (scikit-learn)" if settings.bundled else data_title(settings.path, own)
        self.title = f"{name} by columns"

    def every_client(self) -> tuple[str, ...]:
        """Return the clients of ``owners``, or ``owner-0`` and so on; for own data those that the node names."""
        return tuple(self._owners)

    def as_trained(self, prepared: Mapping[str, Preparation]) -> TableColumnSource:
        """See :class:`OwnerSource`: a table to predict may have further columns, and others in between."""
        if not prepared:
            return self
        owners = {**self._owners, **{name: kept.columns(self._table.names) for name, kept in prepared.items()}}
        trained = copy(self)  # with the table, which is read by now
        trained._owners = owners
        return trained

    def holdings(self, names: Sequence[str], classes: tuple[str, ...] = ()) -> Holdings:
        """Return the columns of the clients ``names``, ``[rows, features]``, as numbers and one-hot categories."""
        table, settings = self._table, self.settings
        if self.own is not None and names and not classes:
            check_declared(table, self._as_table(tuple(column for name in names for column in self._owners[name])))
        if classes and settings.label not in table.names:
            targets = np.full(table.num_rows, np.nan)
        else:
            listed = {settings.label: classes} if classes else {}
            targets, classes = encoded_targets(table, self._as_table(None, listed))
        every_row = np.arange(table.num_rows)
        inputs, features, scaled, present = [], [], [], []
        for name in names:
            values, own_features, numeric = encoded_inputs(table, self._as_table(self._owners[name]), every_row)
            present.append(np.where(numeric, np.isfinite(values), values != 0.0).any(1))
            inputs.append(torch.from_numpy(values.astype(np.float32)))
            features.append(own_features)
            scaled.append(torch.from_numpy(numeric))
        return Holdings(
            keys=_row_keys(table, settings.key_column),
            labels=torch.from_numpy(np.where(np.isfinite(targets), targets, -1).astype(np.int64)),
            classes=classes,
            inputs=tuple(inputs),
            present=torch.from_numpy(np.array(present, dtype=bool).reshape(len(names), table.num_rows)),
            features=tuple(features),
            scaled=tuple(scaled),
        )

    def identities(self, name: str, keys: Sequence[str], classes: tuple[str, ...] = ()) -> Tensor:
        """See :class:`OwnerSource`: of the whole rows of the file, whichever columns are a client's."""
        return at_keys(_row_keys(self._table, self.settings.key_column), self._table.identities, keys)

    def describe(self, classes: tuple[str, ...] = ()) -> str:
        """Describe the data, with notes on the file and on columns that may have been misread."""
        columns = dict.fromkeys(column for name in self.client_names() for column in self._owners[name])
        if self.settings.label in self._table.names:
            columns[self.settings.label] = None
        notes = notes_on_columns(self._table, self._as_table(None), columns, leaves_out="[data] owners")
        return with_notes(super().describe(classes), [*self._table.notes, *notes])

    def check_listed(self, least_rows: int) -> None:
        """Raise DataError for columns with values in fewer rows that the experiment does not list."""
        if not self.settings.bundled:
            columns = tuple(dict.fromkeys(column for own in self._owners.values() for column in own))
            check_declared(self._table, self._as_table(columns), least_rows)

    @cached_property
    def _owners(self) -> dict[str, tuple[str, ...]]:
        owners, own = self.settings.owners, self.own
        if owners is not None:
            hosted = [] if own is None else [name for name in own.clients if name in owners]
            return {name: owners[name] for name in hosted} or owners
        reserved = (self.settings.label, self.settings.key_column)
        feature_columns = [name for name in self._table.names if name not in reserved]
        if own is not None:
            return {own.only_client(): tuple(feature_columns)}
        count = self.settings.num_owners or 1
        if count > len(feature_columns):
            raise DataError(
                f"{self.title}: num-owners is {count}, but there are only {len(feature_columns)} columns to deal out"
            )
        digits = len(str(count - 1))
        parts = np.array_split(np.array(feature_columns, dtype=object), count)
        return {f"owner-{number:0{digits}d}": tuple(part.tolist()) for number, part in enumerate(parts)}

    @cached_property
    def _table(self) -> Table:
        settings = self.settings
        if settings.bundled is not None:
            table = bundled_table(settings.bundled)
        else:
            table = settings.read(data_path(settings.path, self.data_dir, self.own))
        if settings.first_rows is None or settings.first_rows >= table.num_rows:
            return table
        return table.part(np.arange(settings.first_rows))

    def _as_table(
        self, columns: tuple[str, ...] | None, listed: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    ) -> TableSettings:
        """Return the settings with which the set ``table`` would read the columns of one client.

        ``listed`` are values of categorical columns, in addition to those of the settings.
        """
        settings = self.settings
        return TableSettings(
            label=settings.label,
            features=columns,
            categories={**settings.categories, **listed},
            max_categories=settings.max_categories,
        )


def _row_keys(table: Table, key_column: str | None) -> tuple[str, ...]:
    """Return the key of each row: the text of a column, or its number."""
    if key_column is None:
        digits = max(6, len(str(table.num_rows)))
        return tuple(f"row-{number:0{digits}d}" for number in range(table.num_rows))
    keys = table.texts(key_column).to_pylist()
    if None in keys:
        raise DataError(f"row {keys.index(None) + 1} of {table.where} has no key in column '{key_column}'")
    return tuple(keys)
