"""Forecasting windows over series: split in time order, scaled per client, gathered by index when a batch is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedgraph.data.base import SPLITS, Batch, CohortData, Shares, TaskSpec
from fedgraph.data.series_files import SeriesTable, regular_times
from fedgraph.errors import DataError
from fedgraph.settings import Settings


class WindowSettings(Settings):
    """How series are cut into examples; shared by every data set of series.

    missing        : a value that marks a missing reading, e.g. 0.0; NaN always does.
    input_steps    : steps a forecast is made from.
    output_steps   : steps that are forecast.
    stride         : steps between the starts of two examples.
    step_minutes   : minutes between two steps; 0 = as the file says, or unknown.
    unit           : unit of the target for people, e.g. ``mph``.
    scaling        : ``client`` = z-scores from each client's own valid training readings; ``none``.
    shares         : train, validation and test parts of the time axis, in this order.
    time_of_day    : adds the time of day in [0, 1) as the last input feature.
    start          : time of the first step, where the file does not say.
    features       : features to use, counted from 0 in the file; all when not given.
    target_feature : the feature to forecast, counted from 0 in the file.
    clients        : the clients to use; all when not given.
    first_steps    : use only so many time steps from the beginning.
    """

    missing: float | None = None
    input_steps: int = Field(12, ge=1)
    output_steps: int = Field(12, ge=1)
    stride: int = Field(1, ge=1)
    step_minutes: float = Field(0.0, ge=0.0)
    unit: str = ""
    scaling: Literal["client", "none"] = "client"
    shares: Shares = (0.7, 0.2, 0.1)
    time_of_day: bool = False
    start: datetime | None = None
    features: tuple[int, ...] | None = None
    target_feature: int = Field(0, ge=0)
    clients: tuple[str, ...] | None = None
    first_steps: int | None = Field(None, ge=1)


@dataclass(frozen=True)
class WindowSplit:
    """All windows of one stretch of the time axis; example ``i`` starts at step ``first + i * stride``.

    series   : ``[clients, time, features]`` float32, the whole time axis, scaled, missing readings filled.
    observed : ``[clients, time]`` bool, where the target was really read.
    target   : index of the target on the feature axis of ``series``.
    """

    series: Tensor
    observed: Tensor
    first: int
    count: int
    stride: int
    input_steps: int
    output_steps: int
    target: int

    @property
    def num_examples(self) -> Tensor:
        """Examples of each client, int64 ``[clients]``."""
        return torch.full((len(self.series),), self.count, dtype=torch.int64)

    def batch(self, indices: Tensor) -> Batch:
        """Gather windows; ``indices`` ``[clients, batch]``, -1 = padding (finite inputs, weight 0).

        Raises IndexError for an index outside the split, which would read another split's readings. On a GPU, where
        looking costs as much as a whole step, that is not checked.
        """
        on_cpu = indices.device.type == "cpu"
        if on_cpu and indices.numel() and (int(indices.max()) >= self.count or int(indices.min()) < -1):
            raise IndexError(f"window index outside -1..{self.count - 1}")
        padding = indices < 0
        start = (self.first + indices * self.stride).masked_fill(padding, 0)
        client = torch.arange(len(indices), device=indices.device)[:, None]
        # Windows are views of the series until the two lookups below copy those that are asked for.
        window = self.series.unfold(1, self.input_steps + self.output_steps, 1)[client, start]
        weights = self.observed.unfold(1, self.output_steps, 1)[client, start + self.input_steps].float()
        return Batch(
            inputs=window[..., : self.input_steps].transpose(2, 3).contiguous(),
            targets=window[:, :, self.target, self.input_steps :].contiguous(),
            weights=weights.masked_fill(padding[..., None], 0.0),
        )

    def select(self, clients: slice | Tensor) -> WindowSplit:
        """The same split for some of the clients; a slice copies nothing."""
        return replace(self, series=self.series[clients], observed=self.observed[clients])

    def to(self, device: torch.device) -> WindowSplit:
        """The same split on ``device``."""
        return replace(self, series=self.series.to(device), observed=self.observed.to(device))


def select_names(table: SeriesTable, names: Sequence[str]) -> list[int]:
    """Rows of ``names`` in ``table``; raises DataError for names that it does not have or that come twice."""
    rows = {name: row for row, name in enumerate(table.names)}
    unknown = [name for name in names if name not in rows]
    if unknown:
        shown = ", ".join(table.names[:5]) + (", ..." if len(table.names) > 5 else "")
        raise DataError(f"no client named {', '.join(unknown[:5])}; there are {len(table.names)} clients: {shown}")
    if len(set(names)) < len(names):
        raise DataError(f"a client is named twice: {next(name for name in names if list(names).count(name) > 1)}")
    return [rows[name] for name in names]


def build_cohort(table: SeriesTable, settings: WindowSettings, names: Sequence[str]) -> CohortData:
    """Windows of the clients ``names`` of ``table``, in that order.

    Raises
    ------
    DataError
        For unknown clients or features, a time axis too short for one training window, a client without a valid
        training reading of the target, and times that are needed but unknown or contradictory.
    """
    rows = select_names(table, names)
    features = settings.features if settings.features is not None else tuple(range(len(table.features)))
    _check_features(table, features, settings.target_feature)
    steps = num_steps(table, settings)
    stops = [int(steps * share + 1e-6) for share in np.cumsum(settings.shares)]  # rounds down, but not 0.7 + 0.2
    starts = [0, *stops[:-1]]
    length = settings.input_steps + settings.output_steps
    if stops[0] < length:
        raise DataError(
            f"the training part has {stops[0]} time steps, too few for one window of {settings.input_steps} input and "
            f"{settings.output_steps} output steps; use more time steps or a larger first value of `shares`"
        )

    step_minutes = resolve_step_minutes(table, settings)
    values = table.values[rows][:, :steps, list(features)]
    valid = ~np.isnan(values)
    if settings.missing is not None:
        valid &= values != settings.missing
    target = features.index(settings.target_feature)
    silent = [names[int(row)] for row in np.flatnonzero(~valid[:, : stops[0], target].any(axis=1))]
    if silent:
        raise DataError(
            f"no valid reading in the training part for {', '.join(silent[:5])} ({len(silent)} of {len(names)} "
            "clients); leave them out by listing the others in `clients`, or check `missing`"
        )

    mean, std = _moments(values[:, : stops[0]], valid[:, : stops[0]])
    if settings.scaling == "client":
        values = (values - mean[:, None]) / std[:, None]
        series = np.where(valid, values, np.float32(0.0))
    else:
        series = np.where(valid, values, mean[:, None])
        mean, std = np.zeros_like(mean), np.ones_like(std)
    labels = tuple(table.features[feature] for feature in features)
    if settings.time_of_day:
        clock = np.broadcast_to(_time_of_day(table, settings, steps)[None, :, None], (len(rows), steps, 1))
        series, labels = np.concatenate([series, clock], axis=2), (*labels, "time-of-day")

    tensor = torch.from_numpy(np.ascontiguousarray(series))
    observed = torch.from_numpy(np.ascontiguousarray(valid[:, :, target]))
    splits = {}
    for split, first, stop in zip(SPLITS, starts, stops, strict=True):
        count = max(0, (stop - first - length) // settings.stride + 1)
        splits[split] = WindowSplit(
            tensor, observed, first, count, settings.stride, settings.input_steps, settings.output_steps, target
        )
    task = TaskSpec(
        kind="forecast",
        input_shape=(settings.input_steps, len(labels)),
        output_shape=(settings.output_steps,),
        step_minutes=step_minutes,
        unit=settings.unit,
        features=labels,
    )
    return CohortData(
        tuple(names), task, splits, torch.from_numpy(mean[:, target].copy()), torch.from_numpy(std[:, target].copy())
    )


def num_steps(table: SeriesTable, settings: WindowSettings) -> int:
    """Time steps of ``table`` that the settings use."""
    steps = table.values.shape[1]
    return steps if settings.first_steps is None else min(steps, settings.first_steps)


def resolve_step_minutes(table: SeriesTable, settings: WindowSettings) -> float:
    """Minutes between two steps, from the settings or the file; raises DataError when the two differ."""
    if table.step_minutes and settings.step_minutes and table.step_minutes != settings.step_minutes:
        raise DataError(
            f"`step-minutes` is {settings.step_minutes:g}, but the timestamps in the file are "
            f"{table.step_minutes:g} minutes apart; leave `step-minutes` out"
        )
    return table.step_minutes or settings.step_minutes


def _check_features(table: SeriesTable, features: Sequence[int], target: int) -> None:
    known = len(table.features)
    unknown = [feature for feature in (*features, target) if not 0 <= feature < known]
    if unknown:
        raise DataError(f"no feature {unknown[0]}; the file has {known}, counted from 0: {', '.join(table.features)}")
    if target not in features:
        raise DataError(f"`target-feature` {target} must be one of `features` {list(features)}")


def _moments(values: NDArray[np.float32], valid: NDArray[np.bool_]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean and standard deviation of the valid readings ``[clients, features]``; 0 and 1 where there are none.

    A constant series gets 1 too, so that scaling it is harmless.
    """
    count = np.maximum(valid.sum(axis=1), 1)
    mean = np.where(valid, values, 0.0).sum(axis=1, dtype=np.float64) / count
    deviation = np.where(valid, values - mean[:, None], 0.0)
    std = np.sqrt((deviation**2).sum(axis=1) / count)
    std[std <= 1e-6 * np.maximum(1.0, np.abs(mean))] = 1.0
    return mean.astype(np.float32), std.astype(np.float32)


def _time_of_day(table: SeriesTable, settings: WindowSettings, steps: int) -> NDArray[np.float32]:
    """Share of the day that has passed at each step, in [0, 1)."""
    times = table.times
    if times is None:
        if settings.start is None or not settings.step_minutes:
            raise DataError("`time-of-day` needs `start` and `step-minutes`, as the file holds no timestamps")
        times = regular_times(settings.start.replace(tzinfo=None).isoformat(), settings.step_minutes, steps)
    seconds = times[:steps].astype("datetime64[s]").astype(np.int64) % 86_400
    return (seconds / 86_400).astype(np.float32)
