"""Clients that hold tables of their own, whose columns are features of many kinds, not the same everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
from torch import Tensor

from fedgraph.data.base import SPLITS, DataSource, SplitName
from fedgraph.data.columns.files import Table
from fedgraph.data.schema.inference import SchemaSettings
from fedgraph.support.errors import DataError


@dataclass(frozen=True, eq=False)
class ClientTable:
    """What one client holds.

    split : int8 ``[rows]``, index into ``SPLITS``.
    """

    table: Table
    split: Tensor

    def rows(self, split: SplitName) -> Tensor:
        """The rows of a split, int64."""
        return (self.split == SPLITS.index(split)).nonzero().flatten()


@runtime_checkable
class ClientTableSource(DataSource, Protocol):
    """A data set of such clients.

    settings : whose ``table_schema`` says what columns are, as far as it is not left to the rules.
    """

    settings: Any

    def load_table(self, name: str) -> ClientTable:
        """What the client ``name`` holds; raises DataError for unknown names and data of no use."""

    def public_table(self) -> Table | None:
        """Rows that everybody may see, the server too; None where there are none."""


def client_table_source(source: DataSource, method: str) -> ClientTableSource:
    """The data set as one whose clients hold tables.

    Raises
    ------
    DataError
        When it is none, naming the ``method`` that needs one.
    """
    if not isinstance(source, ClientTableSource):
        raise DataError(
            f"method '{method}' needs clients with tables of their own, which this data set does not have; sets that "
            "do: mixed-table, linked-deaths, bayesian-network"
        )
    return source


def schema_settings(source: ClientTableSource) -> SchemaSettings:
    """What the data set says of its columns."""
    found: SchemaSettings = source.settings.table_schema
    return found


def rows_of(table: Table, rows: Tensor) -> Table:
    """Some rows of a table, int64."""
    indices = pa.array(rows.numpy())
    return Table({name: column.take(indices) for name, column in table.columns.items()}, table.where)
