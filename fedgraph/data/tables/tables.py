"""Tables with a label column, divided among clients by a column of the table or by a partition."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from fedgraph.data.base import SPLITS, CohortData, Shares
from fedgraph.data.columns.columns import is_number, read_column, some
from fedgraph.data.columns.files import Table, read_table
from fedgraph.data.examples import ExampleSplit, row_table
from fedgraph.data.own import OwnData, place_of, title_of
from fedgraph.data.partition import Indices, Method, PartitionSettings, client_names, describe, partition, split
from fedgraph.models import TaskSpec
from fedgraph.support.catalogue import CatalogueEntry
from fedgraph.support.errors import DataError
from fedgraph.support.randomness import generator

if TYPE_CHECKING:
    from fedgraph.graph import ClientGraph

Floats = NDArray[np.float64]
BundledName = Literal["iris", "wine", "breast-cancer", "diabetes"]


class TableOptions(PartitionSettings):
    """The keys of ``[data]`` that any table has.

    Attributes
    ----------
    scaling : ``client`` = numeric features, and the target of a regression, as z-scores from each client's own training
              examples; ``none``.
    shares  : fractions of each client's rows for training, validation and test, drawn at random.
    """

    partition: Method = "iid"
    scaling: Literal["client", "none"] = "client"
    shares: Shares = (0.7, 0.1, 0.2)


class BundledTableSettings(TableOptions):
    """The ``[data]`` table of a table that comes with scikit-learn."""

    set: BundledName = "iris"


class TableSettings(TableOptions):
    """The ``[data]`` table of the user's own table.

    Attributes
    ----------
    path           : .csv, .csv.gz or .parquet file, looked for beside the experiment, in the current folder, and in the
                     data folder. Not needed where every node has a file of its own (node config ``data``): all its
                     rows belong to the one client that the node names, or they are divided by ``client_column``; and
                     ``categories`` must list all values.
    columns        : names of the columns of a CSV file without a header.
    delimiter      : separates the columns of a CSV file; by default the comma, semicolon or tab of its first line.
                     Where it is not the comma, numbers may have decimal commas.
    label          : the column to predict; rows without it are left out.
    task           : ``classification``, or ``regression`` on a numeric label.
    client_column  : column whose values name the clients (the partition keys then have no effect); rows without it are
                     left out.
    features       : columns to predict from; default all others. Numbers stay numbers, anything else is one-hot.
    missing        : texts that mark a missing value. A missing number is 0 after scaling, a missing category all zeros.
    categories     : the values of categorical columns, including the label. By default those found in the file, which
                     all clients share; nodes with a file of their own must agree on a list. A numeric column that is
                     listed here is treated as categorical.
    max_categories : most values a one-hot column may have.
    """

    set: Literal["table"] = "table"
    path: str | None = None
    columns: tuple[str, ...] = ()
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    label: str
    task: Literal["classification", "regression"] = "classification"
    client_column: str | None = None
    features: tuple[str, ...] | None = None
    missing: tuple[str, ...] = ("", "?", "NA", "nan")
    categories: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    max_categories: PositiveInt = 200


class _Encoded(NamedTuple):
    """Rows to divide: inputs ``[rows, features]`` with NaN for missing numbers, ``numeric`` ``[features]``."""

    inputs: Floats
    features: tuple[str, ...]
    numeric: NDArray[np.bool_]
    targets: Floats
    classes: tuple[str, ...]
    clients: dict[str, Indices]


class TableSource:
    """One table divided among clients (a :class:`fedgraph.data.base.DataSource`)."""

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
        parts: list[list[Indices]] = []
        inputs, targets = [np.zeros((0, len(data.features)))], [np.zeros(0)]
        mean, std = np.zeros(len(names)), np.ones(len(names))
        first = 0
        for position, name in enumerate(names):
            rows = self._rows(name)
            own = split(
                len(rows), settings.shares, generator(settings.partition_seed, "split", name), f"client '{name}'"
            )
            x, y = data.inputs[rows], data.targets[rows]
            if settings.scaling == "client":
                centre, spread = _centre_and_spread(x[own[0]])
                x = np.where(data.numeric, (x - centre) / spread, x)
                if settings.task == "regression":
                    mean[position], std[position] = (float(part[0]) for part in _centre_and_spread(y[own[0], None]))
                    y = (y - mean[position]) / std[position]
            inputs.append(np.nan_to_num(x, nan=0.0))
            targets.append(y)
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
            counts = torch.stack([torch.bincount(goal[own[0]], minlength=len(data.classes)) for own in parts])
        return CohortData(
            names=tuple(names),
            task=TaskSpec(
                kind=settings.task,
                input_shape=(len(data.features),),
                output_shape=(len(data.classes) or 1,),
                features=data.features,
                classes=data.classes,
            ),
            splits=splits,
            mean=torch.from_numpy(mean).float(),
            std=torch.from_numpy(std).float(),
            label_counts=counts,
        )

    def given_graph(self) -> ClientGraph | None:
        """Return None: no client graph is published with a table."""
        return None

    def describe(self) -> str:
        """Describe the data, e.g. ``wine (scikit-learn), 178 rows, 13 features, 5 clients, 2 shards each``."""
        data, settings = self._encoded, self.settings
        title = f"{self.bundled} (scikit-learn)" if self.bundled else title_of(settings.path, self.own)
        left_out = self._table.num_rows - len(data.targets)
        facts = [title, f"{len(data.targets):,} rows", f"{len(data.features)} features"]
        if left_out:
            facts.insert(2, f"{left_out:,} more without label or client left out")
        by_column = f"{len(data.clients)} clients by column '{settings.client_column}'"
        dealt = describe(settings) if self.own is None else "1 client"
        return ", ".join([*facts, by_column if settings.client_column else dealt])

    def _rows(self, name: str) -> Indices:
        clients = self._encoded.clients
        if name not in clients:
            known = ", ".join(list(clients)[:10]) + (" ..." if len(clients) > 10 else "")
            raise DataError(f"{self._table.where} has no client '{name}'; its clients: {known}")
        return clients[name]

    @cached_property
    def _table(self) -> Table:
        if self.bundled:
            return bundled_table(self.bundled)
        settings = self.settings
        path = place_of(settings.path, self.data_dir, self.own)
        return read_table(path, settings.columns, settings.missing, settings.delimiter)

    @property
    def _encoded(self) -> _Encoded:
        return _encode(self._table, self.settings.model_dump_json(), self.own)


@lru_cache(maxsize=4)
def _encode(table: Table, settings_json: str, own: OwnData | None) -> _Encoded:
    """Encode a table; cached, as many nodes load different clients of one table, hence settings that can be hashed."""
    settings = TableSettings.model_validate_json(settings_json)
    for name in settings.categories:
        table.column(name)
    if own is not None:
        check_declared(table, settings)
    targets, classes = encoded_targets(table, settings)
    kept = np.isfinite(targets)
    owners: tuple[str, ...] = ()
    if settings.client_column is not None:
        codes, owners = table.categories(settings.client_column)
        kept &= codes >= 0
    if not kept.any():
        raise DataError(f"{table.where} has no row with a label in column '{settings.label}' (and a client)")
    inputs, features, numeric = encoded_inputs(table, settings, np.flatnonzero(kept))
    targets = targets[kept]
    if settings.client_column is not None:
        parts = [np.flatnonzero(codes[kept] == code) for code in range(len(owners))]
        clients = {owner: rows for owner, rows in zip(owners, parts, strict=True) if len(rows)}
    elif own is not None:
        clients = {own.only_client(): np.arange(len(targets))}
    else:
        if not classes and settings.partition not in ("iid", "power-law"):
            raise DataError(
                f'partition = "{settings.partition}" deals out classes, and a regression has none: '
                f'use "iid", "power-law" or client-column'
            )
        labels = targets.astype(np.int64) if classes else np.zeros(len(targets), dtype=np.int64)
        parts = partition(settings, labels, settings.partition_seed)
        clients = dict(zip(client_names(len(parts)), parts, strict=True))
    return _Encoded(inputs, features, numeric, targets, classes, clients)


def encoded_targets(table: Table, settings: TableSettings) -> tuple[Floats, tuple[str, ...]]:
    """Return class indices, or numbers, ``[rows]`` with NaN where the label is missing; and the class names."""
    if settings.task == "regression":
        values = table.numbers(settings.label)
        if values is None:
            column = read_column(table, settings.label)
            words = [text for text in column.texts.to_pylist() if not is_number(text)]
            raise DataError(
                f"column '{settings.label}' of {table.where} holds more than numbers, {some(words)} (the first in row "
                f"{column.row_of(words)}): a regression needs numbers, add what means missing to [data] missing, or "
                'use task = "classification"',
                quoted=some(words),
            )
        return values, ()
    codes, classes = table.categories(settings.label, settings.categories.get(settings.label))
    if len(classes) < 2:
        raise DataError(
            f"column '{settings.label}' of {table.where} must hold two classes or more, and holds {len(classes)}"
        )
    return np.where(codes >= 0, codes, np.nan), classes


def check_declared(table: Table, settings: TableSettings) -> None:
    """Raise DataError when a node's own table has categorical columns whose values the settings do not list."""
    undeclared = [
        name for name in _features(table, settings) if name not in settings.categories and _numbers(table, name) is None
    ]
    table.column(settings.label)
    if settings.task == "classification" and settings.label not in settings.categories:
        undeclared.append(settings.label)
    if undeclared:
        raise DataError(
            f"nodes with data of their own must agree on the values of categorical columns, and the experiment does "
            f"not list those of {', '.join(repr(name) for name in undeclared)} of {table.where}: list all values that "
            f"any node may have, [data.categories] {undeclared[0]} = [...]"
        )


def _features(table: Table, settings: TableSettings) -> Sequence[str]:
    """Return the columns to predict from."""
    reserved = (settings.label, settings.client_column)
    chosen = settings.features or [name for name in table.names if name not in reserved]
    if not chosen or any(name in reserved for name in chosen):
        raise DataError(f"[data] features of {table.where} must be other columns than the label and client-column")
    return chosen


def _numbers(table: Table, name: str) -> Floats | None:
    """Return a column as numbers, None if it is categorical. Raises DataError for a few words among numbers."""
    values = table.numbers(name)
    if values is None:
        read_column(table, name).check_words(
            f"add what means missing to [data] missing, or list all values of a categorical column, [data.categories] "
            f"{name} = [...]"
        )
    return values


def encoded_inputs(
    table: Table, settings: TableSettings, rows: Indices
) -> tuple[Floats, tuple[str, ...], NDArray[np.bool_]]:
    """Return the features of ``rows``, their names, and which are numbers rather than one-hot."""
    blocks: list[Floats] = []
    names: list[str] = []
    numeric: list[bool] = []
    for name in _features(table, settings):
        values = None if name in settings.categories else _numbers(table, name)
        if values is not None:
            blocks.append(values[rows, None])
            names.append(name)
            numeric.append(True)
            continue
        codes, listed = table.categories(name, settings.categories.get(name))
        if len(listed) > settings.max_categories:
            raise DataError(
                f"column '{name}' of {table.where} has {len(listed):,} different values, too many for one-hot "
                f"(max-categories = {settings.max_categories}): leave it out with features, or raise max-categories"
            )
        blocks.append((codes[rows, None] == np.arange(len(listed))).astype(np.float64))
        names += [f"{name}={value}" for value in listed]
        numeric += [False] * len(listed)
    return np.concatenate(blocks, axis=1), tuple(names), np.array(numeric)


def _centre_and_spread(values: Floats) -> tuple[Floats, Floats]:
    """Return mean and deviation of each column without NaN; 0 and 1 for an empty column, 1 for a constant one."""
    there = np.isfinite(values)
    count = np.maximum(there.sum(0), 1)
    centre = np.where(there, values, 0.0).sum(0) / count
    spread = np.sqrt((np.where(there, values - centre, 0.0) ** 2).sum(0) / count)
    return centre, np.where(spread > 1e-12, spread, 1.0)


def _bundled_settings(settings: BundledTableSettings) -> TableSettings:
    """Return the settings with which the table would be read from a file with a column ``label``."""
    task = "regression" if settings.set == "diabetes" else "classification"
    shared = {name: getattr(settings, name) for name in PartitionSettings.model_fields}
    own = {"scaling": settings.scaling, "shares": settings.shares}
    return TableSettings.model_validate({**shared, **own, "path": settings.set, "label": "label", "task": task})


@lru_cache(maxsize=4)
def bundled_table(name: str) -> Table:
    """Return a table that comes with scikit-learn, with its labels in the column ``label``."""
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
