"""Covariates known for every step: the time, and a client's usual readings at that time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedgraph.data.series.series_files import SeriesTable, regular_times
from fedgraph.data.series.times import MONDAY

Covariate = Literal["time-of-day", "day-of-week", "weekly-profile"]
NAMES = (*get_args(Covariate), "weekly-profile-ahead")
"""Feature names of covariates."""

_DAY, _WEEK = 86_400, 7 * 86_400

_PRIOR_READINGS = 1.0
"""Weight, in readings, of the mean over a longer period as a prior for a shorter one."""


def week_seconds(
    table: SeriesTable, start: datetime | None, step_minutes: float, steps: int
) -> NDArray[np.int64] | None:
    """Return the seconds from a Monday's midnight in 1970 to each of the first ``steps`` steps.

    None without timestamps in the file and ``start`` in the settings.
    """
    times = table.times
    if times is None:
        if start is None or not step_minutes:
            return None
        times = regular_times(start.replace(tzinfo=None).isoformat(), step_minutes, steps)
    return times[:steps].astype("datetime64[s]").astype(np.int64) - MONDAY


def covariates(
    wanted: Sequence[Covariate], seconds: NDArray[np.int64], profile: WeeklyProfile | None, clients: int, ahead: float
) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Compute the covariates of all clients.

    Returns ``[clients, steps, covariates]``, and their names.

    Parameters
    ----------
    wanted : ``time-of-day`` and ``day-of-week``, both in [0, 1); ``weekly-profile``, two features: the profile at a
        step's time and ``ahead`` of it.
    seconds : from a Monday's midnight to each step, ``[steps]``.
    profile : of the clients, where it is wanted.
    ahead : seconds from the last input step of a window to the last step of its forecast.
    """
    found: list[tuple[str, NDArray[np.float32]]] = []
    for name in wanted:
        if name == "weekly-profile":
            assert profile is not None
            usual = profile.at(np.stack([seconds, seconds + np.int64(ahead)]))
            found += [(name, usual[0]), (f"{name}-ahead", usual[1])]
        else:
            share = seconds % _DAY / _DAY if name == "time-of-day" else seconds // _DAY % 7 / 7
            found.append((name, np.broadcast_to(share.astype(np.float32), (clients, len(seconds)))))
    return np.stack([values for _, values in found], axis=2), tuple(name for name, _ in found)


@dataclass(frozen=True)
class Fitted:
    """The readings that profiles were fitted to; each is left out of the profile at its own time.

    Attributes
    ----------
    counted, valid : readings, 0 where one is missing, and where they were read, ``[clients, steps]``.
    seconds : from a Monday's midnight to each step, ``[steps]``.
    """

    counted: NDArray[np.float64]
    valid: NDArray[np.bool_]
    seconds: NDArray[np.int64]


@dataclass(frozen=True)
class WeeklyProfile:
    """Each client's usual reading at a time of the week.

    The mean at that time of the week is shrunk towards the mean at that time on working days, or weekends; that towards
    the mean at that time on all days; and that towards the client's mean. So a client with few days has a profile too.
    A reading is left out of the profile at its own time, except for the client's mean, so that the profile does not
    leak the forecast reading in training.

    Attributes
    ----------
    slots : times of the week that were read, in seconds from Monday's midnight, ``[slots]``.
    sums, counts : sum of the readings at each, and their number, ``[clients, slots]``.
    flat : clients whose profile is their mean, ``[clients]``.
    fitted : the readings themselves; None after training, for times to come.
    """

    slots: NDArray[np.int64]
    sums: NDArray[np.float64]
    counts: NDArray[np.float64]
    flat: NDArray[np.bool_]
    fitted: Fitted | None = None

    @classmethod
    def of(
        cls,
        readings: NDArray[np.float32],
        valid: NDArray[np.bool_],
        seconds: NDArray[np.int64],
        least_days: float = 2.0,
    ) -> WeeklyProfile:
        """Fit profiles to readings, and where they were read, ``[clients, steps]``.

        A client whose readings span fewer than ``least_days`` days has its mean as profile: a profile of a single day
        would be constant in training and vary afterwards.
        """
        slots, place = np.unique(seconds % _WEEK, return_inverse=True)
        counted = np.where(valid, readings, 0).astype(np.float64)
        sums, counts = (_sums(values, place, len(slots)) for values in (counted, valid))
        return cls(slots, sums, counts, _span(valid, seconds) < least_days * _DAY, Fitted(counted, valid, seconds))

    def at(self, times: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the profiles at times in the same seconds, of any shape.

        Returns float32 ``[*times.shape[:-1], clients, times.shape[-1]]``.
        """
        slots, place = np.unique(np.concatenate([self.slots, times.ravel() % _WEEK]), return_inverse=True)
        fitted, wanted = place[: len(self.slots)], place[len(self.slots) :]
        reading, own = self._at_own_time(times.ravel())
        # The mean keeps the reading: without other readings, leaving it out would reveal its distance from the mean.
        means = self.sums.sum(1, keepdims=True) / np.maximum(self.counts.sum(1, keepdims=True), 1)
        profile = np.broadcast_to(means, (len(means), times.size))
        weekend = slots // _DAY >= 5
        for period in (slots % _DAY, slots % _DAY + weekend * _DAY, slots):
            groups, group = np.unique(period, return_inverse=True)
            sums, counts = (
                _sums(values, group[fitted], len(groups))[:, group[wanted]] for values in (self.sums, self.counts)
            )
            profile = (sums - reading + _PRIOR_READINGS * profile) / (counts - own + _PRIOR_READINGS)
        profile = np.where(self.flat[:, None], means, profile)
        return np.moveaxis(profile.astype(np.float32).reshape(len(means), *times.shape), 0, -2)

    def _at_own_time(self, times: NDArray[np.int64]) -> tuple[NDArray[np.float64] | float, NDArray[np.bool_] | float]:
        """Return the reading at each time where the profile is fitted to it, and where it is, ``[clients, times]``."""
        if self.fitted is None:
            return 0.0, 0.0
        seconds = self.fitted.seconds
        step = np.searchsorted(seconds, times).clip(max=len(seconds) - 1)
        own = (seconds[step] == times) & self.fitted.valid[:, step]
        return np.where(own, self.fitted.counted[:, step], 0.0), own


def _span(valid: NDArray[np.bool_], seconds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Seconds ``[clients]`` from the first valid step to the end of the last one; 0 without any."""
    first, last = seconds[valid.argmax(1)], seconds[valid.shape[1] - 1 - valid[:, ::-1].argmax(1)]
    return np.where(valid.any(1), last - first + np.diff(seconds[:2]).sum(), 0)


def _sums(values: NDArray[np.float64] | NDArray[np.bool_], group: NDArray[np.intp], groups: int) -> NDArray[np.float64]:
    """Sum ``[clients, steps]`` by the group of each step, to ``[clients, groups]``."""
    clients = len(values)
    places = (np.arange(clients)[:, None] * groups + group).ravel()
    sums = np.bincount(places, weights=values.ravel(), minlength=clients * groups)
    return sums.astype(np.float64).reshape(clients, groups)
