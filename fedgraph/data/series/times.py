"""Time stamps of a user's file: one row per step, in order; steps without a row are missing readings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgraph.support.errors import DataError

_TOLERANCE = 0.25
"""Largest deviation of a time, as a share of a step: months differ, and clocks are not exact."""

_MOST_STEPS = 10
"""Most steps between the first time and the last one, as a multiple of the rows."""

IF_CLOCK_WENT_BACK = "if a local clock went back by an hour, write times in UTC"
"""Advice where an hour occurs twice, as at the end of summer time."""

_INEXACT = 0.05
"""Largest deviation of the usual time between readings, as a share of a step, if clocks are not exact."""

_DAY = 86_400

MONDAY = 4 * _DAY
"""Seconds from the start of 1970 to its first Monday."""

_ROUND_STEPS = [*(1.0, 5.0, 10.0, 15.0, 20.0, 30.0), *(60.0 * minutes for minutes in (1, 2, 5, 10, 15, 20, 30)),
                *(3600.0 * hours for hours in (1, 2, 3, 4, 6, 8, 12)), 86_400.0, 604_800.0]  # fmt: skip


@dataclass(frozen=True)
class MissingSteps:
    """Steps of a table without a row in its file.

    count   : how many.
    longest : how many of them are in the longest gap.
    since   : the last time before the longest gap.
    """

    count: int
    longest: int
    since: np.datetime64


def step_of(times: NDArray[np.datetime64]) -> float:
    """Return the usual time between two or more times, in seconds; of months that of most years."""
    calendar = CalendarMonths.of(times)
    if calendar is not None:
        return calendar.seconds
    return usual_step(np.diff(times).astype("timedelta64[s]").astype(np.int64))


def usual_step(apart: NDArray[np.int64]) -> float:
    """Return the usual time between steps, in seconds, rounded if clocks are inexact."""
    usual = float(np.median(apart))
    if 2 * int((apart == usual).sum()) >= len(apart):
        return usual
    return next((step for step in _ROUND_STEPS if abs(usual - step) <= _INEXACT * step), usual)


class CalendarMonths(NamedTuple):
    """Times that are whole months apart: the same moment of each, from the start of its first or its last day.

    months : of each time, counted from January 1970, ``[steps]``.
    moment : seconds since the start of the month, negative if counted from its end.
    """

    months: NDArray[np.int64]
    moment: int

    @classmethod
    def of(cls, times: NDArray[np.datetime64]) -> CalendarMonths | None:
        """Return those of times in order; None if they are not months apart."""
        # Last days, as 31 January and 28 February, are the first days of the next months, a day earlier.
        for earlier, latest in ((1, 1), (0, 28)):
            shifted = times.astype("datetime64[s]") + np.timedelta64(earlier * _DAY, "s")
            months = shifted.astype("datetime64[M]")
            moments, numbers = (shifted - months).astype(np.int64), months.astype(np.int64)
            if len(times) > 1 and (moments == moments[0]).all() and moments[0] < latest * _DAY:
                return cls(numbers, int(moments[0]) - earlier * _DAY) if (np.diff(numbers) > 0).all() else None
        return None

    @property
    def step(self) -> int:
        """The usual number of months between times, the least of equally frequent ones."""
        apart, counts = np.unique(np.diff(self.months), return_counts=True)
        return int(apart[counts.argmax()])

    @property
    def seconds(self) -> float:
        """The usual time of a step, in seconds; the same for all times that are as many months apart."""
        starts = (self.step * np.arange(48)).astype("datetime64[M]").astype("datetime64[s]")
        return float(np.median(np.diff(starts).astype(np.int64)))

    def times_in(self, months: NDArray[np.int64]) -> NDArray[np.datetime64]:
        """Return the same moment of other months, in seconds."""
        starts = months.astype("datetime64[M]").astype("datetime64[s]").astype(np.int64)
        return (starts + self.moment).astype("datetime64[s]")


def later(times: NDArray[np.datetime64], steps: int, step_seconds: int) -> NDArray[np.datetime64]:
    """Return the times of the next ``steps``: ``step_seconds`` apart, or months where the times are months apart."""
    ahead, calendar = np.arange(1, steps + 1), CalendarMonths.of(times)
    if calendar is not None:
        return calendar.times_in(calendar.months[-1] + ahead * calendar.step)
    last = int(times[-1:].astype("datetime64[s]").astype(np.int64)[0])
    return (last + ahead * step_seconds).astype("datetime64[s]")


def _row(place: int) -> str:
    return f"row {place + 1}"


def missing_steps(
    times: NDArray[np.datetime64], row: Callable[[int], str] = _row
) -> tuple[NDArray[np.int64], NDArray[np.datetime64], MissingSteps] | None:
    """Find the steps without a row between the first and the last time.

    Returns the step of each row ``[rows]``, the time of each step ``[steps]``, and the missing steps; None if there are
    none. Raises DataError for times that are missing, unsorted, repeated or irregular.

    Parameters
    ----------
    times : datetime64[s] ``[rows]``, two or more.
    row : names the row of a time for messages.
    """
    _check_order(times, row)
    seconds = times.astype("datetime64[s]").astype(np.int64)
    apart = np.diff(seconds)
    usual = usual_step(apart)
    calendar = CalendarMonths.of(times)
    if calendar is not None and (np.diff(calendar.months) % calendar.step == 0).all():
        apart, usual = np.diff(calendar.months), float(calendar.step)
    else:
        calendar = None
    steps = np.rint(apart / usual).astype(np.int64)
    odd = np.flatnonzero(np.abs(apart - steps * usual) > _TOLERANCE * usual)
    if len(odd):
        first = int(odd[0]) + 1
        shown = f", the first at {times[first]}"
        raise DataError(
            f"{row(first)} comes {_length(apart[first - 1])} after {row(first - 1)}, but most rows are "
            f"{_length(usual)} apart ({len(odd):,} such rows{shown}): correct or leave out readings between steps, or "
            f"resample to equal steps, for example by means over {_length(usual)}",
            quoted=shown,
        )
    place = np.concatenate([[0], np.cumsum(steps)])
    every, longest = int(place[-1]) + 1, int(steps.argmax())
    if every == len(times):
        return None
    if every > _MOST_STEPS * len(times):
        step = _length(usual) if calendar is None else f"{calendar.step} month{'' if calendar.step == 1 else 's'}"
        shown = f"{times[longest]} to {times[longest + 1]}"
        raise DataError(
            f"of the {every:,} steps of {step} from the first time to the last one the file has only "
            f"{len(times):,}; the longest gap is from {shown}: leave out the rows before it or after it, or resample "
            "to longer steps",
            quoted=shown,
        )
    if calendar is not None:
        filled = calendar.times_in(calendar.months[0] + np.arange(every) * calendar.step)
    else:
        filled = np.rint(np.interp(np.arange(every), place, seconds)).astype(np.int64).astype("datetime64[s]")
    return place, filled, MissingSteps(every - len(times), int(steps[longest]) - 1, times[longest])


def _check_order(times: NDArray[np.datetime64], row_of: Callable[[int], str]) -> None:
    if np.isnat(times).any():
        raise DataError(f"{row_of(int(np.isnat(times).argmax()))} has no time: fill it in, or leave the row out")
    wrong = np.flatnonzero(times[1:] <= times[:-1])
    if not len(wrong):
        return
    row = int(wrong[0]) + 1
    if times[row] < times[row - 1]:
        shown = f"{times[row]} after {times[row - 1]}"
        raise DataError(
            f"the times are not in order: row {row + 1} has {shown} in row {row}; sort the rows by time", quoted=shown
        )
    raise DataError(
        f"rows {row} and {row + 1} have the same time, {times[row]} ({len(np.unique(times)):,} different times in "
        f"{len(times):,} rows): keep one row for each time. If there is a row for each time and client, name "
        f"the column of clients, [data] client-column; {IF_CLOCK_WENT_BACK}",
        quoted=str(times[row]),
    )


def _length(seconds: float) -> str:
    """A length of time in words, as ``5 minutes``."""
    units = (("week", 604_800), ("day", 86_400), ("hour", 3600), ("minute", 60))
    name, size = next((unit for unit in units if seconds >= unit[1] and seconds % unit[1] == 0), ("second", 1))
    return f"{seconds / size:g} {name}{'' if seconds == size else 's'}"


def joined_steps(
    times: NDArray[np.datetime64], client: NDArray[np.int64], names: Sequence[str]
) -> NDArray[np.datetime64]:
    """Align times of several clients that are within a quarter of a step of each other.

    Times ``[rows]`` are unchanged where clients are never read shortly after each other. Raises DataError where
    clients are read in the same steps, but between each other's.

    Parameters
    ----------
    times : datetime64[s] of each row, ``[rows]``.
    client : the client of each row, ``[rows]``.
    """
    seconds = times.astype("datetime64[s]").astype(np.int64)
    order = np.lexsort((seconds, client))
    sorted_client = client[order]
    apart, same = np.diff(seconds[order]), np.diff(sorted_client) == 0
    own = {int(code): apart[same & (sorted_client[1:] == code)] for code in np.unique(client)}
    steps = {code: usual_step(gaps) for code, gaps in own.items() if len(gaps)}
    usual = min(steps.values(), default=0.0)
    if len(steps) < 2 or usual <= 1:
        return times
    when = np.unique(seconds)
    near = np.diff(when) < _TOLERANCE * usual
    if near.any():
        group = np.concatenate([[0], np.cumsum(~near)])
        starts = np.flatnonzero(np.concatenate([[True], ~near]))
        ends = np.append(starts[1:], len(when)) - 1
        middle = (when[starts] + when[ends]) // 2
        step = np.rint(middle / usual) * usual
        rounded = np.where(np.abs(middle - step) <= _TOLERANCE * usual, step, middle).astype(np.int64)
        seconds = rounded[group[np.searchsorted(when, seconds)]]
    _check_phases(seconds, client, names, steps, usual)
    return seconds.astype("datetime64[s]")


def _check_phases(
    seconds: NDArray[np.int64], client: NDArray[np.int64], names: Sequence[str], steps: dict[int, float], usual: float
) -> None:
    """Raise DataError if two clients with the same step are read at interleaved times."""
    firsts = {code: int(seconds[client == code].min()) for code, step in steps.items() if step == usual}
    places = list(firsts)
    for other in places[1:]:
        off = (firsts[other] - firsts[places[0]]) % usual
        if min(off, usual - off) > _TOLERANCE * usual:
            one, two = (np.datetime64(firsts[code], "s") for code in (places[0], other))
            shown = f" ({one} and {two})"
            raise DataError(
                f"clients '{names[places[0]]}' and '{names[other]}' are both read every "
                f"{_length(usual).removeprefix('1 ')}, but {_length(min(off, usual - off))} apart{shown}: use the "
                "start of each step for all of them, or shift the times of one",
                quoted=shown,
            )


def regular(seconds: NDArray[np.int64], step: int) -> NDArray[np.int64]:
    """Remove clock errors from the times of steps, so that they match those of other clients.

    Times, in seconds from the Monday of :data:`MONDAY`, become equal steps from their usual start, rounded to a quarter
    of a step. Months and other irregular steps are unchanged.
    """
    if step < 4 or not len(seconds) or CalendarMonths.of((seconds + MONDAY).astype("datetime64[s]")) is not None:
        return seconds
    place = np.rint((seconds - seconds[0]) / step)
    late = seconds - seconds[0] - place * step
    usual = np.median(late)
    if (np.abs(late - usual) > _TOLERANCE * step).any():
        return seconds
    quarter = step / 4
    begin = np.rint((seconds[0] + usual) / quarter) * quarter
    return np.rint(begin + place * step).astype(np.int64)
