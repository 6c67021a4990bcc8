"""The data frame of one client, and public rows, as a data set."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from fedgraph.data.columns.table_files import Table, from_frame
from fedgraph.data.schema.inference import check_dropped
from fedgraph.data.tables.client_tables import ClientTableSettings, ClientTableSource
from fedgraph.support.errors import DataError


class FrameTables(ClientTableSource):
    """In-memory data frames, for apps that load their own data.

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
        return from_frame(self._load(), "the data frame")

    def _check_dropped(self, table: Table) -> None:
        # Other clients' data frames may have the missing columns.
        check_dropped(table, self.settings.table_schema, partial=True)

    def public_table(self) -> Table | None:
        """Return the public rows; None if there are none."""
        return None if self._public is None else from_frame(self._public, "the public data frame")

    def describe(self) -> str:
        """Return a phrase for reports that reveals nothing of rows and columns."""
        return "data frames of the clients"
