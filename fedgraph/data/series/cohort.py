"""Builds the cohort of a table of series: split in time order, scaled, with covariates, and cut into windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedgraph.data.base import SPLITS, CohortData, SplitName
from fedgraph.data.preprocessing import Preprocessing
from fedgraph.data.series.cold_start import check_cold_steps, cold_clients
from fedgraph.data.series.covariates import WeeklyProfile, week_seconds
from fedgraph.data.series.layout import Choice
from fedgraph.data.series.scaling import measured, pooled, replace_known, reported, usable
from fedgraph.data.series.series_files import SeriesTable
from fedgraph.data.series.window_form import (
    WindowForm,
    make_scales,
    resolve_step_minutes,
    scaled_series,
    with_covariates,
    with_profile,
)
from fedgraph.data.series.windows import WindowSettings, WindowSplit, step_seconds
from fedgraph.models import TaskSpec
from fedgraph.support.errors import DataError


def select_names(table: SeriesTable, names: Sequence[str]) -> list[int]:
    """Return the rows of ``names`` in ``table``. Raises DataError for unknown or repeated names."""
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
    """Build the windows of the clients ``names`` of ``table``, in that order.

    With ``known_steps``, splits, scales and profiles are those of the first ``known_steps`` steps, except that ``test``
    has every window that forecasts later steps, including those after the last. Raises DataError for unknown clients or
    features, a time axis too short for one training window, a client without a valid training reading of the target,
    missing or contradictory times, a cold start that does not fit the data, and fewer than ``known_steps`` steps.
    """
    steps = num_steps(table, settings) if known_steps is None else known_steps
    every = steps
    if known_steps is not None:
        if table.values.shape[1] < steps:
            raise DataError(
                f"there are {table.values.shape[1]} time steps, fewer than the {steps} of training: keep those in "
                "the file, and append new ones"
            )
        table = table.extended(settings.output_steps, resolve_step_minutes(table, settings))
        every = table.values.shape[1]
    rows = select_names(table, names)
    all_names = selected_clients(table, settings)
    cold = cold_clients(settings, all_names)
    features, forecast = selected_features(table, settings)
    stops = _split_ends(settings, steps)
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
    for number in settings.missing_numbers:
        valid &= values != np.float32(number)
    valid[:, :first_read] = False
    if is_cold.any():
        valid[is_cold, :first_cold] = False
    target = features.index(forecast)
    silent = [names[int(row)] for row in np.flatnonzero(~valid[:, : stops[0], target].any(axis=1))]
    if silent:
        raise DataError(
            f"no valid reading in the training part for {', '.join(silent[:5])} ({len(silent)} of this node's "
            f"{len(names)} clients); leave them out by [data] without = {silent[:5]}, or check `missing`"
            + (" and `cold-steps`" if cold.intersection(silent) else "")
        )

    train = slice(first_read, stops[0])
    moments = None
    if settings.cold_scale != "own" or settings.scaling == "pooled":
        moments = reported(values[:, train, target], valid[:, train, target], is_cold, settings.cold_steps)
    mean, std = usable(*measured(values[:, train], valid[:, train]))
    if settings.scaling == "pooled" and moments is not None:
        mean[:, target], std[:, target] = usable(*map(np.asarray, pooled(*moments[:, 2:].T)))
    replace_known(mean[:, target], std[:, target], names, settings.scales or {}, all_names)
    scales = make_scales(mean, std, target, settings)
    series = scaled_series(values, valid, scales)
    labels = tuple(table.features[feature] for feature in features)
    seconds = week_seconds(table, settings.start, step_minutes, every)
    if settings.covariates:
        if seconds is None:
            raise DataError("`covariates` need `start` and `step-minutes`, as the file holds no timestamps")
        training = slice(0, stops[0])
        profile = None
        if "weekly-profile" in settings.covariates:
            profile = WeeklyProfile.of(series[:, training, target], valid[:, training, target], seconds[training])
        series, names_of_more = with_covariates(series, settings, seconds, profile, step_minutes)
        labels, scales = (*labels, *names_of_more), with_profile(scales, len(names_of_more), profile)

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
        clock=table.clock,
    )
    groups = None if table.groups is None else tuple(table.groups[row] for row in rows)
    of_windows = {key: getattr(settings, key) for key in WindowSettings.model_fields}
    form = WindowForm(
        task=task, settings=WindowSettings(**of_windows), array=getattr(settings, "array", None),
        readings=labels[: len(features)], target=target, timed=seconds is not None,
        choice=getattr(settings, "choice", Choice()), thousands=getattr(settings, "thousands", None),
    )  # fmt: skip
    return CohortData(
        tuple(names),
        task,
        splits,
        scales["mean"],
        scales["std"],
        groups=tuple("cold" if name in cold else "warm" for name in names) if cold else groups,
        untrained=() if settings.cold_trains else tuple(name for name in names if name in cold),
        moments=None if moments is None else torch.from_numpy(np.ascontiguousarray(moments)),
        preprocessing=Preprocessing(form, tuple(names), scales),
    )


def check_later_parts(table: SeriesTable, settings: WindowSettings) -> None:
    """Raise DataError for a validation or test part that is not empty, but too short for one window."""
    stops, length = _split_ends(settings, num_steps(table, settings)), settings.input_steps + settings.output_steps
    for place, split in enumerate(SPLITS[1:], 1):
        share, steps = settings.shares[place], stops[place] - stops[place - 1]
        if share and steps < length:
            raise DataError(
                f"the {split} part has {steps} of {stops[-1]:,} time steps, too few for one window of "
                f"{settings.input_steps} input and {settings.output_steps} output steps: these `shares` need "
                f"{math.ceil(length / share - 1e-6):,} time steps; or use shorter windows, a larger share, or a share "
                "of 0"
            )


def forecast_steps(table: SeriesTable, settings: WindowSettings, split: SplitName) -> slice:
    """Return the steps that the windows of a split forecast, those between its first and its last one."""
    place = SPLITS.index(split)
    start, end = ([0, *_split_ends(settings, num_steps(table, settings))][place + by] for by in (0, 1))
    return slice(min(start + settings.input_steps, end), end)


def _split_ends(settings: WindowSettings, steps: int) -> list[int]:
    """Return the steps at which the training, validation and test parts end."""
    return [int(steps * share + 1e-6) for share in np.cumsum(settings.shares)]  # rounds down, but not 0.7 + 0.2


def selected_clients(table: SeriesTable, settings: WindowSettings) -> tuple[str, ...]:
    """Return the clients that the settings choose, without those to leave out.

    Raises DataError when a client to leave out is unknown, or no client is left.
    """
    every = table.names if settings.clients is None else settings.clients
    out = settings.without or ()
    unknown = [name for name in out if name not in every]
    if unknown:
        raise DataError(f"key `without`: there is no client '{unknown[0]}' to leave out")
    left = tuple(name for name in every if name not in out)
    if not left:
        raise DataError("key `without` leaves no clients")
    return left


def _num_windows(steps: int, length: int, stride: int) -> int:
    """Return the number of windows of ``length`` time steps in ``steps`` steps."""
    return max(0, (steps - length) // stride + 1)


def num_steps(table: SeriesTable, settings: WindowSettings) -> int:
    """Return the number of time steps in use."""
    steps = table.values.shape[1]
    return steps if settings.first_steps is None else min(steps, settings.first_steps)


def selected_features(table: SeriesTable, settings: WindowSettings) -> tuple[tuple[int, ...], int]:
    """Return the indices of the features in use, and of the target. Raises DataError if they are not in the table."""
    known = len(table.features)
    every = tuple(range(known)) if settings.features is None else settings.features
    target: int | str = every[0] if len(every) == 1 else 0
    target = next((name for name in (settings.target, settings.target_feature) if name is not None), target)

    def place(feature: int | str) -> int:
        found = table.features.index(feature) if feature in table.features else feature
        if not isinstance(found, int) or not 0 <= found < known:
            raise DataError(f"no feature {feature}; the file has {known}, counted from 0: {', '.join(table.features)}")
        return found

    features, forecast = tuple(map(place, every)), place(target)
    if forecast not in features:
        key = "target" if settings.target is not None else "target-feature"
        raise DataError(f"`{key}` {target} must be one of `features` {list(every)}")
    return features, forecast
