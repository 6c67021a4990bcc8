"""The road-traffic data sets of the literature: METR-LA, PEMS-BAY (speeds), PEMS04 and PEMS08 (flows)."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedgraph.data.series.series import WindowedSource
from fedgraph.data.series.series_files import SeriesTable, read_series
from fedgraph.data.series.windows import WindowSettings
from fedgraph.graph import ClientGraph, read_graph
from fedgraph.support.catalogue import CatalogueEntry, DataFile, missing_message
from fedgraph.support.errors import DataError

_DCRNN = "https://raw.githubusercontent.com/liyaguang/DCRNN/602afd9d767d3aa1c9b3eac51710d6aeee12c227/data/sensor_graph"
_DCRNN_SPEEDS = "https://drive.google.com/open?id=10FOTa6HXPqX8Pf5WRoRwcFnW9BrNZEIX"
_ZENODO = "https://zenodo.org/records/5146275/files"
_ASTGCN = "https://github.com/Davidham3/ASTGCN/raw/master/data"


class SpeedSettings(WindowSettings):
    """Windows of METR-LA and PEMS-BAY; a speed of 0 is a missing reading."""

    missing: float | None = 0.0
    step_minutes: float = Field(5.0, ge=0.0)
    unit: str = "mph"


class MetrLaSettings(SpeedSettings):
    """The table ``[data]`` with ``set = "metr-la"``; ``part`` is the first that is found when ``auto``."""

    set: Literal["metr-la"] = "metr-la"
    part: Literal["auto", "full", "29", "week"] = "auto"
    start: datetime | None = datetime(2012, 3, 1)


class PemsBaySettings(SpeedSettings):
    """The table ``[data]`` with ``set = "pems-bay"``; ``part`` is the first that is found when ``auto``."""

    set: Literal["pems-bay"] = "pems-bay"
    part: Literal["auto", "full", "67"] = "auto"
    start: datetime | None = datetime(2017, 1, 1)


class FlowSettings(WindowSettings):
    """Windows of PEMS04 and PEMS08; of flow, occupancy and speed only the flow is used."""

    step_minutes: float = Field(5.0, ge=0.0)
    unit: str = "vehicles per 5 minutes"
    features: tuple[int, ...] | None = (0,)
    part: Literal["auto", "full"] = "auto"


class Pems04Settings(FlowSettings):
    """The table ``[data]`` with ``set = "pems04"``."""

    set: Literal["pems04"] = "pems04"
    start: datetime | None = datetime(2018, 1, 1)


class Pems08Settings(FlowSettings):
    """The table ``[data]`` with ``set = "pems08"``."""

    set: Literal["pems08"] = "pems08"
    start: datetime | None = datetime(2016, 7, 1)


TrafficSettings = MetrLaSettings | PemsBaySettings | Pems04Settings | Pems08Settings


class TrafficPart(NamedTuple):
    """One set of files a data set can be read from: the readings, then the graph."""

    name: str
    readings: DataFile
    graph: DataFile


@dataclass(frozen=True)
class TrafficSet:
    """A named data set: what the catalogue says of it, its size as published, the parts it can be read from, in the
    order they are looked for, and the file with the places of its sensors."""

    title: str
    licence: str
    size: str
    sensors: int
    features: tuple[str, ...]
    parts: tuple[TrafficPart, ...]
    coordinates: Path | None = None
    notes: str = ""

    def entry(self, name: str, parts: Sequence[TrafficPart]) -> CatalogueEntry:
        """Return the entry of the catalogue, with the files of some parts."""
        return CatalogueEntry(name, self.title, self.licence, self.size, tuple(part[1:] for part in parts), self.notes)


def _prepared(path: str, sha256: str) -> DataFile:
    """Return a file of a part that is not published by itself."""
    return DataFile(Path(path), "", sha256=sha256)


def _flow_part(name: str) -> TrafficPart:
    folder = f"{_ASTGCN}/{name.upper()}"
    readings, distances = (
        DataFile(Path(name, file), f"{folder}/{file}", download=True) for file in (f"{name}.npz", "distance.csv")
    )
    return TrafficPart("full", readings, distances)


_LA_GRAPH = DataFile(
    Path("metr-la/adj_mx.pkl"),
    f"{_DCRNN}/adj_mx.pkl",
    download=True,
    sha256="a35687c6e15aa228dc45027b0ed2a0ea0f4ec78f573deb992c595092d12f61b3",
    size_bytes=680_459,
)
_LA_SUBSET_GRAPH = _prepared("metr-la/adj_mx.npz", "5d083d5c7cd22ca879f7df76cc74fb411420729c03354c1238711fc11f81f471")
_LA_29 = _prepared("metr-la/metr_la_full_29.npz", "64d1d0c95f6327f3732b110cbfdd8256dffa38ae16eccca9d083e1bde75c5c40")
_LA_WEEK = _prepared(
    "metr-la/metr_la_week1_207.npz", "42e20df77e3091e143942105f0b32dd6d3f37c68c47a893879d4d47fea639f6d"
)
_BAY_GRAPH = DataFile(
    Path("pems-bay/adj_mx_bay.pkl"),
    f"{_DCRNN}/adj_mx_bay.pkl",
    download=True,
    sha256="116275f5704d0d492018e14c047f7ae5004385b450aa907f88424055a4a97370",
    size_bytes=1_681_480,
)
_BAY_SUBSET_GRAPH = _prepared(
    "pems-bay/adj_mx_bay.npz", "fc136ede7241ede6adccd3b91b95285d1e030e658359b1533a8cf0da01a3f9be"
)
_BAY_67 = _prepared("pems-bay/pems_bay_full_67.npz", "33ca7d864c2b4890de465f790c8a8806b168d2d83c74e0ad9d711a826609c8b0")

_CSV_LICENCE = "released for research by the DCRNN authors (Li et al., ICLR 2018); the CSV copy on Zenodo is CC BY 4.0"
_PEMS_LICENCE = "Caltrans PeMS, public; published without a licence of its own by the ASTGCN authors (AAAI 2019)"
_FLOW_FEATURES = ("flow", "occupancy", "speed")

SETS: dict[str, TrafficSet] = {
    "metr-la": TrafficSet(
        "METR-LA",
        _CSV_LICENCE,
        "207 sensors, 34,272 five-minute steps, March to June 2012",
        207,
        ("speed",),
        (
            TrafficPart("full", DataFile(Path("metr-la/metr-la.h5"), _DCRNN_SPEEDS), _LA_GRAPH),
            TrafficPart(
                "full", DataFile(Path("metr-la/METR-LA.csv"), f"{_ZENODO}/METR-LA.csv", download=True), _LA_GRAPH
            ),
            TrafficPart("29", _LA_29, _LA_SUBSET_GRAPH),
            TrafficPart("week", _LA_WEEK, _LA_SUBSET_GRAPH),
        ),
        Path("metr-la/graph_sensor_locations.csv"),
        "Speeds in mph, 0 = missing. The prepared week has its missing readings interpolated.",
    ),
    "pems-bay": TrafficSet(
        "PEMS-BAY",
        _CSV_LICENCE,
        "325 sensors, 52,116 five-minute steps, January to June 2017",
        325,
        ("speed",),
        (
            TrafficPart("full", DataFile(Path("pems-bay/pems-bay.h5"), _DCRNN_SPEEDS), _BAY_GRAPH),
            TrafficPart(
                "full", DataFile(Path("pems-bay/PEMS-BAY.csv"), f"{_ZENODO}/PEMS-BAY.csv", download=True), _BAY_GRAPH
            ),
            TrafficPart("67", _BAY_67, _BAY_SUBSET_GRAPH),
        ),
        Path("pems-bay/graph_sensor_locations_bay.csv"),
        "Speeds in mph, 0 = missing. The clock goes forward by one hour on 2017-03-12.",
    ),
    "pems04": TrafficSet(
        "PEMS04",
        _PEMS_LICENCE,
        "307 sensors, 16,992 five-minute steps, January and February 2018",
        307,
        _FLOW_FEATURES,
        (_flow_part("pems04"),),
    ),
    "pems08": TrafficSet(
        "PEMS08",
        _PEMS_LICENCE,
        "170 sensors, 17,856 five-minute steps, July and August 2016",
        170,
        _FLOW_FEATURES,
        (_flow_part("pems08"),),
    ),
}

TRAFFIC: tuple[CatalogueEntry, ...] = tuple(known.entry(name, known.parts) for name, known in SETS.items())


class TrafficSource(WindowedSource):
    """One of the named traffic data sets, read from the first part whose files are in the data folder."""

    client_word = "sensors"

    def __init__(self, settings: TrafficSettings, data_dir: Path) -> None:
        self.settings: TrafficSettings = settings
        self.data_dir = data_dir
        self.known = SETS[settings.set]
        self.title = self.known.title

    def part(self) -> TrafficPart:
        """Return the part in use. Raises DataError naming the files, their addresses and folder if there is none."""
        wanted = [part for part in self.known.parts if self.settings.part in ("auto", part.name)]
        for part in wanted:
            if all((self.data_dir / file.path).is_file() for file in (part.readings, part.graph)):
                return part
        raise DataError(missing_message(self.known.entry(self.settings.set, wanted), self.data_dir))

    def table(self) -> SeriesTable:
        """Return the readings of the part, named by sensor."""
        part = self.part()
        path = self.data_dir / part.readings.path
        table = read_series(path)
        if len(table.features) != len(self.known.features):
            raise DataError(f"{path}: {self.title} has {len(self.known.features)} features, not {len(table.features)}")
        table = replace(table, features=self.known.features)
        if self.settings.set in ("pems04", "pems08"):  # sensors are numbered, as these files have no ids
            table = replace(table, names=tuple(f"{number:03d}" for number in range(len(table.names))))
        if part.name == "67" and table.times is not None:
            table = replace(table, times=_skip_daylight_saving_hour(table.times))
        return table

    @property
    def coordinates(self) -> Path | None:
        """File with the coordinates of the sensors, if it is in the data folder."""
        path = None if self.known.coordinates is None else self.data_dir / self.known.coordinates
        return path if path is not None and path.is_file() else None

    def given_graph(self) -> ClientGraph:
        """Return the published road graph over the clients: kernel weights, or 1 per road of PEMS04 and PEMS08."""
        path = self.data_dir / self.part().graph.path
        graph = _road_graph(path, self.table().names) if path.suffix == ".csv" else read_graph(path)
        return graph.reindex(self.client_names(), missing="error", extra="drop")

    def describe(self) -> str:
        """Describe the part, and whether results are comparable with published tables."""
        text, week = super().describe(), self.part().name == "week"
        if week:
            text += ", missing readings interpolated"
        if len(self.client_names()) < self.known.sensors:
            return f"{text}: not comparable with published tables over all {self.known.sensors} sensors"
        if week or self.settings.first_steps is not None:
            return f"{text}: not comparable with published tables over all time steps"
        if self.settings.cold_share or self.settings.cold_clients:
            return f"{text}: not comparable with published tables, where no sensor starts cold"
        return text

    def _share(self, chosen: int, total: int) -> str:
        return f"{chosen} of {self.known.sensors} sensors" if chosen < self.known.sensors else f"{chosen} sensors"


def _skip_daylight_saving_hour(times: np.ndarray) -> np.ndarray:
    """Return local times of PEMS-BAY, where 02:00 to 02:55 of 2017-03-12 do not exist."""
    return np.where(times < np.datetime64("2017-03-12T02:00:00"), times, times + np.timedelta64(3600, "s"))


def _road_graph(path: Path, names: Sequence[str]) -> ClientGraph:
    """Read a list ``from,to,cost`` of roads, with weight 1 in both directions, as its authors do."""
    try:
        with path.open(newline="") as file:
            pairs = [(int(row["from"]), int(row["to"])) for row in csv.DictReader(file)]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as lines `from,to,cost` ({error!r})", quoted=repr(error)) from None
    unknown = [end for pair in pairs for end in pair if not 0 <= end < len(names)]
    if unknown:
        raise DataError(f"{path}: names sensor {unknown[0]}, but the sensors are 0 to {len(names) - 1}")
    roads = sorted({(min(pair), max(pair)) for pair in pairs})
    starts, ends = ([names[road[side]] for road in roads] for side in (0, 1))
    return ClientGraph.from_lists(names, starts, ends, np.ones(len(roads)), directed=False)
