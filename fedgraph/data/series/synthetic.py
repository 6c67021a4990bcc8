"""Synthetic road traffic: daily demand with congestion that spills back upstream along a road network.

Each road leads towards the city. The queue q of a sensor follows its own load and, with a delay, the queues
downstream of it: ``q(t + 1) = keep q(t) + (1 - keep) (spill mean_downstream q(t) + load(t))``; the speed falls from
free flow as ``1 - depth (1 - exp(-q))``. So neighbours on the graph are informative about each other's future.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse.csgraph import dijkstra, minimum_spanning_tree
from scipy.spatial import Delaunay, distance_matrix

from fedgraph.data.series.series import WindowedSource
from fedgraph.data.series.series_files import SeriesTable, regular_times
from fedgraph.data.series.windows import WindowSettings
from fedgraph.graph import ClientGraph
from fedgraph.support.catalogue import CatalogueEntry
from fedgraph.support.randomness import derive_seed

Array = NDArray[np.float64]

KILOMETRES_BETWEEN_SENSORS = 2.0
QUEUE_MINUTES = 20.0  # how fast queues build up and dissolve
SPILL = 0.7  # share of the downstream queue that reaches upstream
INCIDENTS_PER_DAY = 0.15
MISSING_BURST_MINUTES = 60.0
NOISE_MPH = 1.5

SYNTHETIC: tuple[CatalogueEntry, ...] = (
    CatalogueEntry(
        "synthetic-traffic",
        "Synthetic traffic",
        "synthetic, free to use",
        "any number of sensors and days, 30 and 14 unless set",
        notes="No files: the seed decides everything.",
    ),
)


class SyntheticTrafficSettings(WindowSettings):
    """The table ``[data]`` with ``set = "synthetic-traffic"``; ``seed`` determines everything else.

    ``missing_share`` is the expected share of readings that are lost, in bursts.
    """

    set: Literal["synthetic-traffic"] = "synthetic-traffic"
    sensors: int = Field(30, ge=2, le=2_000)
    days: int = Field(14, ge=1, le=10_000)
    seed: int = 0
    missing_share: float = Field(0.02, ge=0.0, lt=0.9)
    step_minutes: float = Field(5.0, gt=0.0, le=60.0)
    unit: str = "mph"
    start: datetime | None = datetime(2024, 1, 1)


class RoadNetwork(NamedTuple):
    """Sensors on a plane and the roads between them.

    points    : ``[sensors, 2]`` in kilometres.
    roads     : symmetric sparse ``[sensors, sensors]`` of road lengths in kilometres, connected.
    distances : ``[sensors, sensors]`` shortest way along roads.
    """

    points: Array
    roads: sparse.csr_matrix
    distances: Array


class SyntheticTrafficSource(WindowedSource):
    """The data set of a :class:`SyntheticTrafficSettings`."""

    title = "synthetic traffic"
    client_word = "sensors"

    def __init__(self, settings: SyntheticTrafficSettings, data_dir: Path | None = None) -> None:
        """``data_dir`` is taken like every source's, but nothing is read from it."""
        self.settings: SyntheticTrafficSettings = settings

    def table(self) -> SeriesTable:
        """Speeds of all sensors, NaN where a reading was lost."""
        settings = self.settings
        start = (settings.start or datetime(2024, 1, 1)).replace(tzinfo=None).isoformat()
        return _simulate(
            settings.sensors, settings.days, settings.step_minutes, settings.seed, settings.missing_share, start
        )

    def given_graph(self) -> ClientGraph:
        """Gaussian kernel of the distances along roads."""
        names = sensor_names(self.settings.sensors)
        graph = ClientGraph.from_distances(road_network(self.settings.sensors, self.settings.seed).distances, names)
        return graph.reindex(self.client_names(), extra="drop")

    def describe(self) -> str:
        """Describe what was generated, and with which seed."""
        return f"{super().describe()} (simulated, seed {self.settings.seed})"


def sensor_names(sensors: int) -> list[str]:
    """``sensor-000``, ``sensor-001``, ..."""
    return [f"sensor-{number:03d}" for number in range(sensors)]


def _random(seed: int, purpose: str, name: str) -> np.random.Generator:
    """Return a client's own generator, so that its data do not depend on other clients."""
    return np.random.default_rng(derive_seed(seed, "synthetic-traffic", purpose, name))


@lru_cache(maxsize=4)
def road_network(sensors: int, seed: int) -> RoadNetwork:
    """Random points joined by their minimum spanning tree and by the shorter edges of their Delaunay triangulation."""
    side = KILOMETRES_BETWEEN_SENSORS * np.sqrt(sensors)
    points = np.stack([side * _random(seed, "place", name).random(2) for name in sensor_names(sensors)])
    straight = distance_matrix(points, points)
    if sensors < 4:
        near = np.ones_like(straight, dtype=bool)
    else:
        near = np.zeros_like(straight, dtype=bool)
        for corner in (0, 1, 2):
            triangles = Delaunay(points).simplices
            near[triangles[:, corner], triangles[:, corner - 1]] = True
    candidates = np.where(near | near.T, straight, 0.0)
    tree = minimum_spanning_tree(sparse.csr_matrix(candidates)).toarray()
    tree = np.maximum(tree, tree.T)
    typical = np.median(tree[tree > 0])
    roads = sparse.csr_matrix(np.where((tree > 0) | (candidates <= typical), candidates, 0.0))
    return RoadNetwork(points, roads, dijkstra(roads, directed=False))


@lru_cache(maxsize=4)
def _simulate(sensors: int, days: int, step_minutes: float, seed: int, missing_share: float, start: str) -> SeriesTable:
    steps = round(days * 1440 / step_minutes)
    times = regular_times(start, step_minutes, steps)
    names = sensor_names(sensors)
    load = np.stack([_load(name, times, step_minutes, seed) for name in names])
    queue = _queues(load, road_network(sensors, seed), step_minutes)
    speed = np.empty((sensors, steps))
    for row, name in enumerate(names):
        traits = _random(seed, "traits", name)
        free_flow, depth = traits.uniform(60.0, 70.0), traits.uniform(0.6, 0.9)
        noise = NOISE_MPH * _random(seed, "noise", name).standard_normal(steps)
        speed[row] = np.clip(free_flow * (1.0 - depth * -np.expm1(-queue[row])) + noise, 3.0, 80.0)
        speed[row, _lost(name, steps, step_minutes, seed, missing_share)] = np.nan
    return SeriesTable(tuple(names), speed[:, :, None].astype(np.float32), times, ("speed",))


def _load(name: str, times: NDArray[np.datetime64], step_minutes: float, seed: int) -> Array:
    """Demand beyond capacity ``[time]``: rush hours of the sensor's own hour and weight, weekends, incidents."""
    seconds = times.astype(np.int64)
    hour = seconds % 86_400 / 3600.0
    day = seconds // 86_400
    day_number = day - day[0]
    weekend = (day + 3) % 7 >= 5  # 1970-01-01 was a Thursday
    rush = _random(seed, "rush", name)

    def bump(centre: float, width: float) -> Array:
        return np.exp(-0.5 * ((hour - centre - rush.normal(0.0, 0.4)) / width) ** 2)

    morning, evening, midday = (rush.uniform(low, high) for low, high in ((0.0, 2.0), (0.2, 2.0), (0.0, 0.6)))
    workday = morning * bump(8.0, 0.9) + evening * bump(17.5, 1.2)
    demand = np.where(weekend, midday * bump(14.0, 2.0), workday)
    demand *= rush.lognormal(0.0, 0.25, size=int(day_number[-1]) + 1)[day_number]

    chance = _random(seed, "incidents", name)
    for _ in range(chance.poisson(INCIDENTS_PER_DAY * len(times) * step_minutes / 1440.0)):
        begin = int(chance.integers(len(times)))
        length = max(1, round(chance.exponential(45.0) / step_minutes))
        demand[begin : begin + length] += chance.uniform(1.0, 3.0)
    return demand


def _queues(load: Array, network: RoadNetwork, step_minutes: float) -> Array:
    """Queues ``[sensors, time]`` that build up, dissolve and spill back upstream (away from the centre)."""
    from_centre = np.linalg.norm(network.points - network.points.mean(axis=0), axis=1)
    ends = network.roads.tocoo()
    inward = from_centre[ends.row] > from_centre[ends.col]  # traffic flows from row to col, queues the other way
    downstream = sparse.csr_matrix((np.ones(inward.sum()), (ends.row[inward], ends.col[inward])), shape=ends.shape)
    roads_out = np.maximum(downstream.sum(axis=1), 1.0)
    spill = SPILL * sparse.csr_matrix(downstream.multiply(1.0 / roads_out))
    keep = np.exp(-step_minutes / QUEUE_MINUTES)
    queue = np.zeros_like(load)
    for step in range(1, load.shape[1]):
        before = queue[:, step - 1]
        queue[:, step] = keep * before + (1.0 - keep) * (spill @ before + load[:, step - 1])
    return queue


def _lost(name: str, steps: int, step_minutes: float, seed: int, share: float) -> NDArray[np.bool_]:
    """Mask lost readings: bursts and gaps of geometric length, ``share`` of the time in all."""
    lost = np.zeros(steps, dtype=bool)
    if share == 0.0:
        return lost
    random = _random(seed, "missing", name)
    burst = max(1.0, MISSING_BURST_MINUTES / step_minutes)
    gap = max(1.0, burst * (1.0 - share) / share)
    step = 0 if random.random() < share else int(random.geometric(1.0 / gap))
    while step < steps:
        length = int(random.geometric(1.0 / burst))
        lost[step : step + length] = True
        step += length + int(random.geometric(1.0 / gap))
    return lost
