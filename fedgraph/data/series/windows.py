"""Forecasting windows over series: their settings, and a split that gathers them by index."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedgraph.data.base import Shares
from fedgraph.data.columns.cells import Mark, is_number
from fedgraph.data.own import Name
from fedgraph.data.series.cold_start import ColdStartSettings
from fedgraph.data.series.covariates import Covariate
from fedgraph.data.series.scaling import Scale
from fedgraph.data.series.times import regular
from fedgraph.models import Batch
from fedgraph.support.settings import Settings


class WindowSettings(ColdStartSettings):
    """How series are cut into examples; shared by every data set of series.

    missing        : what marks a missing reading, e.g. 0.0, or a list of numbers and, for files of columns, texts; NaN,
                     NA and empty cells always do.
    input_steps    : steps a forecast is made from.
    output_steps   : steps that are forecast.
    stride         : steps between the starts of two examples.
    step_minutes   : minutes between two steps; 0 = as the file says, or unknown.
    unit           : unit of the target for people, e.g. ``mph``.
    scaling        : ``client`` = z-scores from each client's own valid training readings, a form of personalisation;
                     ``pooled`` = z-scores of the target from the training readings of all clients, as usual in the
                     traffic literature: every client sends the server its mean, deviation and number of readings, and
                     receives the pooled ones (other features keep their own); ``none``.
    scales         : mean and standard deviation by client, e.g. ``{ "400001" = [62.5, 9.1] }``, known from elsewhere:
                     its target readings are scaled by these instead of its own. Other features keep their own.
    shares         : train, validation and test parts of the time axis, in this order.
    covariates     : further input features, behind the others, in this order: ``time-of-day`` and ``day-of-week``, both
                     in [0, 1); ``weekly-profile``, the client's usual reading at this time of the week, and as many
                     steps ahead as are forecast. Each client's profile is fitted to its own training readings, and
                     never sent. With less than two days of them it is their mean.
    start          : time of the first step, where the file does not say.
    features       : features to use, by name or counted from 0 in the file; all when not given.
    target         : name of the feature to forecast. Required for a file of columns with several features; elsewhere it
                     is the first one.
    target_feature : instead, its number, counted from 0 in the file.
    clients        : the clients to use; all when not given.
    without        : clients among them to leave out.
    first_steps    : use only so many time steps from the beginning.
    train_steps    : use only so many of the last steps of the training part; validation and test do not change.
    """

    missing: float | tuple[Mark, ...] | None = None
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
    features: tuple[int | Name, ...] | None = None
    target: Name | None = None
    target_feature: int | None = Field(None, ge=0)
    clients: tuple[Name, ...] | None = None
    without: tuple[Name, ...] | None = None
    first_steps: int | None = Field(None, ge=1)
    train_steps: int | None = Field(None, ge=1)

    @property
    def missing_marks(self) -> tuple[str, ...]:
        """What marks a missing reading, as text."""
        given = self.missing
        return () if given is None else given if isinstance(given, tuple) else (repr(given),)

    @property
    def missing_numbers(self) -> list[float]:
        """The numbers that mark a missing reading."""
        return [float(mark) for mark in self.missing_marks if is_number(mark)]

    @model_validator(mode="after")
    def _one_target(self) -> WindowSettings:
        if self.target is not None and self.target_feature is not None:
            raise ValueError("set target or target-feature, not both")
        return self

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
    """All windows of a part of the time axis; example ``i`` starts at step ``first + i * stride``.

    series   : ``[series, time, features]`` float32, the whole time axis, scaled, missing readings filled.
    observed : ``[series, time]`` bool, where the target was read.
    first, count : first step and number of examples; int64 ``[clients]`` where clients differ.
    target   : index of the target on the feature axis of ``series``.
    rows     : the series of each client, int64 ``[clients]``; None where client ``i`` has series ``i``.
    times    : time of each step, int64 ``[time]``, in seconds from a Monday's midnight; None where unknown.
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

        Raises IndexError for an index outside the split; not checked on a GPU, where it would cost as much as a step.
        """
        if indices.device.type == "cpu" and indices.numel():
            self._check_indices(indices)
        padding = indices < 0
        first = self.first if isinstance(self.first, int) else self.first[: len(indices), None]
        start = (first + indices * self.stride).masked_fill(padding, 0)
        every = torch.arange(len(indices), device=indices.device) if self.rows is None else self.rows[: len(indices)]
        client = every[:, None]
        # Windows are views of the series; the two lookups below copy the requested ones.
        window = self.series.unfold(1, self.input_steps + self.output_steps, 1)[client, start]
        weights = self.observed.unfold(1, self.output_steps, 1)[client, start + self.input_steps].float()
        return Batch(
            inputs=window[..., : self.input_steps].transpose(2, 3).contiguous(),
            targets=window[:, :, self.target, self.input_steps :].contiguous(),
            weights=weights.masked_fill(padding[..., None], 0.0),
        )

    def latest(self, number: int) -> WindowSplit:
        """Return the last windows, at most ``number``; all clients must have equally many."""
        assert isinstance(self.first, int)
        assert isinstance(self.count, int)
        kept = min(number, self.count)
        return replace(self, first=self.first + (self.count - kept) * self.stride, count=kept)

    def first_steps(self) -> tuple[Tensor, Tensor]:
        """Return the first step of each example, int64 ``[clients, examples]``, and a mask of existing examples."""
        counts = self.num_examples.cpu()
        places = torch.arange(int(counts.max()) if len(counts) else 0)
        first = torch.as_tensor(self.first).cpu().view(-1, 1)
        present = places < counts[:, None]
        return (first + places * self.stride).expand(len(counts), -1).masked_fill(~present, 0), present

    def starts(self) -> Tensor:
        """Return the start of each client's examples, int64 ``[clients, examples]``, -1 after a client's last one.

        In seconds from a Monday's midnight, without clock errors, or from the first step if times are unknown.
        """
        steps, present = self.first_steps()
        if self.times is None:
            seconds = steps * self.step_seconds
        else:
            seconds = torch.from_numpy(regular(self.times.cpu().numpy(), self.step_seconds))[steps]
        return seconds.masked_fill(~present, -1)

    def select(self, clients: slice | Tensor) -> WindowSplit:
        """Return the split of some clients, without copying series."""
        first, count = (value[clients] if isinstance(value, Tensor) else value for value in (self.first, self.count))
        if self.rows is None and isinstance(clients, slice):
            return replace(self, series=self.series[clients], observed=self.observed[clients], first=first, count=count)
        rows = torch.arange(len(self.series), device=self.series.device) if self.rows is None else self.rows
        return replace(self, first=first, count=count, rows=rows[clients])

    def to(self, device: torch.device) -> WindowSplit:
        """Return the split on ``device``."""
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


def step_seconds(step_minutes: float) -> int:
    """Return the seconds between two steps; 1 where steps have no known length."""
    return max(1, round(60 * step_minutes))


def shares_scales(data: Settings) -> bool:
    """Return whether scales in this ``[data]`` table depend on numbers that clients send the server."""
    return isinstance(data, WindowSettings) and (data.scaling == "pooled" or data.cold_scale != "own")
