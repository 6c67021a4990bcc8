"""Rush hour or not, from the speeds of one hour at each sensor: METR-LA and PEMS-BAY as used in F3 (UAI 2023).

Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs, supplement C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from fedgraph.data.owners.shared_samples import Holdings, OwnerSource, SharedSampleSettings, block_splits
from fedgraph.data.series.cohort import num_steps
from fedgraph.data.series.series_files import regular_times
from fedgraph.data.series.traffic import TRAFFIC, MetrLaSettings, PemsBaySettings, TrafficSource
from fedgraph.graph import ClientGraph
from fedgraph.support.catalogue import CatalogueEntry
from fedgraph.support.errors import DataError

STEP_MINUTES = 5
WINDOW_STEPS = 60 // STEP_MINUTES
CLASSES = ("other hour", "rush hour")

RUSH_HOUR: tuple[CatalogueEntry, ...] = tuple(
    replace(
        entry,
        name=f"{entry.name}-rush-hour",
        title=f"{entry.title}, rush hour or not",
        notes=f"The files of {entry.name}, cut into hourly windows: {windows}, a quarter of them rush hours.",
    )
    for entry in TRAFFIC
    for windows in [{"metr-la": "2,856", "pems-bay": "4,343"}.get(entry.name)]
    if windows is not None
)


_RUSH_HOURS = ((7, 10), (16, 19))
"""Spans from the first hour of the day to the one after the last."""


class RushHourSettings(SharedSampleSettings):
    """Windows of 12 five-minute steps that start at the full hour; the label is whether it is a rush hour.

    Rush hours are those from 7 to 10 and from 16 to 19. Incomplete hours, as at the end of a recording, are left out.

    Attributes
    ----------
    missing     : the speed that marks a missing reading, 0 as published; NaN always does. A missing reading becomes the
                  mean of the client's training readings.
    first_steps : use at most this many five-minute steps from the beginning.
    split       : ``hours``, each drawn independently as in the paper, so neighbours may be in another split;
                  ``blocks``, whole blocks of days drawn by split_seed; ``in-order``, blocks in time order, the last for
                  the test.
    block_days  : days of a block, from the first day on.
    """

    missing: float | None = 0.0
    first_steps: int | None = Field(None, ge=1)
    split: Literal["hours", "blocks", "in-order"] = "hours"
    block_days: int = Field(7, ge=1)


class MetrLaRushHourSettings(RushHourSettings):
    """The table ``[data]`` with ``set = "metr-la-rush-hour"``; part and start are those of the set metr-la."""

    set: Literal["metr-la-rush-hour"] = "metr-la-rush-hour"
    part: Literal["auto", "full", "29", "week"] = "auto"
    start: datetime = datetime(2012, 3, 1)


class PemsBayRushHourSettings(RushHourSettings):
    """The table ``[data]`` with ``set = "pems-bay-rush-hour"``; part and start are those of the set pems-bay."""

    set: Literal["pems-bay-rush-hour"] = "pems-bay-rush-hour"
    part: Literal["auto", "full", "67"] = "auto"
    start: datetime = datetime(2017, 1, 1)


class RushHourSource(OwnerSource):
    """Hourly windows of one of the speed data sets; its sensors are the clients."""

    def __init__(self, settings: MetrLaRushHourSettings | PemsBayRushHourSettings, data_dir: Path) -> None:
        self.settings: MetrLaRushHourSettings | PemsBayRushHourSettings = settings
        # Both kinds of set have these keys.
        given = settings.model_dump(include={"part", "first_steps", "clients"})
        kind = MetrLaSettings if isinstance(settings, MetrLaRushHourSettings) else PemsBaySettings
        self.traffic = TrafficSource(kind.model_validate(given), data_dir)
        self.title = f"rush hours of {self.traffic.title}"

    def every_client(self) -> tuple[str, ...]:
        """Return all sensors of the part in use."""
        return self.traffic.table().names

    def holdings(self, names: Sequence[str], classes: tuple[str, ...] = ()) -> Holdings:
        """Return windows ``[hours, 12, 1]`` of the sensors ``names``; keys such as ``2012-03-01T07``."""
        steps, hours = self._windows
        table = self.traffic.table()
        position = {name: row for row, name in enumerate(table.names)}
        speeds = table.values[[position[name] for name in names], :, 0][:, steps]
        read = ~np.isnan(speeds)
        if self.settings.missing is not None:
            read &= speeds != self.settings.missing
        speeds = np.where(read, speeds, np.float32(np.nan))
        # The paper counts a window without any reading as present.
        present = np.ones(read.shape[:2], dtype=bool)
        parts = None
        if self.settings.split != "hours":
            days = hours.astype("datetime64[D]").astype(np.int64)
            blocks = torch.from_numpy((days - days[0]) // self.settings.block_days)
            parts = block_splits(blocks, self.settings, self.settings.split == "in-order", self.title)
        hour_of_day = hours.astype(np.int64) % 24
        rush = np.zeros(len(hours), dtype=bool)
        for start, end in _RUSH_HOURS:
            rush |= (start <= hour_of_day) & (hour_of_day < end)
        return Holdings(
            keys=tuple(str(hour) for hour in hours),
            labels=torch.from_numpy(rush.astype(np.int64)),
            classes=CLASSES,
            inputs=tuple(torch.from_numpy(speeds)[..., None]),
            present=torch.from_numpy(present),
            features=(("speed",),) * len(names),
            parts=parts,
        )

    def every_graph(self) -> ClientGraph | None:
        """Return the road graph as published, over the chosen sensors."""
        return self.traffic.given_graph()

    def describe(self, classes: tuple[str, ...] = ()) -> str:
        """Describe the data, e.g. ``rush hours of METR-LA, 29 of 207 sensors, ..., 2,856 hourly windows``."""
        traffic = self.traffic
        if self.settings.without:
            chosen = traffic.settings.model_copy(update={"clients": self.client_names()})
            traffic = TrafficSource(chosen, traffic.data_dir)
        facts, _, caveat = traffic.describe().partition(":")
        text = f"rush hours of {facts}, {len(self._windows[1]):,} hourly windows"
        return f"{text}:{caveat}" if caveat else text

    @cached_property
    def _windows(self) -> tuple[NDArray[np.int64], NDArray[np.datetime64]]:
        """Steps ``[windows, 12]`` of every complete hour, and the hours."""
        table = self.traffic.table()
        count = num_steps(table, self.traffic.settings)
        times = table.times
        if times is None:
            start = self.settings.start.replace(tzinfo=None).isoformat()
            times = regular_times(start, STEP_MINUTES, count)
        times = times[:count]
        hours = times.astype("datetime64[h]")
        first = np.flatnonzero(times == hours)
        steps = first[first <= count - WINDOW_STEPS, None] + np.arange(WINDOW_STEPS)
        elapsed = (times[steps] - times[steps[:, :1]]).astype("timedelta64[s]").astype(np.int64)
        steps = steps[(elapsed == np.arange(WINDOW_STEPS) * STEP_MINUTES * 60).all(1)]
        if not len(steps):
            raise DataError(f"{self.title}: no hour with all {WINDOW_STEPS} five-minute steps from the full hour on")
        return steps, hours[steps[:, 0]]
