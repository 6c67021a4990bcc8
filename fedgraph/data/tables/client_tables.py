"""Clients with tables of their own, whose columns are features of many kinds and differ between clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from fedgraph.data.base import SPLITS, DataSource, SplitName
from fedgraph.data.columns.table_files import Table
from fedgraph.data.schema.inference import SchemaSettings
from fedgraph.support.errors import DataError


@dataclass(frozen=True, eq=False)
class ClientTable:
    """The table of one client.

    Attributes
    ----------
    table : Table
        All rows.
    split : Tensor
        int8 ``[rows]``, index into ``SPLITS``.
    """

    table: Table
    split: Tensor

    def rows(self, split: SplitName) -> Tensor:
        """Return the rows of a split, int64."""
        return (self.split == SPLITS.index(split)).nonzero().flatten()


@runtime_checkable
class ClientTableSource(DataSource, Protocol):
    """A data set whose clients have tables of their own.

    Attributes
    ----------
    settings : Any
        Its ``table_schema`` (a :class:`SchemaSettings`) describes the columns where the rules do not suffice.
    """

    settings: Any

    def load_table(self, name: str) -> ClientTable:
        """Load the table of the client ``name``; raises DataError for unknown names and unusable data."""

    def public_table(self) -> Table | None:
        """Return rows that everybody may see, including the server; None if there are none."""


def client_table_source(source: DataSource, method: str) -> ClientTableSource:
    """Check that the clients of a data set have tables of their own.

    Returns ``source`` itself. Raises DataError when it is not a :class:`ClientTableSource`, or has one label.

    Parameters
    ----------
    source : DataSource
        Any data set.
    method : str
        Names the method in the message.
    """
    if not isinstance(source, ClientTableSource):
        raise DataError(
            f"method '{method}' needs clients with tables of their own, which this data set does not have; sets that "
            "do: mixed-table, linked-deaths, bayesian-network"
        )
    if getattr(source.settings, "label", None) is not None:
        raise DataError(
            f"[data] label is for methods that train a model of one label, and '{method}' makes one of all features: "
            f"leave it out; targets of [{method}] are the features that it is judged by"
        )
    return source


def schema_settings(source: ClientTableSource) -> SchemaSettings:
    """Return the settings of a data set that describe its columns. The table ``[data.table-schema]``."""
    found: SchemaSettings = source.settings.table_schema
    return found


def rows_of(table: Table, rows: Tensor) -> Table:
    """Return some rows (int64) of a table."""
    return table.part(rows.numpy())
