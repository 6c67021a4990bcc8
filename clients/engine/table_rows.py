"""Tables of a node's clients as rows for graphical models, each read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph.data import SplitName
from fedgraph.data.columns import Floats
from fedgraph.data.encoding import Encoding, Scaling, ScalingSettings, read_values
from fedgraph.data.schema import (
    ExclusionReason,
    Schema,
    excluded_columns,
    infer_schema,
    with_private_features,
)
from fedgraph.data.tables import ClientTable, ClientTableSource
from fedgraph.support.files import json_digest

_SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class Rows:
    """A client's rows under one schema: values ``[rows, features]`` by split."""

    encoding: Encoding
    values: Mapping[str, Floats]

    def units(self, split: str) -> Tensor:
        """Return ``[rows, units]``, NaN for missing values."""
        return self.encoding.encode(self.values[split])


class TableRows:
    """Tables of the clients of a node; reading, inference and scaling are cached.

    Categories in fewer than ``least_rows`` of a client's rows are missing there, also where others have them.
    """

    def __init__(
        self, source: ClientTableSource, clients: Sequence[str], settings: ScalingSettings, least_rows: int = 1
    ) -> None:
        self._source, self._clients, self._settings = source, clients, settings
        self._least_rows, self._table_schema = least_rows, source.table_schema.with_least_rows(least_rows)
        self._schemas: dict[str, Schema] = {}
        self._values: dict[tuple[str, Schema], Mapping[str, Floats]] = {}
        self._rows: dict[tuple[str, Schema, str], Rows] = {}
        self._public: dict[Schema, Floats | None] = {}

    @cached_property
    def tables(self) -> dict[str, ClientTable]:
        """Tables as in files, by client."""
        return {name: self._source.load_table(name) for name in self._clients}

    @cached_property
    def num_training(self) -> tuple[int, ...]:
        """Number of training rows of each client."""
        return tuple(len(self.tables[name].rows("train")) for name in self._clients)

    def identities(self, name: str) -> Tensor:
        """Return a number for each training row of a client that follows from its content, int64 ``[rows]``."""
        held = self.tables[name]
        return torch.from_numpy(held.table.identities)[held.rows("train")]

    @property
    def reading(self) -> dict[str, Any]:
        """How tables are read, which determines what statistics of some rows say: all settings but those of splits."""
        found: dict[str, Any] = self._source.settings.model_dump(mode="json", exclude={"shares", "fold", "folds"})
        return found

    @property
    def divides_one_table(self) -> bool:
        """Whether the experiment says which rows of one table are whose."""
        return self._source.divides_one_table

    def schema(self, name: str) -> Schema:
        """Return the schema of all features of a client, inferred from its table."""
        if name not in self._schemas:
            self._schemas[name] = infer_schema(self.tables[name].table, self._table_schema, partial=True)
        return self._schemas[name]

    def excluded_columns(self, name: str) -> dict[str, ExclusionReason]:
        """Return the columns of a client that are not features, and why."""
        return excluded_columns(self.tables[name].table, self._table_schema, self.schema(name))

    def whole(self, name: str, common: Schema) -> Schema:
        """Return a schema with the common features, followed by the client's private ones."""
        return with_private_features(common, self.schema(name))

    def values(self, name: str, schema: Schema) -> Mapping[str, Floats]:
        """Return a client's values ``[rows, features]`` of the features of ``schema``, by split."""
        if (name, schema) not in self._values:
            held = self.tables[name]
            values = read_values(held.table, schema, self._table_schema)
            if self._least_rows > 1:
                own = {feature.name: feature.categories for feature in self.schema(name).features}
                for feature in schema.features:
                    others = [place for place, each in enumerate(feature.categories) if each not in own[feature.name]]
                    column = values[:, schema.value_slices[feature.name].start]
                    column[np.isin(column, others)] = np.nan
            self._values[name, schema] = {split: values[held.rows(split).numpy()] for split in _SPLITS}
        return self._values[name, schema]

    def rows(self, name: str, schema: Schema, scaling: Scaling | None) -> Rows:
        """Return a client's rows for the features of ``schema``.

        ``scaling`` has the ranges that all clients share; other numbers are scaled by their range in the client's
        training rows.
        """
        shared = scaling or Scaling()
        key = name, schema, json_digest(shared.as_json())
        if key not in self._rows:
            values, settings = self.values(name, schema), self._settings
            own = Scaling.measured(values["train"], schema, settings.quantile, settings.skewed)
            self._rows[key] = Rows(Encoding(schema, shared.completed(own), settings.outside), values)
        return self._rows[key]

    def public(self, schema: Schema) -> Floats | None:
        """Return values ``[rows, features]`` of the public rows, or None without any."""
        if schema not in self._public:
            table = self._source.public_table()
            values = None if table is None else read_values(table, schema, self._table_schema)
            self._public[schema] = values
        return self._public[schema]
