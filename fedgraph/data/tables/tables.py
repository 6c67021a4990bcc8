"""Labelled tables, divided among clients by a column or a partition."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from fedgraph.data.base import SPLITS, CohortData, DataSource, check_clients
from fedgraph.data.columns.table import Table
from fedgraph.data.examples import ExampleSplit, class_counts, row_table
from fedgraph.data.own import OwnData, data_path, data_title, with_notes
from fedgraph.data.partition import Indices, describe, split
from fedgraph.data.preprocessing import Preprocessing, stacked
from fedgraph.data.shared_tests import shared_test_file
from fedgraph.data.tables.encoded import Encoded, check_declared, encode
from fedgraph.data.tables.options import BundledName, BundledTableSettings, TableOptions, TableSettings
from fedgraph.data.tables.table_form import TableForm, measured_scales
from fedgraph.models import TaskSpec
from fedgraph.support.catalogue import CatalogueEntry
from fedgraph.support.errors import counted
from fedgraph.support.randomness import generator


class TableSource(DataSource):
    """One table divided among clients."""

    def __init__(
        self, settings: TableSettings | BundledTableSettings, data_dir: Path, own: OwnData | None = None
    ) -> None:
        self.data_dir = data_dir
        self.own = own
        self.bundled = settings.set if isinstance(settings, BundledTableSettings) else None
        self.settings = settings if isinstance(settings, TableSettings) else _bundled_settings(settings)

    def client_names(self) -> list[str]:
        """Return the values of ``client-column``, or ``client-00`` and so on, or the client of a node's own data."""
        return list(self._encoded.clients)

    def load(self, names: Sequence[str]) -> CohortData:
        """Load the clients ``names``, split and scaled. See DataSource for the errors."""
        data, settings = self._encoded, self.settings
        check_clients(self._table.where, names, list(data.clients))
        parts: list[list[Indices]] = []
        inputs, targets = [np.zeros((0, len(data.features)))], [np.zeros(0)]
        scales: list[dict[str, Tensor]] = []
        first = 0
        for name in names:
            rows = data.clients[name]
            draws = generator(settings.partition_seed, "split", name)
            own = split(len(rows), settings.own_shares, draws, f"client '{name}'")
            if settings.test == "shared":
                own[2] = len(rows) + np.arange(len(data.shared))
                rows = np.concatenate([rows, data.shared])
            x, y = data.inputs[rows], data.targets[rows]
            scales.append(measured_scales(x[own[0]], y[own[0]], data.numeric, settings))
            inputs.append(Preprocessing.input_scale(scales[-1]).inputs(torch.from_numpy(x)).numpy())
            targets.append((y - scales[-1]["mean"].item()) / scales[-1]["std"].item())
            parts.append([first + part for part in own])
            first += len(rows)
        storage = torch.from_numpy(np.concatenate(inputs)).float()
        goal = torch.from_numpy(np.concatenate(targets))
        goal = goal.float()[:, None] if settings.task == "regression" else goal.long()
        splits = {
            kind: ExampleSplit(storage, goal, row_table([own[place] for own in parts]))
            for place, kind in enumerate(SPLITS)
        }
        counts = None
        if settings.task == "classification":
            counts = class_counts(goal, [own[0] for own in parts], len(data.classes))
        task = TaskSpec(
            kind=settings.task,
            input_shape=(len(data.features),),
            output_shape=(len(data.classes) or 1,),
            features=data.features,
            classes=data.classes,
        )
        rows_of_scales = stacked(scales)
        return CohortData(
            names=tuple(names),
            task=task,
            splits=splits,
            mean=rows_of_scales["mean"].float(),
            std=rows_of_scales["std"].float(),
            label_counts=counts,
            preprocessing=Preprocessing(TableForm(task=task, settings=data.resolved), tuple(names), rows_of_scales),
        )

    def describe(self) -> str:
        """Describe the data, e.g. ``wine (scikit-learn), 178 rows, 13 features, 5 clients, 2 shards each``."""
        data, settings = self._encoded, self.settings
        title = f"{self.bundled} (scikit-learn)" if self.bundled else data_title(settings.path, self.own)
        left_out = self._table.num_rows - len(data.targets)
        left_out += len(data.shared) if self._tested is not None else 0
        facts = [title, counted(self._table.num_rows - left_out, "row"), counted(len(data.features), "feature")]
        if left_out:
            facts.insert(2, f"{left_out:,} more without label or client left out")
        by_column = f"{counted(len(data.clients), 'client')} by column '{settings.client_column}'"
        divided = describe(settings) if self.own is None else "1 client"
        tested = [f"tested on the same {counted(len(data.shared), 'row')}"] if settings.test == "shared" else []
        description = ", ".join([*facts, by_column if settings.client_column else divided, *tested])
        return with_notes(description, (*self._table.notes, *data.notes))

    def check_listed(self, least_rows: int) -> None:
        """Raise DataError for columns with values in fewer rows that the experiment does not list."""
        if not self.bundled:
            check_declared(self._table, self.settings, least_rows)

    @cached_property
    def _table(self) -> Table:
        if self.bundled:
            return bundled_table(self.bundled)
        return self.settings.read(data_path(self.settings.path, self.data_dir, self.own))

    @cached_property
    def _tested(self) -> Table | None:
        """The file whose rows all clients are tested on; None without one."""
        path = shared_test_file(self.settings.test, self.settings.test_path, self.data_dir, self.own)
        return None if path is None else self.settings.read(path)

    @property
    def _encoded(self) -> Encoded:
        return encode(self._table, self._tested, self.settings.model_dump_json(), self.own)


def _bundled_settings(settings: BundledTableSettings) -> TableSettings:
    """Return the settings of a table with a column ``label``."""
    task = "regression" if settings.set == "diabetes" else "classification"
    given = {name: getattr(settings, name) for name in TableOptions.model_fields}
    return TableSettings.model_validate({**given, "path": settings.set, "label": "label", "task": task})


@lru_cache(maxsize=4)
def bundled_table(name: str) -> Table:
    """Return a table bundled with scikit-learn, with its labels in the column ``label``."""
    from sklearn import datasets  # takes a second to import, and other tables do without

    raw = {"scaled": False} if name == "diabetes" else {}
    bunch = getattr(datasets, f"load_{name.replace('-', '_')}")(**raw)
    columns = {str(feature): pa.array(bunch.data[:, place]) for place, feature in enumerate(bunch.feature_names)}
    classes = None if name == "diabetes" else np.array([str(label) for label in bunch.target_names])
    columns["label"] = pa.array(bunch.target if classes is None else classes[bunch.target])
    return Table(columns, f"scikit-learn's {name}")


def _bundled_entry(name: BundledName, title: str, licence: str, content: str) -> CatalogueEntry:
    notes = f"{content}; nothing to fetch"
    return CatalogueEntry(name, title, licence, "comes with scikit-learn", notes=notes)


TABLES: tuple[CatalogueEntry, ...] = (
    _bundled_entry("iris", "Iris flowers", "CC BY 4.0", "150 rows, 4 features, 3 classes"),
    _bundled_entry("wine", "Wine cultivars", "CC BY 4.0", "178 rows, 13 features, 3 classes"),
    _bundled_entry("breast-cancer", "Breast cancer Wisconsin", "CC BY 4.0", "569 rows, 30 features, 2 classes"),
    _bundled_entry("diabetes", "Diabetes progression", "none stated (Efron et al. 2004)", "442 rows, 10 features"),
)
