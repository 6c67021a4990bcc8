"""Preprocessing of mixed tables with a single label."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedgraph.data.columns.columns import Floats
from fedgraph.data.columns.embeddings import feature_of
from fedgraph.data.columns.options import FileSettings
from fedgraph.data.columns.table import Table
from fedgraph.data.encoding import read_values
from fedgraph.data.own import UNNAMED, Name
from fedgraph.data.preprocessing import Form, NewData
from fedgraph.data.schema import Schema, SchemaSettings
from fedgraph.data.schema.json import schema_from_json
from fedgraph.data.tables.new_rows import NewRows, check_columns, column_notes, rows_by_client
from fedgraph.support.errors import DataError
from fedgraph.support.settings import Settings


class TableFile(FileSettings):
    """How files with rows of clients are read.

    Attributes
    ----------
    client_column : column whose values name the clients.
    """

    client_column: Name | None = None

    @classmethod
    def of(cls, settings: Settings) -> TableFile:
        """Return the settings of a data set on its files."""
        return cls(**{key: getattr(settings, key) for key in cls.model_fields if hasattr(settings, key)})


class LabelledForm(Form):
    """How rows are encoded, by kinds and scales of public rows.

    Attributes
    ----------
    features, label : schemas as JSON.
    gaps : features with an indicator of missingness, as they are missing in some public row.
    target : mean and deviation of the label.
    """

    features: str
    label: str
    gaps: tuple[str, ...]
    centre: tuple[float, ...]
    spread: tuple[float, ...]
    target: tuple[float, float]
    kinds: SchemaSettings
    file: TableFile

    @property
    def scales(self) -> dict[str, Tensor]:
        """The scales that each client has."""
        centre, spread = (torch.tensor(each, dtype=torch.float64) for each in (self.centre, self.spread))
        mean, std = (torch.tensor(each, dtype=torch.float64) for each in self.target)
        return {"centre": centre, "spread": spread, "fill": torch.zeros_like(centre), "mean": mean, "std": std}

    def read(self, place: Path, client: str | None) -> NewData:
        """See :class:`Form`; the label and the column of clients are optional."""
        file = self.file
        schema, (label,) = self._schema, schema_from_json(self.label).features
        table = file.read(place, schema.names)
        present = {feature_of(name, self.kinds.embeddings) for name in table.names}
        check_columns(table, [name for name in schema.names if name not in present])
        values, notes = self._values(table, schema)
        targets = read_values(table, Schema((label,)), self.kinds)[:, 0] if label.name in table.names else None
        rows = rows_by_client(table, file.client_column, client, UNNAMED)
        used = {*schema.names, label.name, file.client_column or ""}
        used = {name for name in table.names if feature_of(name, self.kinds.embeddings) in used}
        numbers = value_numbers(values, schema, self.gaps)
        notes += column_notes(table, tuple(used), rows, numbers)
        return NewRows(self.task, numbers, targets, rows, table.where, lambda *_: self.scales, notes)

    def _values(self, table: Table, schema: Schema) -> tuple[Floats, tuple[str, ...]]:
        """Read features; note rare values that are not a category and count as missing, as in training."""
        try:
            strict = self.kinds.model_copy(update={"least_rows": 1, "unknown": "error"})
            return read_values(table, schema, strict), ()
        except DataError as error:
            return read_values(table, schema, self.kinds), (f"counts as missing, as in training: {error}",)

    @cached_property
    def _schema(self) -> Schema:
        return schema_from_json(self.features)


def value_numbers(values: Floats, schema: Schema, gaps: Collection[str]) -> Floats:
    """Return values ``[rows, values]`` as unscaled inputs ``[rows, inputs]``.

    Numbers are NaN where missing, categories one-hot; features in ``gaps`` have an additional indicator of missingness.
    """
    blocks: list[Floats] = []
    for feature in schema.features:
        part: Floats = values[:, schema.value_slices[feature.name]]
        if feature.is_scaled:
            blocks.append(part)
        else:
            blocks.append((part == np.arange(len(feature.categories))).astype(np.float64))
        if feature.name in gaps:
            blocks.append(np.isnan(part).max(1, keepdims=True).astype(np.float64))
    return np.concatenate(blocks, 1)
