"""A data set of time series: each column is a client that forecasts its next steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedgraph.data.base import SPLITS, CohortData
from fedgraph.data.columns.cells import Thousands
from fedgraph.data.columns.notes import likely_marks, near_duplicates
from fedgraph.data.own import Name, OwnData, data_path, data_title, with_notes
from fedgraph.data.series.cohort import (
    build_cohort,
    check_later_parts,
    forecast_steps,
    num_steps,
    select_names,
    selected_clients,
    selected_features,
)
from fedgraph.data.series.cold_start import describe_cold
from fedgraph.data.series.column_files import Reading
from fedgraph.data.series.layout import Choice
from fedgraph.data.series.series_files import SeriesTable, read_series
from fedgraph.data.series.window_form import resolve_step_minutes
from fedgraph.data.series.windows import WindowSettings, WindowSplit
from fedgraph.graph import ClientGraph, read_graph
from fedgraph.support.errors import DataError, counted, quoted, some

_STEP_WORDS = {
    5.0: "five-minute",
    60.0: "hourly",
    1440.0: "daily",
    10080.0: "weekly",
    44640.0: "monthly",
    131040.0: "quarterly",
    525600.0: "yearly",
}


class SeriesSettings(WindowSettings):
    """The table ``[data]`` with ``set = "series"``: a file of series of your own.

    path   : the file: a column for each client, or a row for each time and client, or, with ``target`` and no column of
             clients, columns of one client; looked for next to the experiment, in the current folder, and in the data
             folder. Not needed where every node has its own file (node config ``data``): then the columns of a
             node's file are its clients, and ``clients``, ``groups``, ``scales`` and ``cold_clients`` may name those of
             other nodes too.
    client_column : the column that names the client of each row, or several that do so together, in a file with a row
             for each time and client; by default one that repeats its values, once for each time, and has a telling
             name.
    time_column : the column of times, or those of date and time of day, or of year, month, day and so on.
    thousands : what separates thousands in numbers of a file of columns: ``.``, ``,``, a blank or an apostrophe; empty:
             nothing does.
    array  : key of the series inside an .npz or .h5 file; the only one, or one with a usual name, when not given.
    names  : client names that replace those of the file.
    groups : clients by group, e.g. ``{ north = ["a", "b"], south = ["c"] }``, so that results are given per group too;
             every client in one group. When not given, the array ``groups`` or ``corridor`` of an .npz file, a word
             per client.
    graph  : file of the given client graph, looked for as ``path`` is; ``[graph] source = "file"`` has more keys.
    """

    set: Literal["series"] = "series"
    path: str | None = None
    client_column: Name | tuple[Name, ...] | None = None
    time_column: Name | tuple[Name, ...] | None = None
    thousands: Thousands | None = None
    array: str | None = None
    names: tuple[Name, ...] | None = None
    groups: dict[Name, tuple[Name, ...]] | None = None
    graph: str | None = None

    @property
    def choice(self) -> Choice:
        """The settings on the columns of a file."""
        features = tuple(name for name in self.features or () if isinstance(name, str))
        clients, times = (
            () if named is None else named if isinstance(named, tuple) else (named,)
            for named in (self.client_column, self.time_column)
        )
        return Choice(clients, times, self.target, features)


class WindowedSource(ABC):
    """A DataSource whose clients are the series of one table."""

    settings: WindowSettings
    title: str
    client_word = "clients"
    tells_times = True

    @abstractmethod
    def table(self) -> SeriesTable:
        """Return the whole table; cheap after the first call in a process."""

    @abstractmethod
    def given_graph(self) -> ClientGraph | None:
        """Return the graph published with the data, over the clients; None if there is none."""

    def client_names(self) -> list[str]:
        """Return the selected clients, in the order of the settings or else of the file."""
        table = self.table()
        try:
            select_names(table, self.settings.clients or ())
        except DataError as error:
            raise error.at(f"{self.title}, key `clients`") from None
        try:
            return list(selected_clients(table, self.settings))
        except DataError as error:
            raise DataError(f"{self.title}, {error}", error.quoted) from None

    def load(self, names: Sequence[str]) -> CohortData:
        """Load the windows of ``names``. Raises DataError as :func:`fedgraph.data.series.cohort.build_cohort`."""
        table = self.table()
        try:
            return build_cohort(table, self.settings, names)
        except DataError as error:
            raise error.at(self.title) from None

    def load_later(self, names: Sequence[str], known_steps: int, windows: int) -> CohortData:
        """Load windows that forecast steps after those of training.

        Returns a CohortData with these windows as the split ``test``. Raises DataError as ``load``, and when there are
        fewer steps than ``known_steps``.

        Parameters
        ----------
        names : sequence of str
            The clients.
        known_steps : int
            Number of time steps in training, which determine scales, profiles, and the splits ``train`` and
            ``validation``.
        windows : int
            Most windows, the latest. The last one forecasts the steps after the end of the file.
        """
        try:
            data = build_cohort(self.table(), self.settings, names, known_steps)
        except DataError as error:
            raise error.at(self.title) from None
        later = data.splits["test"]
        assert isinstance(later, WindowSplit)
        return replace(data, splits={**data.splits, "test": later.latest(windows)})

    def describe(self) -> str:
        """Describe the data, and the part of it."""
        table = self.table()
        names, steps = self.client_names(), num_steps(table, self.settings)
        minutes = resolve_step_minutes(table, self.settings)
        kind = f"{_STEP_WORDS.get(minutes, f'{minutes:g}-minute')} steps" if minutes else "steps"
        every = table.values.shape[1]
        length = f"{steps:,} {kind}" if steps == every else f"the first {steps:,} of {every:,} {kind}"
        if self.settings.train_steps is not None:
            length += f", trained on the last {self.settings.train_steps:,} of the training part"
        length += self._missing_steps(table)
        cold = describe_cold(self.settings, names)
        share = self._share(len(names), len(table.names)) + (f", of them {cold}" if cold else "")
        return f"{self.title}, {share}, {length}"

    def _missing_steps(self, table: SeriesTable) -> str:
        """Describe the steps without a row; their times are hidden for a node's own data."""
        missing = table.missing
        if missing is None:
            return ""
        since = f" after {missing.since}" if self.tells_times else ""
        return (
            f", {missing.count:,} of {counted(table.values.shape[1], 'step')} missing in the file and masked "
            f"(longest gap {counted(missing.longest, 'step')}{since})"
        )

    def _share(self, chosen: int, total: int) -> str:
        word = self.client_word if total > 1 else self.client_word.removesuffix("s")
        return f"{total} {word}" if chosen == total else f"{chosen} of {total} {word}"


class SeriesSource(WindowedSource):
    """The data set of a :class:`SeriesSettings`."""

    def __init__(self, settings: SeriesSettings, data_dir: Path, own: OwnData | None = None) -> None:
        self.data_dir = data_dir
        self.own = own
        self.graph_path = None if settings.graph is None else data_dir / settings.graph
        self.title = data_title(settings.path, own)
        self.tells_times = own is None
        self.settings: SeriesSettings = settings
        self._whole_settings = settings
        self.others_cold = False
        if own is not None:
            self.settings = _settings_of_node(settings, self._file().names)
            self.others_cold = bool(settings.cold_clients) and not self.settings.cold_clients

    def describe(self) -> str:
        """Describe the data, the target, and notes."""
        table, description = self.table(), super().describe()
        if len(table.features) > 1 or table.by:
            description += f", forecast: {table.features[selected_features(table, self.settings)[1]]}"
        description += f"; by client: {table.by}" if table.by else ""
        return with_notes(description, (*table.notes, *self._about(table)))

    def _about(self, table: SeriesTable) -> Iterator[str]:
        """Yield notes on clients whose target never changes, or is missing in the validation or test part."""
        names, target = self.client_names(), selected_features(table, self.settings)[1]
        if table.by and (pair := near_duplicates(names)):
            yield f"'{pair[0]}' and '{pair[1]}' are two clients"
        values = table.values[select_names(table, names), : num_steps(table, self.settings), target]
        for number in self.settings.missing_numbers:
            values = np.where(values == np.float32(number), np.float32(np.nan), values)
        present = ~np.isnan(values)
        lowest, highest = np.where(present, values, np.inf).min(1), np.where(present, values, -np.inf).max(1)
        zero = (lowest == 0) & (highest == 0)
        cases: tuple[tuple[str, NDArray[np.bool_]], ...] = (
            ("0 throughout, so that small errors pull means down", zero),
            ("constant, so that small errors pull means down", (lowest == highest) & ~zero),
            *(
                (f"without a reading in the {split} part, so that means are over the others", np.asarray(~part.any(1)))
                for split in SPLITS[1:]
                if (part := present[:, forecast_steps(table, self.settings, split)]).shape[1]
            ),
        )
        marks = {name: tuple(likely_marks(series)) for name, series in zip(names, values.astype(float), strict=True)}
        for mark in dict.fromkeys(mark for found in marks.values() for mark in found):
            who = some([name for name, found in marks.items() if mark in found])
            yield f"{mark:g}, far from all other readings, of {who}: set [data] missing if it marks missing ones"
        for words, which in cases:
            if which.any():
                yield f"{words}: {some([name for name, found in zip(names, which, strict=True) if found])}"

    def table(self) -> SeriesTable:
        """Return the table of the file."""
        table = self._file()
        if self.settings.groups is None:
            return table
        return replace(table, groups=_client_groups(self.settings.groups, table.names, self.title))

    def load(self, names: Sequence[str]) -> CohortData:
        """See :class:`WindowedSource`; all clients are warm if only clients of other nodes start cold.

        Also raises DataError for a validation or test part that is too short for one window.
        """
        try:
            check_later_parts(self.table(), self.settings)
        except DataError as error:
            raise error.at(self.title) from None
        data = super().load(names)
        return replace(data, groups=("warm",) * len(names)) if self.others_cold else data

    def given_graph(self) -> ClientGraph | None:
        """Return the graph of the settings, cut to the clients; GraphError if it lacks one.

        Where nodes have their own files, no node knows all clients: then the graph of the whole file.
        """
        if self.graph_path is None:
            return None
        if self.settings.path is None:
            return read_graph(self.graph_path)
        graph = read_graph(self.graph_path, names=list(self.table().names))
        return graph.reindex(self.client_names(), missing="error", extra="drop")

    def _file(self) -> SeriesTable:
        settings = self._whole_settings
        only = settings.clients if settings.names is None else None
        how = Reading(settings.choice, settings.missing_marks, settings.thousands, only, settings.without or ())
        place = data_path(settings.path, self.data_dir, self.own)
        table = read_series(place, settings.array, settings.names, every_step=True, how=how)
        single = settings.features is not None and len(settings.features) == 1
        if table.by and len(table.features) > 1 and not single and settings.target is settings.target_feature is None:
            varied = [len(np.unique(table.values[..., place])) for place in range(len(table.features))]
            raise DataError(
                f"{self.title}: choose which of the columns {quoted(table.features, 8)} to forecast: [data] "
                f'target = "{table.features[int(np.argmax(varied))]}", or another of them (clients are told by '
                f"'{table.by}')"
            )
        if self.own is not None and settings.target is not None and not table.by and len(table.names) == 1:
            # Its columns are features of the only client.
            table = replace(table, names=(self.own.only_client(),))
        return table


def _settings_of_node(settings: SeriesSettings, names: Sequence[str]) -> SeriesSettings:
    """Restrict the settings to the clients of a node's own file. Raises DataError for keys that need all clients."""
    if settings.names is not None or settings.cold_share:
        key, instead = ("names", "name them in the files") if settings.names else ("cold-share", "give cold-clients")
        raise DataError(f"`{key}` needs all clients, and this node only knows its own data: {instead}")
    hosted = set(names)

    def kept(named: Sequence[str] | None) -> tuple[str, ...] | None:
        return None if named is None else tuple(name for name in named if name in hosted)

    groups, scales = settings.groups, settings.scales
    return settings.model_copy(
        update={
            "clients": kept(settings.clients),
            "without": kept(settings.without),
            "cold_clients": kept(settings.cold_clients),
            "groups": None if groups is None else {group: kept(members) for group, members in groups.items()},
            "scales": None if scales is None else {name: scale for name, scale in scales.items() if name in hosted},
        }
    )


def _client_groups(groups: Mapping[str, Sequence[str]], names: Sequence[str], title: str) -> tuple[str, ...]:
    """Return the group of each of ``names``. Raises DataError unless every client is in one group."""
    group_of: dict[str, str] = {}
    for group, members in groups.items():
        for name in members:
            if name in group_of:
                raise DataError(f"{title}, key `groups`: client '{name}' is in '{group_of[name]}' and in '{group}'")
            group_of[name] = group
    unknown, without = sorted(set(group_of) - set(names)), [name for name in names if name not in group_of]
    if unknown or without:
        problem = f"there is no client '{unknown[0]}'" if unknown else f"client '{without[0]}' is in no group"
        raise DataError(f"{title}, key `groups`: {problem}; every client of the file needs one group")
    return tuple(group_of[name] for name in names)
