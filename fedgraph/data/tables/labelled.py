"""Clients' tables for methods that predict a single label, with the rows of models of all features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from fedgraph.data.base import SPLITS, CohortData
from fedgraph.data.columns.columns import Floats
from fedgraph.data.columns.table import Table
from fedgraph.data.encoding import read_values
from fedgraph.data.examples import ExampleSplit, class_counts, row_table
from fedgraph.data.preprocessing import Preprocessing
from fedgraph.data.schema import Feature, Schema, SchemaSettings, infer_schema, schema_as_json
from fedgraph.data.tables.client_tables import ClientTable
from fedgraph.data.tables.labelled_form import LabelledForm, TableFile, value_numbers
from fedgraph.models import TaskSpec
from fedgraph.support.errors import DataError

_VARIES = 1e-12
"""Smallest deviation of a number to be scaled."""


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """How rows of a table become inputs and targets, by kinds and scales of public rows, the same for all clients.

    Numbers are standardised by public rows, 0 where missing. Categories are one-hot, all 0 where missing. Each feature
    that is missing in some public row has an additional indicator of missingness.

    Attributes
    ----------
    schema : the features to predict from.
    public : values of the features in the public rows, ``[rows, values]``, NaN for missing.
    public_label : the label's values in them, ``[rows]``.
    """

    schema: Schema
    label: Feature
    public: Floats
    public_label: Floats
    settings: SchemaSettings
    file: TableFile

    @classmethod
    def of(
        cls, table: Table, label: str, private: Sequence[str], settings: SchemaSettings, file: TableFile | None = None
    ) -> LabelledRows:
        """Read the public rows.

        Raises DataError when the label is not a feature of them, is an embedding, or never varies, and when no other
        feature is left.
        """
        every = infer_schema(table, settings, partial=True)
        if label not in every.names:
            raise DataError(f"[data] label: {table.where} has no feature '{label}'; it has {', '.join(every.names)}")
        values, feature = read_values(table, every, settings), every[label]
        ever = {name for name, place in every.value_slices.items() if not np.isnan(values[:, place]).all()}
        names = [name for name in every.names if name != label and name not in private and name in ever]
        schema, targets = every.select(names), values[:, every.value_slices[label]]
        known = np.unique(targets[~np.isnan(targets)])
        if feature.kind == "embedding" or label in private or not names or len(known) < 2:
            why = "an embedding" if feature.kind == "embedding" else "private to a client" if label in private else ""
            why = why or ("the only feature" if not names else "the same in every public row in which it is known")
            raise DataError(f"[data] label: '{label}' cannot be predicted, as it is {why}")
        public = read_values(table, schema, settings)
        return cls(schema, feature, public, targets[:, 0], settings, file or TableFile())

    @property
    def task(self) -> TaskSpec:
        """A regression of a number, or a classification; of two classes the second is positive."""
        classes, inputs = self.label.categories, (len(self.names),)
        if self.label.is_number:
            return TaskSpec("regression", inputs, (1,), features=self.names)
        positive = 1 if len(classes) == 2 else None
        return TaskSpec(
            "classification", inputs, (len(classes),), features=self.names, classes=classes, positive=positive
        )

    @cached_property
    def scale(self) -> tuple[float, float]:
        """Mean and deviation of a number to predict; 0 and 1 of classes."""
        if not self.label.is_number:
            return 0.0, 1.0
        return float(np.nanmean(self.public_label)), float(np.nanstd(self.public_label))

    def read(self, table: Table) -> tuple[Floats, Floats]:
        """Return inputs ``[rows, inputs]`` and targets ``[rows]`` of a table; NaN where the label is missing."""
        values = read_values(table, self.schema, self.settings)
        return self.encoded(values, read_values(table, Schema((self.label,)), self.settings)[:, 0])

    def encoded(self, values: Floats, label: Floats) -> tuple[Floats, Floats]:
        """Return values ``[rows, values]`` of the features and of the label as inputs and targets."""
        scale, (mean, deviation) = Preprocessing.input_scale(self.form.scales), self.scale
        numbers = torch.from_numpy(value_numbers(values, self.schema, self._sometimes_missing))
        return scale.inputs(numbers).numpy(), (label - mean) / deviation

    @cached_property
    def form(self) -> LabelledForm:
        """How new rows are read, and the common scales."""
        mean: list[float] = []
        deviation: list[float] = []
        for feature in self.schema.features:
            known = self.public[:, self.schema.value_slices[feature.name]]
            width = known.shape[1] if feature.is_scaled else len(feature.categories)
            gap = feature.name in self._sometimes_missing
            mean += [*(np.nanmean(known, 0) if feature.is_scaled else np.zeros(width)), *[0.0] * gap]
            deviation += [*(np.nanstd(known, 0) if feature.is_scaled else np.ones(width)), *[1.0] * gap]
        return LabelledForm(
            task=self.task,
            features=schema_as_json(self.schema),
            label=schema_as_json(Schema((self.label,))),
            gaps=tuple(name for name in self.schema.names if name in self._sometimes_missing),
            centre=tuple(map(float, mean)),
            spread=tuple(float(each) if each > _VARIES else 1.0 for each in deviation),
            target=self.scale,
            kinds=self.settings,
            file=self.file,
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs."""
        found: list[str] = []
        for feature in self.schema.features:
            if feature.kind == "embedding":
                found += [f"{feature.name}.{place}" for place in range(feature.size)]
            elif feature.is_scaled:
                found.append(feature.name)
            else:
                found += [f"{feature.name}={category}" for category in feature.categories]
            if feature.name in self._sometimes_missing:
                found.append(f"{feature.name} missing")
        return tuple(found)

    @cached_property
    def _sometimes_missing(self) -> set[str]:
        places = self.schema.value_slices.items()
        return {name for name, place in places if np.isnan(self.public[:, place]).any()}


def labelled_cohort(rows: LabelledRows, tables: Mapping[str, ClientTable], shared: bool) -> CohortData:
    """Return the cohort of clients that predict a label; rows without it are left out.

    Raises DataError when a client has no training row with the label.

    Parameters
    ----------
    rows : how rows become inputs and targets.
    shared : whether every client is tested on the public rows instead of its own test rows.
    """
    inputs, targets = ([each] for each in rows.encoded(rows.public, rows.public_label))
    public = np.flatnonzero(~np.isnan(targets[0]))
    first, parts = len(targets[0]), []
    for name, held in tables.items():
        own_inputs, own_targets = rows.read(held.table)
        split, known = held.split.numpy(), ~np.isnan(own_targets)
        own = [first + np.flatnonzero(known & (split == place)) for place in range(len(SPLITS))]
        if not len(own[0]):
            raise DataError(f"client '{name}' has no training row in which the label '{rows.label.name}' is known")
        parts.append([*own[:2], public if shared else own[2]])
        inputs.append(own_inputs)
        targets.append(own_targets)
        first += len(own_targets)
    storage, goal = torch.from_numpy(np.concatenate(inputs)).float(), np.concatenate(targets)
    labels = torch.from_numpy(np.nan_to_num(goal))
    numbers = rows.label.is_number
    labels = labels.float()[:, None] if numbers else labels.long()
    counts = None if numbers else class_counts(labels, [own[0] for own in parts], len(rows.label.categories))
    mean, deviation = (torch.full((len(parts),), value) for value in rows.scale)
    return CohortData(
        names=tuple(tables),
        task=rows.task,
        splits={
            kind: ExampleSplit(storage, labels, row_table([own[place] for own in parts]))
            for place, kind in enumerate(SPLITS)
        },
        mean=mean,
        std=deviation,
        label_counts=counts,
        preprocessing=Preprocessing.alike(rows.form, tuple(tables), rows.form.scales),
    )
