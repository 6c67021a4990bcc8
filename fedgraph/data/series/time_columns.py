"""Finds the columns of times in a table: one, a date and a time of day, or year, month and so on."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedgraph.data.columns.cells import is_numeric, to_floats
from fedgraph.data.columns.table import Table
from fedgraph.data.series.stamps import FIRST_UNIX_TIME, FIRST_YEAR, LAST_YEAR, Clock, Times, clock_of, parse_times
from fedgraph.support.errors import DataError

_CLOCK = r"^(\d{1,2}):(\d\d)(?::(\d\d)(?:\.\d*)?)?$"
_SECOND, _DAY = np.timedelta64(1, "s"), np.timedelta64(1, "D")

TIME_WORDS = {"time", "timestamp", "date", "datetime", "datum", "zeit", "zeitstempel", "zeitpunkt", "fecha", "t", "ds",
               "unix", "unixtime", "epoch", "utc", "when", "year", "jahr"}  # fmt: skip
_CLOCK_WORDS = {"time", "hour", "hours", "hr", "hh", "zeit", "uhrzeit", "stunde", "hora", "heure"}
_PARTS = (
    {"year", "yyyy", "yr", "jahr"},
    {"month", "mm", "mo", "mon", "monat"},
    {"day", "dd", "dy", "dom", "tag"},
    {"hour", "hh", "hr", "stunde"},
    {"minute", "min", "mi", "minuten"},
    {"second", "sec", "ss", "sekunde"},
)
"""Names of columns with parts of a time, from the largest on."""

PARTS_OF_TIMES = {"year", "month", "day", "hour", "minute", "second", "week", "weekday", "quarter", "dayofweek"}
"""Names of columns that hold a part of the time, and so are not clients."""


def split_words(name: str) -> list[str]:
    """Return the words in the name of a column: ``DateTime`` and ``date_time`` have two."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return [word for word in re.split(r"[^a-z0-9]+", parted.lower()) if word]


def find_times(table: Table, named: Sequence[str] = ()) -> tuple[tuple[str, ...], Times] | None:
    """Find the time columns of a table.

    Returns their names and the times, ``[rows]``; None if there are none. Raises DataError for cells that are not
    times, and for contradicting columns.

    Parameters
    ----------
    named : the columns, where the settings name them: one, a date and a time of day, or year, month, day and so on.
    """
    if named:
        return tuple(named), _joined(table, named)
    parts = _parts(table)
    if parts:
        return parts, _joined(table, parts)
    found = {
        name: parse_times(f"column '{name}'", column)
        for name, column in table.columns.items()
        if _are_times(name, column)
    }
    if not found:
        return None
    # A date column beside times that include the date adds nothing.
    found = {name: times for name, times in found.items() if not _are_days(times)} or found
    chosen = min(
        found, key=lambda name: (not pa.types.is_temporal(table.columns[name].type), len(split_words(name)) > 1)
    )
    clock = _clock_column(table, chosen) if _are_days(found[chosen]) else None
    if clock is not None:
        return (chosen, clock), _joined(table, (chosen, clock))
    for other, others in found.items():
        if other != chosen:
            _check_alike(chosen, found[chosen], other, others)
    return (chosen,), found[chosen]


def clock_of_columns(table: Table, names: Sequence[str]) -> Clock:
    """Return what the times in these columns are in; those of year, month and so on are local."""
    if len(names) > 2 or names[0].strip().lower() in _PARTS[0]:
        return "local"
    return clock_of(table.columns[names[0]])


def _are_days(times: Times) -> bool:
    present = times[~np.isnat(times)]
    return bool((present == present.astype("datetime64[D]")).all())


def _check_alike(name: str, times: Times, other: str, others: Times) -> None:
    """Raise DataError unless two columns of times differ by a constant, like starts and ends of intervals."""
    apart = others - times
    apart = apart[~np.isnat(apart)]
    if len(apart) and (apart != apart[0]).any():
        raise DataError(
            f"the columns '{name}' and '{other}' both hold times, which differ: choose one, [data] "
            f'time-column = "{name}"'
        )


def is_time_column(name: str, column: pa.Array) -> bool:
    """Return whether a column holds times, whatever its name."""
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return True
    return _is_words(column) and _parses(name, column)


def _are_times(name: str, column: pa.Array) -> bool:
    """Return whether a column holds times: typed ones, texts, or numbers under a telling name."""
    if is_time_column(name, column):
        return True
    present = column.drop_null()
    if not set(split_words(name)) & TIME_WORDS or not len(present):
        return False
    if _is_words(column):
        # The first cell decides.
        return _parses(name, present[:1])
    numbers = to_floats(present)
    assert numbers is not None
    digits = pc.unique(pc.utf8_length(present.cast(pa.string()))).to_pylist()
    is_long = min(digits) >= 8 and len(digits) == 1
    return bool(numbers.min() >= FIRST_UNIX_TIME) or is_long or _parses(name, present)


def _is_words(column: pa.Array) -> bool:
    return not is_numeric(column.type) and not pa.types.is_temporal(column.type) and to_floats(column) is None


def _parses(name: str, column: pa.Array) -> bool:
    try:
        parse_times(name, column[:100].drop_null())
    except DataError:
        return False
    return column[:100].null_count < len(column[:100])


def _parts(table: Table) -> tuple[str, ...]:
    """Return the columns with year, month, and further parts of the time; empty if there are none."""
    found: list[str] = []
    for names in _PARTS:
        alike = [name for name in table.names if name.strip().lower() in names]
        if len(alike) != 1 or to_floats(table.columns[alike[0]]) is None:
            break
        found.append(alike[0])
    if len(found) < 2:
        return ()
    years = to_floats(table.columns[found[0]])
    assert years is not None
    return tuple(found) if np.nanmin(years) >= FIRST_YEAR and np.nanmax(years) <= LAST_YEAR else ()


def _clock_column(table: Table, chosen: str) -> str | None:
    """Return the column of times of day that complements a column of days; None if there is none."""
    for name, column in table.columns.items():
        if name == chosen or not set(split_words(name)) & _CLOCK_WORDS:
            continue
        try:
            _seconds_of_day(name, column)
        except DataError:
            continue
        return name
    return None


def _seconds_of_day(name: str, column: pa.Array) -> NDArray[np.int64]:
    """Return times of day in seconds: ``7:05``, ``07:05:30``, or hours from 0 to 24. Raises DataError for others."""
    if pa.types.is_time(column.type):
        return (
            pc.cast(column, pa.time32("s"), safe=False).cast(pa.int32()).to_numpy(zero_copy_only=False).astype(np.int64)
        )
    hours = to_floats(column)
    if hours is not None:
        if np.isnan(hours).any() or hours.min() < 0 or hours.max() > 24:
            raise DataError(f"column '{name}' holds no hours from 0 to 24")
        return np.rint(hours * 3600).astype(np.int64)
    coded = column.cast(pa.string()).dictionary_encode()
    fields = [re.match(_CLOCK, text.strip()) for text in coded.dictionary.to_pylist()]
    if column.null_count or None in fields:
        raise DataError(f"column '{name}' holds no times of day such as 07:05")
    seconds = [int(of[1]) * 3600 + int(of[2]) * 60 + int(of[3] or 0) for of in fields if of is not None]
    return np.array(seconds, dtype=np.int64)[coded.indices.to_numpy(zero_copy_only=False)]


def _joined(table: Table, names: Sequence[str]) -> Times:
    """Return the times of one column, of a date and a time of day, or of year, month and so on."""
    if len(names) > 2 or names[0].strip().lower() in _PARTS[0]:
        return _join_parts(table, names)
    times = parse_times(f"column '{names[0]}'", table.column(names[0]))
    if len(names) == 2:
        times = times + _seconds_of_day(names[1], table.column(names[1])) * _SECOND
    return times


def _join_parts(table: Table, names: Sequence[str]) -> Times:
    columns = []
    for name in names:
        numbers = table.numbers(name)
        if numbers is None or np.isnan(numbers).any():
            raise DataError(f"column '{name}' must hold whole numbers, as part of a time")
        columns.append(numbers.astype(np.int64))
    year, month = columns[:2]
    day, *clock = columns[2:] or [np.ones_like(year)]
    months = (year - 1970) * 12 + month - 1
    wrong = (month < 1) | (month > 12) | (day < 1) | (day > 31)
    if wrong.any():
        row = int(wrong.argmax()) + 1
        raise DataError(f"row {row} has no valid date in the columns {', '.join(names[:3])}")
    times = months.astype("datetime64[M]").astype("datetime64[s]") + (day - 1) * _DAY
    for part, seconds in zip(clock, (3600, 60, 1), strict=False):
        times = times + part * np.int64(seconds) * _SECOND
    return times.astype("datetime64[s]")
