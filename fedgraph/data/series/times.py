"""Time stamps of a file of one's own: one row for each step, in order; steps without a row are missing readings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedgraph.support.errors import DataError

_TOLERANCE = 0.25
"""Share of a step by which a time may be early or late: months differ, and clocks are not exact."""

_MOST_STEPS = 10
"""Most steps between the first time and the last one, as a multiple of the rows."""


@dataclass(frozen=True)
class MissingSteps:
    """Steps of a table that its file has no row for.

    count   : how many.
    longest : how many of them are in the longest gap.
    since   : the last time before the longest gap.
    """

    count: int
    longest: int
    since: np.datetime64


def missing_steps(
    times: NDArray[np.datetime64],
) -> tuple[NDArray[np.int64], NDArray[np.datetime64], MissingSteps] | None:
    """Find the steps from the first time to the last one that have no row.

    Parameters
    ----------
    times : array
        datetime64[s] ``[rows]``, two or more.

    Returns
    -------
    tuple or None
        The step of each row ``[rows]``, the time of each step ``[steps]``, and which are missing; None where none is.

    Raises
    ------
    DataError
        For times that are missing, unsorted or repeated, and for those that are no regular steps.
    """
    _check_order(times)
    seconds = times.astype("datetime64[s]").astype(np.int64)
    apart = np.diff(seconds)
    usual = float(np.median(apart))
    steps = np.rint(apart / usual).astype(np.int64)
    odd = np.flatnonzero(np.abs(apart - steps * usual) > _TOLERANCE * usual)
    if len(odd):
        row = int(odd[0]) + 1
        raise DataError(
            f"row {row + 1} comes {_length(apart[row - 1])} after row {row}, but most rows are {_length(usual)} apart "
            f"({len(odd):,} such rows): bring the readings to equal steps, for example by means over "
            f"{_length(usual)}",
        )
    place = np.concatenate([[0], np.cumsum(steps)])
    every, longest = int(place[-1]) + 1, int(steps.argmax())
    if every == len(times):
        return None
    if every > _MOST_STEPS * len(times):
        shown = f"{times[longest]} to {times[longest + 1]}"
        raise DataError(
            f"of the {every:,} steps of {_length(usual)} from the first time to the last one the file has only "
            f"{len(times):,}; the longest gap is from {shown}: leave out the rows before it or after it, or bring the "
            "readings to longer steps",
            quoted=shown,
        )
    filled = np.rint(np.interp(np.arange(every), place, seconds)).astype(np.int64).astype("datetime64[s]")
    return place, filled, MissingSteps(every - len(times), int(steps[longest]) - 1, times[longest])


def _check_order(times: NDArray[np.datetime64]) -> None:
    if np.isnat(times).any():
        raise DataError(f"row {int(np.isnat(times).argmax()) + 1} has no time: fill it in, or leave the row out")
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
        f"{len(times):,} rows): keep one row for each time. If there is a row for each time and client, name the "
        "columns time, client and value; if a local clock went back by an hour, write times in UTC",
        quoted=str(times[row]),
    )


def _length(seconds: float) -> str:
    """A length of time in words, as ``5 minutes``."""
    for name, size in (("weeks", 604_800), ("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {name}"
    return f"{seconds:g} seconds"
