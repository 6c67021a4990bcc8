"""Tables with columns of many kinds, one for each client or one dealt out, for models of all features at once.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, section 3.2: half of the rows are public, and
the others go to clients that each have more of one part of the population.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, PositiveInt, model_validator
from torch import Tensor

from fedgraph.data.base import SPLITS, CohortData, Shares
from fedgraph.data.client_tables import ClientTable, rows_of
from fedgraph.data.own import CLIENT, OwnData, place_of, title_of
from fedgraph.data.table_files import Table, read_table
from fedgraph.errors import DataError
from fedgraph.graphical.bif import read_bif
from fedgraph.graphical.columns import as_category, read_column
from fedgraph.graphical.embedding_columns import feature_of, read_embedding
from fedgraph.graphical.schema_inference import SchemaSettings
from fedgraph.graphical.values import as_table
from fedgraph.partition import client_names
from fedgraph.seeding import generator
from fedgraph.settings import Settings

if TYPE_CHECKING:
    from fedgraph.client_graph import ClientGraph

Value = Annotated[str, BeforeValidator(lambda value: as_category(value))]


class ClientTableSettings(Settings):
    """The keys of ``[data]`` that all clients with tables of their own have.

    private        : features by client that nobody else has; those that the table has and other clients are without.
    shares         : train, validation and test parts of each client's rows, drawn at random.
    partition_seed : of everything that is drawn.
    table_schema   : what columns are, a table ``[data.table-schema]``, as far as it is not left to the rules.
    """

    private: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    shares: Shares = (0.7, 0.1, 0.2)
    partition_seed: int = Field(default=0, ge=0)
    table_schema: SchemaSettings = Field(default_factory=SchemaSettings)


class DealtTableSettings(ClientTableSettings):
    """The keys of ``[data]`` of a table that is dealt out: by the values of a column, by segments, or evenly.

    clients        : names of the clients, or how many there are.
    client_column  : column whose values name the clients; it is no feature, and rows without it are left out.
    segments       : by client, values by column, e.g. ``{ poor = { pay = ["medicaid", "selfpay"] } }``: rows that have
                     them all are the client's segment, and come to it more often than to others.
    emphasis       : how many times as often.
    public_share   : this part of the rows is for everybody to see, the server too, and no client has any of them.
    stratify       : columns whose values occur as often in the public part as in the others, in every combination.
    """

    path: str | None = None
    clients: PositiveInt | tuple[str, ...] | None = None
    client_column: str | None = None
    segments: dict[str, dict[str, tuple[Value, ...]]] = Field(default_factory=dict)
    emphasis: float = Field(default=4.0, gt=0)
    public_share: float = Field(default=0.0, ge=0, lt=1)
    stratify: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_way(self) -> DealtTableSettings:
        ways = [self.clients is not None, self.client_column is not None, bool(self.segments)]
        if self.path is None and (isinstance(self.clients, int) or self.segments or self.public_share):
            raise ValueError("clients by number, segments and public-share are about one file for all: give its path")
        if sum(ways) > 1 or (self.path is not None and not any(ways)):
            raise ValueError("give one of clients, client-column and segments, to say who the clients are")
        if self.stratify and not self.public_share:
            raise ValueError("stratify is for the public part, and public-share is 0")
        return self


class MixedTableSettings(DealtTableSettings):
    """The ``[data]`` table with ``set = "mixed-table"``.

    A file with ``{client}`` in its name is one for each of the clients. A single file is dealt out.

    path           : .csv, .csv.gz or .parquet file, absolute or relative to the data folder. Not needed where every
                     node has a file of its own (node config ``data``): all its rows are the one client's that the node
                     names, or they are dealt out by ``client_column``; with ``{client}`` in it, it is one for each of
                     the clients that the node names.
    columns        : names of the columns of a CSV file without a header.
    delimiter      : what separates the columns of a CSV file.
    missing        : texts that mark a missing value.
    public         : a file of the same columns for everybody to see, in place of a part of the rows.
    """

    set: Literal["mixed-table"] = "mixed-table"
    columns: tuple[str, ...] = ()
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    missing: tuple[str, ...] = ("", "?", "NA", "nan")
    public: str | None = None

    @model_validator(mode="after")
    def _files_fit(self) -> MixedTableSettings:
        a_file_each = CLIENT in (self.path or "")
        if a_file_each and not isinstance(self.clients, tuple):
            raise ValueError("a path with {client} in it needs the names of the clients: clients = [...]")
        if self.public is not None and self.public_share:
            raise ValueError("public rows are those of a file (public) or a part of all (public-share), not both")
        if a_file_each and self.public_share:
            raise ValueError("public-share is a part of a single file; with a file for each client, give public")
        return self


class BayesianNetworkSettings(ClientTableSettings):
    """The ``[data]`` table with ``set = "bayesian-network"``: rows drawn from a network whose graph is known.

    path    : .bif or .bif.gz file, absolute or relative to the data folder.
    clients : names of the clients, or how many there are.
    rows    : of each client.
    public_rows : that everybody may see.
    """

    set: Literal["bayesian-network"] = "bayesian-network"
    path: str
    clients: PositiveInt | tuple[str, ...] = 3
    rows: PositiveInt = 1000
    public_rows: int = Field(default=0, ge=0)


class TablesOfClients:
    """Clients with tables of their own (a :class:`fedgraph.data.client_tables.ClientTableSource`)."""

    def __init__(self, settings: Any, data_dir: Path, own: OwnData | None = None) -> None:
        self.settings = settings
        self.data_dir = data_dir
        self.own = own

    def client_names(self) -> list[str]:
        """In order."""
        raise NotImplementedError

    def whole_table(self, name: str) -> Table:
        """All columns of a client that there is."""
        raise NotImplementedError

    def load_table(self, name: str) -> ClientTable:
        """See :class:`fedgraph.data.client_tables.ClientTableSource`."""
        known = self.client_names()
        if name not in known:
            raise DataError(f"{self.describe()} has no client '{name}'; its clients: {', '.join(known[:10])}")
        strangers = sorted(set(self.settings.private) - set(known))
        if strangers and self.own is None:
            raise DataError(f"[data] private names client {', '.join(strangers)}, which there is none of")
        table = self.whole_table(name)
        others = {column for client, own in self.settings.private.items() if client != name for column in own}
        others -= set(self.settings.private.get(name, ()))
        embeddings = self.settings.table_schema.embeddings
        for column in self.settings.private.get(name, ()):
            read_embedding(table, column) if column in embeddings else table.column(column)
        kept = {key: values for key, values in table.columns.items() if feature_of(key, embeddings) not in others}
        return ClientTable(Table(kept, table.where), self._split(name, table.num_rows))

    def load(self, names: Sequence[str]) -> CohortData:
        """Raises DataError: there is no single target, and columns differ."""
        raise DataError(
            f"{self.describe()}: clients have tables of their own without one label to predict, which only methods "
            'such as fedngm can use; for classification and regression there is set = "table"'
        )

    def given_graph(self) -> ClientGraph | None:
        """None: tables come without a relation between clients."""
        return None

    def describe(self) -> str:
        """In words."""
        raise NotImplementedError

    def _split(self, name: str, rows: int) -> Tensor:
        order = torch.randperm(rows, generator=generator(self.settings.partition_seed, "split", name))
        train, validation, _ = self.settings.shares
        ends = round(train * rows), round((train + validation) * rows)
        split = torch.full((rows,), SPLITS.index("test"), dtype=torch.int8)
        split[order[: ends[0]]] = SPLITS.index("train")
        split[order[ends[0] : ends[1]]] = SPLITS.index("validation")
        return split


class DealtTableSource(TablesOfClients):
    """A table dealt out."""

    settings: DealtTableSettings

    def client_names(self) -> list[str]:
        """As the settings or the column name them, or ``client-00`` and so on."""
        settings = self.settings
        if isinstance(settings.clients, tuple):
            return list(settings.clients)
        if isinstance(settings.clients, int):
            return client_names(settings.clients)
        return list(settings.segments) or list(self._rows)

    def whole_table(self, name: str) -> Table:
        """The client's rows."""
        table = rows_of(self._table, self._rows[name])
        return Table({n: c for n, c in table.columns.items() if n != self.settings.client_column}, table.where)

    def public_table(self) -> Table | None:
        """The public part."""
        return rows_of(self._table, self._public) if self.settings.public_share else None

    def describe(self) -> str:
        """E.g. ``births.csv, 100,000 rows, 3 clients by segments, 50,000 rows public``."""
        settings = self.settings
        how = "evenly"
        if settings.client_column is not None:
            how = f"by column '{settings.client_column}'"
        elif settings.segments:
            how = f"by segments, {settings.emphasis:g} times as often"
        title = title_of(settings.path, self.own)
        facts = [title, f"{self._table.num_rows:,} rows", f"{len(self.client_names())} clients {how}"]
        if settings.public_share:
            facts.append(f"{len(self._public):,} rows public")
        return ", ".join(facts)

    @cached_property
    def _table(self) -> Table:
        """The whole table."""
        raise NotImplementedError

    @cached_property
    def _public(self) -> Tensor:
        """Public rows: of each combination of the values to stratify by, as many as its share."""
        settings, table = self.settings, self._table
        strata = np.zeros(table.num_rows, dtype=np.int64)
        for name in settings.stratify:
            codes = read_column(table, name).codes + 1
            strata = np.unique(strata * (codes.max() + 1) + codes, return_inverse=True)[1]
        draw = generator(settings.partition_seed, "public")
        order = torch.randperm(table.num_rows, generator=draw).numpy()
        # Within the strata in random order, every row has a place; its share of the stratum decides.
        by_stratum = order[np.argsort(strata[order], kind="stable")]
        sizes = np.bincount(strata)
        place = np.arange(len(order)) - np.repeat(sizes.cumsum() - sizes, sizes)
        offset = torch.rand(len(sizes), generator=draw, dtype=torch.float64).numpy()
        taken = np.floor((place + 1) * settings.public_share + np.repeat(offset, sizes)) > np.floor(
            place * settings.public_share + np.repeat(offset, sizes)
        )
        return torch.from_numpy(np.sort(by_stratum[taken]))

    @cached_property
    def _rows(self) -> Mapping[str, Tensor]:
        """The rows of every client of a single file, in the order of the file."""
        settings, table = self.settings, self._table
        rows = np.arange(table.num_rows)
        if settings.public_share:
            rows = np.setdiff1d(rows, self._public.numpy(), assume_unique=True)
        if settings.client_column is not None:
            codes, owners = table.categories(settings.client_column)
            dealt = {owner: rows[codes[rows] == place] for place, owner in enumerate(owners)}
            return {owner: torch.from_numpy(own) for owner, own in dealt.items() if len(own)}
        names = self.client_names()
        draw = generator(settings.partition_seed, "partition")
        if settings.segments:
            weights = np.stack([self._weights(name)[rows] for name in names])
            edges = (weights / weights.sum(0)).cumsum(0)
            drawn = torch.rand(len(rows), generator=draw, dtype=torch.float64).numpy()
            client = np.minimum((drawn >= edges).sum(0), len(names) - 1)
        else:
            client = np.empty(len(rows), dtype=np.int64)
            order = torch.randperm(len(rows), generator=draw).numpy()
            for place, part in enumerate(np.array_split(order, len(names))):
                client[part] = place
        found = {name: torch.from_numpy(rows[client == place]) for place, name in enumerate(names)}
        for name, own in found.items():
            if not len(own):
                raise DataError(f"{self._table.where}: there is no row for client '{name}'")
        return found

    def _weights(self, client: str) -> NDArray[np.float64]:
        """How often every row would come to a client, against a row outside its segment."""
        inside = np.ones(self._table.num_rows, dtype=bool)
        for name, values in self.settings.segments[client].items():
            column = read_column(self._table, name)
            texts = [as_category(text) for text in column.texts.to_pylist()]
            unknown = sorted(set(values) - set(texts))
            if unknown:
                raise DataError(
                    f"[data] segments of '{client}': column '{name}' of {self._table.where} has no value "
                    f"{', '.join(unknown)}; it has {', '.join(sorted(texts)[:20])}"
                )
            wanted = np.array([*(text in values for text in texts), False])
            inside &= wanted[column.codes]
        return np.where(inside, self.settings.emphasis, 1.0)


class MixedTableSource(DealtTableSource):
    """One file for each client, or one dealt out."""

    settings: MixedTableSettings

    def __init__(self, settings: MixedTableSettings, data_dir: Path, own: OwnData | None = None) -> None:
        """``owner``: the only client of a node's own file.

        Raises
        ------
        DataError
            For own data of which a part is to be public, as nobody else has it; or that is of nobody, or of clients in
            two ways.
        """
        super().__init__(settings, data_dir, own)
        self.owner = None
        if own is None:
            return
        if settings.public_share:
            raise DataError(
                "public-share is a part of one file for all, and this node has data of its own: leave it out, and give "
                "public rows as a file in the data folders of the server and all nodes, [data] public"
            )
        if self._has_file_each and (not own.clients or settings.client_column is not None):
            raise DataError(
                "the node config key 'data' has {client} in it: the node config key 'clients' must say for whom it "
                "stands, and client-column must not"
            )
        if not self._has_file_each and settings.client_column is None:
            self.owner = own.only_client()

    def client_names(self) -> list[str]:
        """Of a node's own data those whom the node config or a column names, else as of any table dealt out."""
        if self.own is None or self.settings.client_column is not None:
            return super().client_names()
        return list(self.own.clients) if self.owner is None else [self.owner]

    def whole_table(self, name: str) -> Table:
        """The client's file, or its rows of the single one."""
        if self._has_file_each:
            return self._read(Path(str(self._place).replace(CLIENT, name)))
        return super().whole_table(name) if self.owner is None else self._table

    def public_table(self) -> Table | None:
        """The public file, or the public part of the single one."""
        public = self.settings.public
        return super().public_table() if public is None else self._read(self.data_dir / Path(public).expanduser())

    def describe(self) -> str:
        """As of any table dealt out; with a file for each client, e.g. ``{client}.csv, 3 clients with a file each``."""
        title = title_of(self.settings.path, self.own)
        if self._has_file_each:
            return f"{title}, {len(self.client_names())} clients with a file each"
        return super().describe() if self.owner is None else f"{title}, {self._table.num_rows:,} rows, 1 client"

    @property
    def _place(self) -> Path:
        return place_of(self.settings.path, self.data_dir, self.own)

    @property
    def _has_file_each(self) -> bool:
        return CLIENT in str(self._place)

    @cached_property
    def _table(self) -> Table:
        return self._read(self._place)

    def _read(self, path: Path) -> Table:
        settings = self.settings
        return read_table(path, settings.columns, settings.missing, settings.delimiter)


class BayesianNetworkSource(TablesOfClients):
    """Rows drawn from a network, for each client on its own."""

    settings: BayesianNetworkSettings

    def client_names(self) -> list[str]:
        """As the settings name them, or ``client-00`` and so on."""
        clients = self.settings.clients
        return client_names(clients) if isinstance(clients, int) else list(clients)

    def whole_table(self, name: str) -> Table:
        """The rows of one client."""
        return self._drawn(name, self.settings.rows)

    def public_table(self) -> Table | None:
        """Further rows."""
        return self._drawn("", self.settings.public_rows) if self.settings.public_rows else None

    def describe(self) -> str:
        """E.g. ``alarm.bif.gz, 37 variables, 3 clients with 1,000 rows drawn for each``."""
        settings = self.settings
        facts = [Path(settings.path).name, f"{len(self.network.schema.features)} variables"]
        facts.append(f"{len(self.client_names())} clients with {settings.rows:,} rows drawn for each")
        if settings.public_rows:
            facts.append(f"{settings.public_rows:,} rows public")
        return ", ".join(facts)

    @cached_property
    def network(self) -> Any:
        """The network that rows are drawn from."""
        return read_bif(self.data_dir / Path(self.settings.path).expanduser())

    def _drawn(self, name: str, rows: int) -> Table:
        draw = generator(self.settings.partition_seed, "network rows", name)
        values = self.network.sample(rows, draw)
        return as_table(values.double().numpy(), self.network.schema, Path(self.settings.path).name)
