"""Naive forecasts of time series (last reading, weekly profile), and the times of windows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedgraph.data.base import CohortData, Split, SplitName
from fedgraph.data.series.covariates import NAMES, WeeklyProfile
from fedgraph.data.series.times import MONDAY
from fedgraph.data.series.windows import WindowSplit
from fedgraph.models import TaskSpec
from fedgraph.support.errors import DataError


def as_windows(split: Split) -> WindowSplit:
    """Return the split itself. Raises DataError if the data has no windows of time series, as all functions here do."""
    if not isinstance(split, WindowSplit):
        raise DataError("this data has no windows of time series")
    return split


def times_ahead(split: Split, client: int = 0) -> list[list[str]]:
    """Return the forecast times of one client's windows, the first client's by default.

    For each window its steps, as ``2024-05-06T00:05:00``, or as numbers where the time of steps is unknown.
    """
    windows = as_windows(split)
    steps, present = windows.first_steps()
    ahead = steps[client, present[client], None] + windows.input_steps + torch.arange(windows.output_steps)
    if windows.times is None:
        return [[str(step) for step in row] for row in ahead.tolist()]
    times = windows.times.cpu().numpy()[ahead.numpy()] + MONDAY
    return [[str(time) for time in row] for row in times.astype("datetime64[s]")]


def readings_in_windows(split: Split) -> Tensor:
    """Return the number of target readings among the input steps of each window.

    Returns int64 ``[clients, examples]``, 0 after a client's last example. Raises DataError if the data has no windows
    of time series.
    """
    windows = as_windows(split)
    steps, present = windows.first_steps()
    observed = windows.observed.cpu()
    if windows.rows is not None:
        observed = observed[windows.rows.cpu()]
    before = pad(observed.cumsum(1), (1, 0))
    found = before.gather(1, steps + windows.input_steps) - before.gather(1, steps)
    return found.masked_fill(~present, 0)


def covariate_features(task: TaskSpec) -> list[bool]:
    """Return, for each input feature, whether it is a covariate."""
    return [name in NAMES for name in task.features]


def last_readings(split: Split) -> Tensor:
    """Return the last reading of the target in each window.

    The result is scaled, float32 ``[clients, examples]``; 0, the mean, for windows without any reading.
    """
    windows = as_windows(split)
    steps, present = windows.first_steps()
    rows = _rows(windows)
    read = windows.observed.unfold(1, windows.input_steps, 1)[rows, steps]
    age = read.flip(2).int().argmax(2)
    readings = windows.series[..., windows.target]
    last = readings[rows, steps + windows.input_steps - 1 - age]
    return last.masked_fill(~(present & read.any(2)), 0.0)


def profile_forecasts(data: CohortData, split: SplitName) -> Tensor:
    """Forecast each window by the client's weekly profile, fitted on its training part.

    See :class:`fedgraph.data.series.covariates.WeeklyProfile`. The result is scaled, float32 ``[clients, examples,
    steps]``. Raises DataError if the data has no windows of time series, or the time of steps is unknown.
    """
    windows, validation = as_windows(data.splits[split]), as_windows(data.splits["validation"])
    if windows.times is None:
        raise DataError("a weekly profile needs `start` and `step-minutes`, as the file has no timestamps")
    assert isinstance(validation.first, int)
    training, seconds = slice(validation.first), windows.times.numpy()
    rows = _rows(windows)
    readings, read = windows.series[rows[:, 0], :, windows.target], windows.observed[rows[:, 0]]
    known = readings[:, training].numpy(), read[:, training].numpy(), seconds[training]
    usual = WeeklyProfile.of(*known, least_days=0.0).at(seconds)
    steps, _ = windows.first_steps()
    ahead = torch.from_numpy(usual).unfold(1, windows.output_steps, 1)
    return ahead[torch.arange(len(rows))[:, None], steps + windows.input_steps]


def _rows(windows: WindowSplit) -> Tensor:
    """Return the series of each client, ``[clients, 1]``."""
    rows = torch.arange(len(windows.series)) if windows.rows is None else windows.rows
    return rows[:, None]
