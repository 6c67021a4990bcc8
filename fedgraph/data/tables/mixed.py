"""Files of mixed columns: one per client, or one divided among clients."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import torch
from pydantic import Field, PositiveInt, model_validator

from fedgraph.data.columns.options import FileSettings
from fedgraph.data.columns.table import Table
from fedgraph.data.own import CLIENT, OwnData, data_path, data_title, with_notes
from fedgraph.data.tables.divided import DividedTableSettings, DividedTableSource
from fedgraph.data.tables.hospitals import HOSPITALS, hospitals_table
from fedgraph.support.errors import DataError, counted
from fedgraph.support.randomness import generator

_PUBLIC_PATIENTS = 1000


class MixedTableSettings(DividedTableSettings, FileSettings):
    """The ``[data]`` table with ``set = "mixed-table"``.

    With ``{client}`` in the path there is a file per client. A single file is divided among clients.

    Attributes
    ----------
    path           : .csv, .csv.gz or .parquet file, looked for next to the experiment, in the current folder, and in
                     the data folder. Not needed where every node has its own file (node config ``data``): all its
                     rows belong to the one client that the node names, or they are divided by ``client_column``; with
                     ``{client}`` in it, there is one for each of the clients that the node names. ``hospitals`` needs
                     no file: patients at five hospitals, made up here, some of whose columns only some hospitals have
                     (``client-column = "hospital"``).
    public         : a public file of the same columns, instead of a part of the rows; ``hospitals``: a thousand other
                     patients.
    limit          : number of rows of a single file that are used, drawn at random.
    gaps           : fraction of its cells that are made missing at random, to study missing values.
    whole          : columns without such gaps.
    """

    set: Literal["mixed-table"] = "mixed-table"
    public: str | None = None
    limit: PositiveInt | None = None
    gaps: float = Field(default=0.0, ge=0, lt=1)
    whole: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _files_fit(self) -> MixedTableSettings:
        a_file_each = CLIENT in (self.path or "")
        if a_file_each and not isinstance(self.clients, tuple):
            raise ValueError("a path with {client} in it needs the names of the clients: clients = [...]")
        if self.public is not None and self.public_share:
            raise ValueError("give public rows by a file (public) or as a part of all (public-share), not both")
        if a_file_each and self.public_share:
            raise ValueError("public-share is a part of a single file; with a file for each client, give public")
        if (a_file_each or self.path is None) and (self.limit is not None or self.gaps):
            raise ValueError("limit and gaps need one file for all: give its path")
        return self


class MixedTableSource(DividedTableSource):
    """One file for each client, or one divided among clients."""

    settings: MixedTableSettings

    def __init__(self, settings: MixedTableSettings, data_dir: Path, own: OwnData | None = None) -> None:
        """Set ``owner``, the only client of a node's own file.

        Raises DataError for own data with a public part, which no other party would have, and for own data whose
        clients are not named, or are named in two ways.
        """
        super().__init__(settings, data_dir, own)
        self.divides_one_table = CLIENT not in str(settings.path if own is None else own.path)
        self.owner = None
        if own is None:
            return
        if settings.public_share:
            raise DataError(
                "public-share is a part of one file for all, and this node has its own data: leave it out, and give "
                "public rows as a file in the data folders of the server and all nodes, [data] public"
            )
        if self._has_file_each and (not own.clients or settings.client_column is not None):
            raise DataError(
                "the node config key 'data' has {client} in it: set the node config key 'clients' to the names it "
                "stands for, and leave out client-column"
            )
        if not self._has_file_each and settings.client_column is None:
            self.owner = own.only_client()

    def client_names(self) -> list[str]:
        """Return the clients in the settings; for own data those that the node config or a column names."""
        if self.own is None or self.settings.client_column is not None:
            return super().client_names()
        return list(self.own.clients) if self.owner is None else [self.owner]

    def whole_table(self, name: str) -> Table:
        """Return the client's file, or its rows of the single one."""
        if self._has_file_each:
            return self.settings.read(Path(str(self._place).replace(CLIENT, name)))
        return super().whole_table(name) if self.owner is None else self._table

    def _check_dropped(self, table: Table) -> None:
        if self.own is None and not self._has_file_each:
            super()._check_dropped(table)

    def public_table(self) -> Table | None:
        """Return the public file, or the public part of the single one."""
        public = self.settings.public
        if self.own is None and public == HOSPITALS:
            return hospitals_table(_PUBLIC_PATIENTS, seed=1)
        if public is None:
            return super().public_table()
        return self.settings.read(self.data_dir / Path(public).expanduser())

    def describe(self) -> str:
        """Describe the data, with a file for each client e.g. ``{client}.csv, 3 clients with a file each``."""
        title = data_title(self.settings.path, self.own)
        if self._has_file_each:
            return f"{title}, {counted(len(self.client_names()), 'client')} with a file each"
        if self.owner is None:
            return super().describe()
        return with_notes(f"{title}, {counted(self._table.num_rows, 'row')}, 1 client", self._notes)

    @property
    def _place(self) -> Path:
        return data_path(self.settings.path, self.data_dir, self.own)

    @property
    def _has_file_each(self) -> bool:
        return CLIENT in str(self._place)

    @cached_property
    def _table(self) -> Table:
        if self.own is None and self.settings.path == HOSPITALS:
            return self._thinned(hospitals_table())
        return self._thinned(self.settings.read(self._place))

    def _thinned(self, table: Table) -> Table:
        """Return some rows of a table, with some of their cells missing."""
        settings = self.settings
        if settings.limit is not None and settings.limit < table.num_rows:
            order = torch.randperm(table.num_rows, generator=generator(settings.partition_seed, "limit"))
            table = table.part(order[: settings.limit].sort().values.numpy())
        for name in settings.whole:
            table.column(name)
        if not settings.gaps:
            return table
        columns = {}
        for name, column in table.columns.items():
            drawn = torch.rand(table.num_rows, generator=generator(settings.partition_seed, "gaps", name))
            lost = pa.array((drawn < (0 if name in settings.whole else settings.gaps)).numpy())
            columns[name] = pc.if_else(lost, pa.scalar(None, column.type), column)
        return table.with_columns(columns)
