"""Forecasting windows over series: split in time order, scaled per client, gathered by index when a batch is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedgraph.data.base import SPLITS, CohortData, Shares
from fedgraph.data.series.cold_start import ColdStartSettings, check_cold_steps, cold_clients
from fedgraph.data.series.covariates import Covariate, covariates, seconds_of
from fedgraph.data.series.files import SeriesTable
from fedgraph.data.series.scaling import Scale, measured, pooled, replace_known, reported, usable
from fedgraph.models import Batch, TaskSpec
from fedgraph.support.errors import DataError
from fedgraph.support.settings import Settings


class WindowSettings(ColdStartSettings):
    """How series are cut into examples; shared by every data set of series.

    missing        : a value that marks a missing reading, e.g. 0.0; NaN always does.
    input_steps    : steps a forecast is made from.
    output_steps   : steps that are forecast.
    stride         : steps between the starts of two examples.
    step_minutes   : minutes between two steps; 0 = as the file says, or unknown.
    unit           : unit of the target for people, e.g. ``mph``.
    scaling        : ``client`` = z-scores from each client's own valid training readings, which is personalisation by
                     itself; ``pooled`` = z-scores of the target from the training readings of all clients together, as
                     the literature of traffic scales: every client tells the server its mean, deviation and number of
                     readings, and the nodes are told those of all (other features keep their own); ``none``.
    scales         : mean and standard deviation by client, e.g. ``{ "400001" = [62.5, 9.1] }``, known from elsewhere:
                     its target readings are scaled by these in place of its own. Other features keep their own.
    shares         : train, validation and test parts of the time axis, in this order.
    covariates     : further input features, behind the others, in this order: ``time-of-day`` and ``day-of-week``, both
                     in [0, 1); ``weekly-profile``, what the client usually reads at this time of the week, and so many
                     steps ahead as are forecast. Each client's profile is fitted to its own training readings, and
                     never sent.
    start          : time of the first step, where the file does not say.
    features       : features to use, counted from 0 in the file; all when not given.
    target_feature : the feature to forecast, counted from 0 in the file.
    clients        : the clients to use; all when not given.
    first_steps    : use only so many time steps from the beginning.
    train_steps    : use only so many of the last steps of the training part; validation and test stay as they are.
    """

    missing: float | None = None
    input_steps: int = Field(12, ge=1)
    output_steps: int = Field(12, ge=1)
    stride: int = Field(1, ge=1)
    step_minutes: float = Field(0.0, ge=0.0)
    unit: str = ""
    scaling: Literal["client", "pooled", "none"] = "client"
    scales: dict[str, Scale] | None = None
    shares: Shares = (0.7, 0.2, 0.1)
    covariates: tuple[Covariate, ...] = ()
    start: datetime | None = None
    features: tuple[int, ...] | None = None
    target_feature: int = Field(0, ge=0)
    clients: tuple[str, ...] | None = None
    first_steps: int | None = Field(None, ge=1)
    train_steps: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _scales_are_used(self) -> WindowSettings:
        if self.scaling == "none" and (self.scales is not None or self.cold_scale != "own"):
            key = "scales" if self.scales is not None else "cold-scale"
            raise ValueError(f'`{key}` is about scaled readings, but `scaling` is "none"')
        if self.scaling == "pooled" and self.cold_scale != "own":
            raise ValueError(
                f'`cold-scale` is "{self.cold_scale}", but with `scaling` "pooled" cold clients have the scale of all'
            )
        return self


@dataclass(frozen=True)
class WindowSplit:
    """All windows of one stretch of the time axis; example ``i`` starts at step ``first + i * stride``.

    series   : ``[series, time, features]`` float32, the whole time axis, scaled, missing readings filled.
    observed : ``[series, time]`` bool, where the target was really read.
    first, count : first step and number of examples; int64 ``[clients]`` where clients differ.
    target   : index of the target on the feature axis of ``series``.
    rows     : the series of each client, int64 ``[clients]``; None where client ``i`` has series ``i``.
    times    : when each step is, int64 ``[time]``, in seconds from some Monday's midnight; None where unknown.
    step_seconds : between two steps, 1 where unknown.
    """

    series: Tensor
    observed: Tensor
    first: int | Tensor
    count: int | Tensor
    stride: int
    input_steps: int
    output_steps: int
    target: int
    rows: Tensor | None = None
    times: Tensor | None = None
    step_seconds: int = 1

    @property
    def num_examples(self) -> Tensor:
        """Examples of each client, int64 ``[clients]``."""
        if isinstance(self.count, Tensor):
            return self.count
        return torch.full((len(self.series if self.rows is None else self.rows),), self.count, dtype=torch.int64)

    def batch(self, indices: Tensor) -> Batch:
        """Gather windows; ``indices`` ``[clients, batch]``, -1 = padding (finite inputs, weight 0).

        Raises IndexError for an index outside the split, which would read another split's readings. On a GPU, where
        looking costs as much as a whole step, that is not checked.
        """
        if indices.device.type == "cpu" and indices.numel():
            self._check_indices(indices)
        padding = indices < 0
        first = self.first if isinstance(self.first, int) else self.first[: len(indices), None]
        start = (first + indices * self.stride).masked_fill(padding, 0)
        every = torch.arange(len(indices), device=indices.device) if self.rows is None else self.rows[: len(indices)]
        client = every[:, None]
        # Windows are views of the series until the two lookups below copy those that are asked for.
        window = self.series.unfold(1, self.input_steps + self.output_steps, 1)[client, start]
        weights = self.observed.unfold(1, self.output_steps, 1)[client, start + self.input_steps].float()
        return Batch(
            inputs=window[..., : self.input_steps].transpose(2, 3).contiguous(),
            targets=window[:, :, self.target, self.input_steps :].contiguous(),
            weights=weights.masked_fill(padding[..., None], 0.0),
        )

    def latest(self, number: int) -> WindowSplit:
        """Its last windows, at most ``number``, where all clients have as many."""
        assert isinstance(self.first, int)
        assert isinstance(self.count, int)
        kept = min(number, self.count)
        return replace(self, first=self.first + (self.count - kept) * self.stride, count=kept)

    def first_steps(self) -> tuple[Tensor, Tensor]:
        """The step at which each client's examples start, int64 ``[clients, examples]``, and which examples exist."""
        counts = self.num_examples.cpu()
        places = torch.arange(int(counts.max()) if len(counts) else 0)
        first = torch.as_tensor(self.first).cpu().view(-1, 1)
        present = places < counts[:, None]
        return (first + places * self.stride).expand(len(counts), -1).masked_fill(~present, 0), present

    def starts(self) -> Tensor:
        """When each client's examples start, int64 ``[clients, examples]``, -1 behind a client's last one.

        In seconds from some Monday's midnight, or from the first step where the time of steps is unknown.
        """
        steps, present = self.first_steps()
        seconds = steps * self.step_seconds if self.times is None else self.times[steps]
        return seconds.masked_fill(~present, -1)

    def select(self, clients: slice | Tensor) -> WindowSplit:
        """The same split for some of the clients; copies no series."""
        first, count = (value[clients] if isinstance(value, Tensor) else value for value in (self.first, self.count))
        if self.rows is None and isinstance(clients, slice):
            return replace(self, series=self.series[clients], observed=self.observed[clients], first=first, count=count)
        rows = torch.arange(len(self.series), device=self.series.device) if self.rows is None else self.rows
        return replace(self, first=first, count=count, rows=rows[clients])

    def to(self, device: torch.device) -> WindowSplit:
        """The same split on ``device``."""
        first, count = (value.to(device) if isinstance(value, Tensor) else value for value in (self.first, self.count))
        rows = None if self.rows is None else self.rows.to(device)
        series, observed = self.series.to(device), self.observed.to(device)
        return replace(self, series=series, observed=observed, first=first, count=count, rows=rows)

    def _check_indices(self, indices: Tensor) -> None:
        if isinstance(self.count, int):
            largest = self.count - 1
            outside = int(indices.max()) > largest
        else:
            counts = self.count[: len(indices), None]
            largest, outside = int(counts.max()) - 1, bool((indices >= counts).any())
        if outside or int(indices.min()) < -1:
            raise IndexError(f"window index outside -1..{largest}, or beyond its client's last window")


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


def build_cohort(
    table: SeriesTable, settings: WindowSettings, names: Sequence[str], known_steps: int | None = None
) -> CohortData:
    """Windows of the clients ``names`` of ``table``, in that order.

    With ``known_steps``, splits, scales and profiles are those of so many first steps, except that ``test`` has every
    window that forecasts later steps, up to the one that forecasts the steps behind the last.

    Raises
    ------
    DataError
        For unknown clients or features, a time axis too short for one training window, a client without a valid
        training reading of the target, times that are needed but unknown or contradictory, a cold start that does not
        fit the data, and a table of fewer than ``known_steps``.
    """
    steps = num_steps(table, settings) if known_steps is None else known_steps
    every = steps
    if known_steps is not None:
        if table.values.shape[1] < steps:
            raise DataError(
                f"there are {table.values.shape[1]} time steps, fewer than the {steps} that were there in training: "
                "leave those in the file, and add new ones behind them"
            )
        table = table.extended(settings.output_steps, resolve_step_minutes(table, settings))
        every = table.values.shape[1]
    rows = select_names(table, names)
    everybody = clients_of(table, settings)
    cold = cold_clients(settings, everybody)
    features = settings.features if settings.features is not None else tuple(range(len(table.features)))
    _check_features(table, features, settings.target_feature)
    stops = [int(steps * share + 1e-6) for share in np.cumsum(settings.shares)]  # rounds down, but not 0.7 + 0.2
    first_read = max(0, stops[0] - (settings.train_steps or steps))
    starts = [first_read, *stops[:-1]]
    length = settings.input_steps + settings.output_steps
    if stops[0] - first_read < length:
        raise DataError(
            f"the training part has {stops[0] - first_read} time steps, too few for one window of "
            f"{settings.input_steps} input and {settings.output_steps} output steps; use more time steps, a larger "
            "first value of `shares`, or more `train-steps`"
        )

    if cold:
        check_cold_steps(settings, stops[0] - first_read, length)
    is_cold = np.array([name in cold for name in names])
    first_cold = stops[0] - settings.cold_steps

    step_minutes = resolve_step_minutes(table, settings)
    values = table.values[rows][:, :every, list(features)]
    valid = ~np.isnan(values)
    if settings.missing is not None:
        valid &= values != settings.missing
    valid[:, :first_read] = False
    if is_cold.any():
        valid[is_cold, :first_cold] = False
    target = features.index(settings.target_feature)
    silent = [names[int(row)] for row in np.flatnonzero(~valid[:, : stops[0], target].any(axis=1))]
    if silent:
        raise DataError(
            f"no valid reading in the training part for {', '.join(silent[:5])} ({len(silent)} of {len(names)} "
            "clients); leave them out by listing the others in `clients`, or check `missing`"
            + (" and `cold-steps`" if cold.intersection(silent) else "")
        )

    train = slice(first_read, stops[0])
    moments = None
    if settings.cold_scale != "own" or settings.scaling == "pooled":
        moments = reported(values[:, train, target], valid[:, train, target], is_cold, settings.cold_steps)
    mean, std = usable(*measured(values[:, train], valid[:, train]))
    if settings.scaling != "none":
        if settings.scaling == "pooled" and moments is not None:
            mean[:, target], std[:, target] = usable(*map(np.asarray, pooled(*moments[:, 2:].T)))
        replace_known(mean[:, target], std[:, target], names, settings.scales or {}, everybody)
        values = (values - mean[:, None]) / std[:, None]
        series = np.where(valid, values, np.float32(0.0))
    else:
        series = np.where(valid, values, mean[:, None])
        mean, std = np.zeros_like(mean), np.ones_like(std)
    labels = tuple(table.features[feature] for feature in features)
    seconds = seconds_of(table, settings.start, step_minutes, every)
    if settings.covariates:
        if seconds is None:
            raise DataError("`covariates` need `start` and `step-minutes`, as the file holds no timestamps")
        ahead = 60 * step_minutes * settings.output_steps
        readings, read = series[..., target], valid[..., target]
        more, names_of_more = covariates(settings.covariates, seconds, readings, read, stops[0], ahead)
        series, labels = np.concatenate([series, more], axis=2), (*labels, *names_of_more)

    tensor = torch.from_numpy(np.ascontiguousarray(series))
    observed = torch.from_numpy(np.ascontiguousarray(valid[:, :, target]))
    splits = {}
    for split, start, stop in zip(SPLITS, starts, stops, strict=True):
        first: int | Tensor = start
        count: int | Tensor = _num_windows(stop - start, length, settings.stride)
        if split == "train" and is_cold.any():
            of_cold = _num_windows(settings.cold_steps, length, settings.stride) if settings.cold_trains else 0
            first = torch.from_numpy(np.where(is_cold, first_cold, first))
            count = torch.from_numpy(np.where(is_cold, of_cold, count))
        splits[split] = WindowSplit(
            tensor, observed, first, count, settings.stride, settings.input_steps, settings.output_steps, target,
            times=None if seconds is None else torch.from_numpy(seconds), step_seconds=step_seconds(step_minutes),
        )  # fmt: skip
    if known_steps is not None:
        first = steps - settings.input_steps
        splits["test"] = replace(splits["test"], first=first, count=_num_windows(every - first, length, 1), stride=1)
    task = TaskSpec(
        kind="forecast",
        input_shape=(settings.input_steps, len(labels)),
        output_shape=(settings.output_steps,),
        step_minutes=step_minutes,
        unit=settings.unit,
        features=labels,
    )
    groups = None if table.groups is None else tuple(table.groups[row] for row in rows)
    return CohortData(
        tuple(names),
        task,
        splits,
        torch.from_numpy(mean[:, target].copy()),
        torch.from_numpy(std[:, target].copy()),
        groups=tuple("cold" if name in cold else "warm" for name in names) if cold else groups,
        untrained=() if settings.cold_trains else tuple(name for name in names if name in cold),
        moments=None if moments is None else torch.from_numpy(np.ascontiguousarray(moments)),
    )


def step_seconds(step_minutes: float) -> int:
    """Return the seconds between two steps; 1 where steps have no known length."""
    return max(1, round(60 * step_minutes))


def clients_of(table: SeriesTable, settings: WindowSettings) -> tuple[str, ...]:
    """All clients of the data set: those of the settings, else all of the table."""
    return table.names if settings.clients is None else settings.clients


def shares_scales(data: Settings) -> bool:
    """Return whether the scale of some clients of this ``[data]`` table depends on what others send the server."""
    return isinstance(data, WindowSettings) and (data.scaling == "pooled" or data.cold_scale != "own")


def _num_windows(steps: int, length: int, stride: int) -> int:
    """Examples of ``length`` time steps in a stretch of the time axis."""
    return max(0, (steps - length) // stride + 1)


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
