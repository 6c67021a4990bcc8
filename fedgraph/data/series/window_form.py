"""Preprocessing of time series, and new series to forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph.data.base import CohortData
from fedgraph.data.columns.cells import Thousands
from fedgraph.data.preprocessing import Form, NewData, Preprocessing
from fedgraph.data.preprocessing.preprocessing import Scales
from fedgraph.data.series.column_files import Reading
from fedgraph.data.series.covariates import WeeklyProfile, covariates, week_seconds
from fedgraph.data.series.layout import Choice
from fedgraph.data.series.naive import readings_in_windows, times_ahead
from fedgraph.data.series.scaling import Mask, Singles, measured, usable
from fedgraph.data.series.series_files import SeriesTable, read_series
from fedgraph.data.series.windows import WindowSettings, WindowSplit, step_seconds
from fedgraph.support.errors import DataError, counted

if TYPE_CHECKING:
    import pandas as pd

_PROFILE = ("profile-slots", "profile-sums", "profile-counts", "profile-flat")


class WindowForm(Form):
    """How series are cut into windows.

    Attributes
    ----------
    settings : lengths of windows, what is missing, covariates.
    array : key of the series in a file of arrays.
    readings : names of the features that are read, without covariates, in order.
    target : which of them is forecast.
    timed : whether the time of steps was known.
    choice : the settings on the columns of a file.
    thousands : what separates thousands in numbers of a file of columns.
    """

    settings: WindowSettings
    array: str | None
    readings: tuple[str, ...]
    target: int
    timed: bool
    choice: Choice = Choice()
    thousands: Thousands | None = None

    def read(self, place: Path, client: str | None) -> NewData:
        """See :class:`Form`; readings of future steps are optional."""
        try:
            return self._read(place, client)
        except DataError as error:
            raise error if str(error).startswith(str(place)) else error.at(str(place)) from None

    def _read(self, place: Path, client: str | None) -> NewData:
        settings = self.settings
        how = Reading(self.choice, settings.missing_marks, self.thousands)
        table = read_series(place, self.array, None, every_step=True, how=how)
        self._check_steps(table)
        names, rows = table.names, list(range(len(table.names)))
        if client is not None and client in names:
            names, rows = (client,), [names.index(client)]
        elif client is not None:
            if len(names) > 1:
                shown = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
                raise DataError(f"has no series of '{client}'; it has those of {shown}")
            names = (client,)
        values = table.values[rows][:, :, self._features(table)]
        minutes = self.task.step_minutes
        later = SeriesTable(names, values, table.times, self.readings, None, table.missing)
        later = later.extended(settings.output_steps, minutes)
        valid = ~np.isnan(later.values)
        for number in settings.missing_numbers:
            valid &= later.values != number
        seconds = week_seconds(later, None, minutes, later.values.shape[1])
        if self.timed and settings.covariates and seconds is None:
            raise DataError("needs times, which are covariates of the models")
        notes = []
        unread = [name for place, name in enumerate(names) if not valid[place, :, self.target].any()]
        if unread:
            notes.append(f"no readings of {', '.join(unread[:5])}, so their forecasts mean nothing")
        if table.missing is not None:
            steps = counted(table.missing.count, "step is", "steps are")
            notes.append(f"{steps} missing in the file, read as missing readings")
        return NewWindows(self, later, valid, seconds, tuple(notes))

    def _check_steps(self, table: SeriesTable) -> None:
        needed, steps, minutes = self.settings.input_steps, table.values.shape[1], self.task.step_minutes
        if steps < needed:
            raise DataError(f"has {steps} time steps, and a forecast needs {needed}")
        if table.step_minutes and minutes and abs(table.step_minutes - minutes) > 1e-6 * minutes:
            raise DataError(
                f"its steps are {table.step_minutes:g} minutes apart, and those of training were {minutes:g}: "
                "resample the readings"
            )
        if "" not in (table.clock, self.task.clock) and table.clock != self.task.clock:
            kinds = {"UTC": "have a zone or count from 1970", "local": "have no zone"}
            raise DataError(
                f"its times {kinds[table.clock]}, and those of training {kinds[self.task.clock]}: write them alike"
            )

    def _features(self, table: SeriesTable) -> list[int]:
        """Return the indices of the features in a table; a single one may have any name."""
        if len(self.readings) == len(table.features) == 1:
            return [0]
        lacking = [name for name in self.readings if name not in table.features]
        if lacking:
            raise DataError(
                f"has no {', '.join(map(repr, lacking))}, from which the models forecast; it has "
                f"{', '.join(table.features)}"
            )
        return [table.features.index(name) for name in self.readings]


@dataclass(frozen=True)
class NewWindows(NewData):
    """New series, extended by the steps to forecast.

    Attributes
    ----------
    form : how they are cut into windows.
    table : of the features that are read, in order.
    valid : mask of readings, ``[clients, steps, features]``.
    seconds : from a Monday's midnight to each step; None where times are unknown.
    notes : see :class:`NewData`.
    """

    form: WindowForm
    table: SeriesTable
    valid: Mask
    seconds: NDArray[np.int64] | None
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The clients whose series these are."""
        return self.table.names

    def measured(self, name: str, like: Scales) -> dict[str, Tensor]:
        """Measure the scale and the profile of a client on all its readings."""
        row, settings, target = self.table.names.index(name), self.form.settings, self.form.target
        values, valid = self.table.values[row : row + 1], self.valid[row : row + 1]
        count, least = int(valid[..., target].sum()), settings.input_steps + settings.output_steps
        if count < least:
            raise DataError(f"'{name}' has {count} readings, too few to measure a scale, which needs {least}")
        mean, std = usable(*measured(values, valid))
        if settings.scaling == "pooled":
            mean[:, target], std[:, target] = like["mean"].item(), like["std"].item()
        scales = make_scales(mean, std, target, settings)
        more = len(self.form.task.features) - len(self.form.readings)
        profile = None
        if "weekly-profile" in settings.covariates and self.seconds is not None:
            series = scaled_series(values, valid, scales)
            profile = WeeklyProfile.of(series[..., target], valid[..., target], self.seconds)
        return {name: value[0] for name, value in with_profile(scales, more, profile).items()}

    def in_order(self, names: Sequence[str]) -> NewWindows:
        """See :class:`NewData`."""
        rows = [self.names.index(name) for name in names]
        table = replace(self.table, names=tuple(names), values=self.table.values[rows])
        return replace(self, table=table, valid=self.valid[rows])

    def cohort(self, scales: Scales) -> CohortData:
        """See :class:`NewData`: all windows, up to the one that forecasts the steps after the last."""
        form, settings = self.form, self.form.settings
        series = scaled_series(self.table.values, self.valid, scales)
        if settings.covariates and self.seconds is not None:
            profile = profile_in(scales)
            series, _ = with_covariates(series, settings, self.seconds, profile, form.task.step_minutes)
        length = settings.input_steps + settings.output_steps
        split = WindowSplit(
            torch.from_numpy(np.ascontiguousarray(series)),
            torch.from_numpy(np.ascontiguousarray(self.valid[..., form.target])),
            0, series.shape[1] - length + 1, 1, settings.input_steps, settings.output_steps, form.target,
            times=None if self.seconds is None else torch.from_numpy(self.seconds),
            step_seconds=step_seconds(form.task.step_minutes),
        )  # fmt: skip
        return CohortData(self.names, form.task, {"test": split}, scales["mean"], scales["std"])

    def known(self, data: CohortData) -> CohortData | None:
        """See :class:`NewData`: the windows that only forecast steps of the file."""
        split = data.splits["test"]
        assert isinstance(split, WindowSplit)
        assert isinstance(split.count, int)
        count = split.count - split.output_steps
        return replace(data, splits={"test": replace(split, count=count)}) if count > 0 else None

    def answers(self, data: CohortData, outputs: Tensor) -> pd.DataFrame:
        """Return a row for each client, window and forecast step.

        Columns are ``client``, ``window``, ``time``, ``forecast``, ``reading`` if there is one, and
        ``readings_in_window``, as a forecast without readings looks like any other.
        """
        import pandas as pd

        windows, parts = data.splits["test"], []
        assert isinstance(windows, WindowSplit)
        seen, steps = readings_in_windows(windows), windows.output_steps
        places, _ = windows.first_steps()
        ahead = places[:, :, None].numpy() + windows.input_steps + np.arange(steps)
        readings = np.where(self.valid, self.table.values, np.nan)[..., self.form.target]
        for row, name in enumerate(self.names):
            count = int(windows.num_examples[row])
            parts.append(
                pd.DataFrame(
                    {
                        "client": name,
                        "window": np.repeat(np.arange(count), steps),
                        "time": [time for window in times_ahead(windows, row) for time in window],
                        "forecast": outputs[row, :count].flatten().numpy(),
                        "reading": readings[row][ahead[row, :count]].ravel(),
                        "readings_in_window": np.repeat(seen[row, :count].numpy(), steps),
                    }
                )
            )
        return pd.concat(parts, ignore_index=True)


def make_scales(mean: Singles, std: Singles, target: int, settings: WindowSettings) -> dict[str, Tensor]:
    """Return the scales of clients from mean and deviation of their readings ``[clients, features]``.

    Without scaling, missing readings become the mean.
    """
    centre, spread = torch.from_numpy(mean), torch.from_numpy(std)
    fill = torch.zeros_like(centre)
    if settings.scaling == "none":
        centre, spread, fill = fill, torch.ones_like(spread), centre
    scales = {"centre": centre, "spread": spread, "fill": fill}
    return {**scales, "mean": centre[:, target].clone(), "std": spread[:, target].clone()}


def scaled_series(values: Singles, valid: Mask, scales: Scales) -> Singles:
    """Return readings ``[clients, steps, features]`` on the scales of the clients, with missing ones filled."""
    features = values.shape[2]
    of_readings = {name: scales[name][:, None, :features] for name in ("centre", "spread", "fill")}
    raw = torch.from_numpy(np.where(valid, values, np.float32(np.nan)))
    scaled: Singles = Preprocessing.input_scale(of_readings).inputs(raw).numpy()
    return scaled


def with_covariates(
    series: Singles,
    settings: WindowSettings,
    seconds: NDArray[np.int64],
    profile: WeeklyProfile | None,
    step_minutes: float,
) -> tuple[Singles, tuple[str, ...]]:
    """Append covariates to scaled readings; returns both and the names of the covariates."""
    ahead = 60 * step_minutes * settings.output_steps
    more, names = covariates(settings.covariates, seconds, profile, len(series), ahead)
    return np.concatenate([series, more], axis=2), names


def with_profile(scales: Mapping[str, Tensor], covariates: int, profile: WeeklyProfile | None) -> dict[str, Tensor]:
    """Extend scales by covariates, which are not scaled, and by the profiles of the clients."""
    found = dict(scales)
    for name, value in (("centre", 0.0), ("spread", 1.0), ("fill", 0.0)):
        more = torch.full((len(scales[name]), covariates), value, dtype=scales[name].dtype)
        found[name] = torch.cat([scales[name], more], 1)
    if profile is not None:
        slots = np.broadcast_to(profile.slots, profile.sums.shape)
        arrays = (slots.astype(np.int32), profile.sums, profile.counts.astype(np.float32), profile.flat)
        found |= {name: torch.from_numpy(array) for name, array in zip(_PROFILE, arrays, strict=True)}
    return found


def profile_in(scales: Scales) -> WeeklyProfile | None:
    """Return the profiles in scales, for times after training; None without any."""
    if _PROFILE[0] not in scales:
        return None
    slots, sums, counts, flat = (scales[name].numpy() for name in _PROFILE)
    if (slots != slots[0]).any():
        raise DataError("these clients were read at different times of the week: predict them one at a time (client)")
    return WeeklyProfile(slots[0].astype(np.int64), sums, counts.astype(np.float64), flat)


def resolve_step_minutes(table: SeriesTable, settings: WindowSettings) -> float:
    """Return the minutes between two steps, from the settings or the file. Raises DataError if they differ."""
    if table.step_minutes and settings.step_minutes and table.step_minutes != settings.step_minutes:
        raise DataError(
            f"`step-minutes` is {settings.step_minutes:g}, but the timestamps in the file are "
            f"{table.step_minutes:g} minutes apart; leave `step-minutes` out"
        )
    return table.step_minutes or settings.step_minutes
