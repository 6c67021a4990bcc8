"""A table of mixed columns that is divided among clients.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, section 3.2: half of the rows are public, and
the others go to clients that each have more of one part of the population.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from fedgraph.data.base import CohortData
from fedgraph.data.columns.columns import as_category, read_column
from fedgraph.data.columns.notes import notes_on_column
from fedgraph.data.columns.table import Table
from fedgraph.data.own import Name, data_title, with_notes
from fedgraph.data.partition import Indices, client_names
from fedgraph.data.schema.inference import check_dropped
from fedgraph.data.tables.client_tables import ClientTableSettings, ClientTableSource
from fedgraph.data.tables.labelled import LabelledRows, labelled_cohort
from fedgraph.data.tables.labelled_form import TableFile
from fedgraph.support.csv_text import composed
from fedgraph.support.errors import DataError, counted
from fedgraph.support.randomness import generator

_EMPHASIS = 4.0
"""How much more often a row is assigned to a client if it is in the client's segment."""

Value = Annotated[str, BeforeValidator(lambda value: as_category(composed(str(value))))]


class DividedTableSettings(ClientTableSettings):
    """The keys of ``[data]`` of a table that is divided by the values of a column, by segments, or evenly.

    Attributes
    ----------
    path           : file of the table; without one, every node has its own data.
    clients        : names of the clients, or their number.
    client_column  : column whose values name the clients; it is not a feature, and rows without it are left out.
    segments       : by client, values by column, e.g. ``{ poor = { pay = ["medicaid", "selfpay"] } }``: rows that have
                     them all are the client's segment, and are assigned to it four times as often.
    public_share   : fraction of the rows that are public, also to the server, and held by no client.
    stratify       : columns whose values occur as often in the public part as in the others, in every combination.
    label          : the feature that methods with a single label, such as fedavg, predict from all features that are
                     not private; rows without it are left out. A number is a regression, on the scale of the public
                     rows; of two categories the second is positive. Needs public rows, whose categories and scales all
                     clients share. fedngm, which predicts any feature, takes none.
    test           : such methods test every client on its ``own`` test rows, or all on the public rows (``shared``).
    """

    path: str | None = None
    clients: Annotated[int, Field(ge=1, le=100_000)] | tuple[Name, ...] | None = None
    client_column: Name | None = None
    segments: dict[Name, dict[Name, tuple[Value, ...]]] = Field(default_factory=dict)
    public_share: float = Field(default=0.0, ge=0, lt=1)
    stratify: tuple[Name, ...] = ()
    label: Name | None = None
    test: Literal["own", "shared"] = "own"

    @model_validator(mode="after")
    def _check_division(self) -> DividedTableSettings:
        ways = [self.clients is not None, self.client_column is not None, bool(self.segments)]
        if self.path is None and (isinstance(self.clients, int) or self.segments or self.public_share):
            raise ValueError("a number of clients, segments and public-share need one file for all: give its path")
        if sum(ways) > 1 or (self.path is not None and not any(ways)):
            raise ValueError("give exactly one of clients, client-column and segments")
        if self.stratify and not self.public_share:
            raise ValueError("stratify is for the public part, and public-share is 0")
        if self.test == "shared" and self.label is None:
            raise ValueError('test = "shared" is for methods that predict a label: give label too')
        return self


class DividedTableSource(ClientTableSource):
    """A table of mixed columns divided among clients (a :class:`ClientTableSource`); subclasses read the table.

    Attributes
    ----------
    settings : DividedTableSettings
        How the table is divided.
    """

    settings: DividedTableSettings
    divides_one_table = True

    def client_names(self) -> list[str]:
        """Return the names in the settings or the column, or ``client-00`` and so on."""
        settings = self.settings
        if isinstance(settings.clients, tuple):
            return list(settings.clients)
        if isinstance(settings.clients, int):
            return client_names(settings.clients)
        return list(settings.segments) or list(self._rows)

    def whole_table(self, name: str) -> Table:
        """Return the client's rows, without the client column."""
        table = self._table.part(self._rows[name])
        return table.with_columns({n: c for n, c in table.columns.items() if n != self.settings.client_column})

    def _check_dropped(self, table: Table) -> None:
        check_dropped(self._table, self.settings.table_schema)

    def public_table(self) -> Table | None:
        """Return the public rows, or None."""
        return self._table.part(self._public) if self.settings.public_share else None

    def load(self, names: Sequence[str]) -> CohortData:
        """Load rows and labels of clients.

        Raises DataError without a label or public rows, for a label that cannot be predicted, and as ``load_table``
        does.
        """
        if self.settings.label is None:
            return super().load(names)
        shared = self.settings.test == "shared"
        return labelled_cohort(self._labelled, {name: self.load_table(name) for name in names}, shared)

    @cached_property
    def _labelled(self) -> LabelledRows:
        settings, public = self.settings, self.public_table()
        if settings.label is None or public is None:
            raise DataError(
                "[data] label needs public rows, whose categories and scales all clients share: set public-share; or "
                'use set = "table", in which clients scale numbers by their own rows'
            )
        private = [column for own in settings.private.values() for column in own]
        private += [] if settings.client_column is None else [settings.client_column]
        return LabelledRows.of(public, settings.label, private, settings.table_schema, self._file)

    @property
    def _file(self) -> TableFile:
        """How files of such rows are read."""
        return TableFile.of(self.settings)

    def describe(self) -> str:
        """Describe the data, e.g. ``births.csv, 100,000 rows, 3 clients by segments, 50,000 rows public``."""
        settings = self.settings
        how = "evenly"
        if settings.client_column is not None:
            how = f"by column '{settings.client_column}'"
        elif settings.segments:
            how = f"by segments, {_EMPHASIS:g} times as often"
        title = data_title(settings.path, self.own)
        facts = [title, counted(self._table.num_rows, "row"), f"{counted(len(self.client_names()), 'client')} {how}"]
        if settings.public_share:
            facts.append(f"{counted(len(self._public), 'row')} public")
        if settings.label is not None:
            facts.append(f"label '{settings.label}'")
        return with_notes(", ".join(facts), self._notes)

    @cached_property
    def _notes(self) -> tuple[str, ...]:
        """Notes on the file, on categories that may be the same and numbers that may mean missing."""
        found = [*self._table.notes]
        for name in self._table.names:
            found += notes_on_column(self._table, name, "kinds of [data.table-schema]")
        return tuple(found)

    @cached_property
    def _table(self) -> Table:
        """The whole table, which subclasses read."""
        raise NotImplementedError

    @cached_property
    def _public(self) -> Indices:
        """Public rows, the same fraction of each combination of the values to stratify by."""
        settings, table = self.settings, self._table
        strata = np.zeros(table.num_rows, dtype=np.int64)
        for name in settings.stratify:
            codes = read_column(table, name).codes + 1
            strata = np.unique(strata * (codes.max() + 1) + codes, return_inverse=True)[1]
        draw = generator(settings.partition_seed, "public")
        order = torch.randperm(table.num_rows, generator=draw).numpy()
        # A row has a random place in its stratum, and is public if place * share + offset passes an integer there.
        by_stratum = order[np.argsort(strata[order], kind="stable")]
        sizes = np.bincount(strata)
        place = np.arange(len(order)) - np.repeat(sizes.cumsum() - sizes, sizes)
        offset = torch.rand(len(sizes), generator=draw, dtype=torch.float64).numpy()
        is_public = np.floor((place + 1) * settings.public_share + np.repeat(offset, sizes)) > np.floor(
            place * settings.public_share + np.repeat(offset, sizes)
        )
        return np.sort(by_stratum[is_public])

    @cached_property
    def _rows(self) -> Mapping[str, Indices]:
        """Rows of each client of a single file, in the order of the file."""
        settings, table = self.settings, self._table
        rows = np.arange(table.num_rows)
        if settings.public_share:
            rows = np.setdiff1d(rows, self._public, assume_unique=True)
        if settings.client_column is not None:
            codes, owners = table.names_in(settings.client_column)
            by_owner = {owner: rows[codes[rows] == place] for place, owner in enumerate(owners)}
            return {owner: own for owner, own in by_owner.items() if len(own)}
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
        found = {name: rows[client == place] for place, name in enumerate(names)}
        for name, own in found.items():
            if not len(own):
                raise DataError(f"{self._table.where}: there is no row for client '{name}'")
        return found

    def _weights(self, client: str) -> NDArray[np.float64]:
        """Return the weight of each row for a client: larger in its segment."""
        inside = np.ones(self._table.num_rows, dtype=bool)
        for name, values in self.settings.segments[client].items():
            column = read_column(self._table, name)
            texts = [as_category(text) for text in column.texts.to_pylist()]
            unknown = sorted(set(values) - set(texts))
            if unknown:
                known = ", ".join(sorted(texts)[:20])
                raise DataError(
                    f"[data] segments of '{client}': column '{name}' of {self._table.where} has no value "
                    f"{', '.join(unknown)}; it has {known}",
                    quoted=known,
                )
            wanted = np.array([*(text in values for text in texts), False])
            inside &= wanted[column.codes]
        return np.where(inside, _EMPHASIS, 1.0)
