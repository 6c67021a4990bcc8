"""Clients with their own tables, whose columns are features of many kinds and differ between clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedgraph.data.base import SPLITS, CohortData, DataSource, Shares, SplitName
from fedgraph.data.columns.embeddings import feature_of, read_embedding
from fedgraph.data.columns.table import Table
from fedgraph.data.own import OwnData
from fedgraph.data.schema.inference import SchemaSettings, check_dropped
from fedgraph.support.errors import DataError, some
from fedgraph.support.randomness import generator
from fedgraph.support.settings import Settings


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

    def part(self, split: SplitName) -> Table:
        """Return the table of the rows of a split."""
        return self.table.part(self.rows(split).numpy())


class ClientTableSettings(Settings):
    """The keys of ``[data]`` of all sets whose clients have their own tables.

    Attributes
    ----------
    private        : by client, features of the table that no other client has.
    shares         : fractions of each client's rows for training, validation and test, drawn at random.
    fold, folds    : instead, the test part is the fold-th, from 0, of ``folds`` equal parts of each client's rows; the
                     others are divided into training and validation in proportion to their shares.
    partition_seed : seed of all random choices.
    table_schema   : a table ``[data.table-schema]`` that describes the columns where the rules do not suffice.
    """

    private: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    shares: Shares = (0.7, 0.1, 0.2)
    fold: int | None = Field(default=None, ge=0)
    folds: int = Field(default=5, ge=2)
    partition_seed: int = Field(default=0, ge=0)
    table_schema: SchemaSettings = Field(default_factory=SchemaSettings)

    @model_validator(mode="after")
    def _fold_is_there(self) -> ClientTableSettings:
        if self.fold is not None and self.fold >= self.folds:
            raise ValueError(f"there are {self.folds} folds, numbered from 0, and no fold {self.fold}")
        return self


class ClientTableSource(DataSource, ABC):
    """A data set whose clients have tables of their own.

    Attributes
    ----------
    divides_one_table : whether these are parts of one table, and the settings say who has which rows.
    """

    divides_one_table: bool = False

    def __init__(self, settings: Any, data_dir: Path, own: OwnData | None = None) -> None:
        self.settings = settings
        self.data_dir = data_dir
        self.own = own

    @abstractmethod
    def client_names(self) -> list[str]:
        """Return all clients, in order."""

    @abstractmethod
    def whole_table(self, name: str) -> Table:
        """Return all columns of a client, including those that are private to others."""

    @abstractmethod
    def public_table(self) -> Table | None:
        """Return rows that everybody may see, including the server; None if there are none."""

    @abstractmethod
    def describe(self) -> str:
        """Return a phrase for reports."""

    @property
    def table_schema(self) -> SchemaSettings:
        """What the columns are where the rules do not suffice, the table ``[data.table-schema]``."""
        found: SchemaSettings = self.settings.table_schema
        return found

    def load_table(self, name: str) -> ClientTable:
        """Load the table of a client; raises DataError for an unknown one and unusable data."""
        known = self.client_names()
        if name not in known:
            raise DataError(f"{self.describe()} has no client '{name}'; its clients: {some(known)}")
        unknown_names = sorted(set(self.settings.private) - set(known))
        if unknown_names and self.own is None:
            raise DataError(f"[data] private names unknown clients: {', '.join(unknown_names)}")
        table = self.whole_table(name)
        self._check_dropped(table)
        others = {column for client, own in self.settings.private.items() if client != name for column in own}
        others -= set(self.settings.private.get(name, ()))
        embeddings = self.table_schema.embeddings
        for column in self.settings.private.get(name, ()):
            read_embedding(table, column) if column in embeddings else table.column(column)
        kept = {key: values for key, values in table.columns.items() if feature_of(key, embeddings) not in others}
        return ClientTable(table.with_columns(kept), self._split(name, table.num_rows))

    def _check_dropped(self, table: Table) -> None:
        """Check ``drop`` against all columns, which clients share."""
        check_dropped(table, self.table_schema)

    def load(self, names: Sequence[str]) -> CohortData:
        """Raise DataError: there is no single target."""
        raise DataError(
            f"{self.describe()}: clients have tables of their own without one label to predict, which only methods "
            'such as fedngm can use; for classification and regression give [data] label, or take set = "table"'
        )

    def _split(self, name: str, rows: int) -> Tensor:
        order = torch.randperm(rows, generator=generator(self.settings.partition_seed, "split", name))
        train, validation, _ = self.settings.shares
        if self.settings.fold is not None:
            return self._fold(order, train / (train + validation))
        ends = round(train * rows), round((train + validation) * rows)
        split = torch.full((rows,), SPLITS.index("test"), dtype=torch.int8)
        split[order[: ends[0]]] = SPLITS.index("train")
        split[order[ends[0] : ends[1]]] = SPLITS.index("validation")
        return split

    def _fold(self, order: Tensor, train: float) -> Tensor:
        """Split rows, given in random order, with one fold for the test."""
        settings, rows = self.settings, len(order)
        first, end = (round(place * rows / settings.folds) for place in (settings.fold, settings.fold + 1))
        split = torch.full((rows,), SPLITS.index("validation"), dtype=torch.int8)
        split[order[first:end]] = SPLITS.index("test")
        others = torch.cat([order[:first], order[end:]])
        split[others[: round(train * len(others))]] = SPLITS.index("train")
        return split


def client_table_source(source: DataSource, method: str) -> ClientTableSource:
    """Check that the clients of a data set have their own tables.

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
