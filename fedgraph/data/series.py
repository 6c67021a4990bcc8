"""Any table of time series as a data set: each column a client that forecasts its own next steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from fedgraph.client_graph import ClientGraph, read_graph
from fedgraph.data.base import CohortData
from fedgraph.data.series_files import SeriesTable, read_series
from fedgraph.data.windows import WindowSettings, build_cohort, num_steps, resolve_step_minutes, select_names
from fedgraph.errors import DataError

_STEP_WORDS = {5.0: "five-minute steps", 15.0: "15-minute steps", 60.0: "hourly steps", 1440.0: "daily steps"}


class SeriesSettings(WindowSettings):
    """The table ``[data]`` with ``set = "series"``: a file of series of your own.

    path  : the file, absolute or relative to the data folder.
    array : key of the series inside an .npz or .h5 file; the only one, or one with a usual name, when not given.
    names : client names that replace those of the file.
    graph : file of the given client graph, absolute or relative to the data folder.
    """

    set: Literal["series"] = "series"
    path: str
    array: str | None = None
    names: tuple[str, ...] | None = None
    graph: str | None = None


class WindowedSource(ABC):
    """A DataSource whose clients are the series of one table."""

    settings: WindowSettings
    title: str
    client_word = "clients"

    @abstractmethod
    def table(self) -> SeriesTable:
        """The whole table; cheap after the first call in a process."""

    @abstractmethod
    def given_graph(self) -> ClientGraph | None:
        """The graph published with the data, over the clients; None when there is none."""

    def client_names(self) -> list[str]:
        """The clients that the settings select, in the order of the settings or else of the file."""
        table = self.table()
        if self.settings.clients is None:
            return list(table.names)
        try:
            select_names(table, self.settings.clients)
        except DataError as error:
            raise DataError(f"{self.title}, key `clients`: {error}") from None
        return list(self.settings.clients)

    def load(self, names: Sequence[str]) -> CohortData:
        """Windows of the clients ``names``; raises DataError as :func:`fedgraph.data.windows.build_cohort` does."""
        table = self.table()
        try:
            return build_cohort(table, self.settings, names)
        except DataError as error:
            raise DataError(f"{self.title}: {error}") from None

    def describe(self) -> str:
        """What data this is and which part of it."""
        table = self.table()
        chosen, steps = len(self.client_names()), num_steps(table, self.settings)
        minutes = resolve_step_minutes(table, self.settings)
        kind = _STEP_WORDS.get(minutes, f"{minutes:g}-minute steps" if minutes else "steps")
        every = table.values.shape[1]
        length = f"{steps:,} {kind}" if steps == every else f"the first {steps:,} of {every:,} {kind}"
        return f"{self.title}, {self._share(chosen, len(table.names))}, {length}"

    def _share(self, chosen: int, total: int) -> str:
        return f"{total} {self.client_word}" if chosen == total else f"{chosen} of {total} {self.client_word}"


class SeriesSource(WindowedSource):
    """The data set of a :class:`SeriesSettings`."""

    def __init__(self, settings: SeriesSettings, data_dir: Path) -> None:
        self.settings: SeriesSettings = settings
        self.path = data_dir / settings.path
        self.graph_path = None if settings.graph is None else data_dir / settings.graph
        self.title = self.path.name

    def table(self) -> SeriesTable:
        """The table of the file."""
        return read_series(self.path, self.settings.array, self.settings.names)

    def given_graph(self) -> ClientGraph | None:
        """The graph of the settings, cut to the clients; GraphError when a client is not in it."""
        if self.graph_path is None:
            return None
        graph = read_graph(self.graph_path, names=list(self.table().names))
        return graph.reindex(self.client_names(), missing="error", extra="drop")
