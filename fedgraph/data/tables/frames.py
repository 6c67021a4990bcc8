"""The data frame of one client as a data set, and rows that everybody may see."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from fedgraph.data.columns.table_files import Table, table_of
from fedgraph.data.schema.inference import check_dropped
from fedgraph.data.tables.tables_of_clients import ClientTableSettings, TablesOfClients
from fedgraph.support.errors import DataError


class FrameTables(TablesOfClients):
    """Data frames in memory, for apps that load their data themselves.

    Parameters
    ----------
    settings : ClientTableSettings
        Shares of training, validation and test rows, and what the columns are.
    client : str, optional
        Name of the client; None if there is none, as at the server.
    load : callable, optional
        Returns the client's data frame; called once, when its rows are needed.
    public : data frame, optional
        Rows that everybody may see.
    """

    def __init__(
        self,
        settings: ClientTableSettings,
        client: str | None = None,
        load: Callable[[], Any] | None = None,
        public: Any = None,
    ) -> None:
        super().__init__(settings, Path())
        self._client, self._load, self._public = client, load, public

    def client_names(self) -> list[str]:
        """Return the client."""
        return [] if self._client is None else [self._client]

    def whole_table(self, name: str) -> Table:
        """Return the data frame of the client as a table."""
        return self._table

    @cached_property
    def _table(self) -> Table:
        if self._load is None:
            raise DataError("there is no data frame: give a function that loads it")
        return table_of(self._load(), "the data frame")

    def _check_dropped(self, table: Table) -> None:
        # Data frames of others may have the columns that this one lacks.
        check_dropped(table, self.settings.table_schema, partial=True)

    def public_table(self) -> Table | None:
        """Return the public rows; None if there are none."""
        return None if self._public is None else table_of(self._public, "the public data frame")

    def describe(self) -> str:
        """Return a phrase for reports, which says nothing of rows and columns."""
        return "data frames of the clients"
