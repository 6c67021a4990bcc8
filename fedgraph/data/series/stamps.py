"""Parses times in files: texts, numbers, digits, spreadsheet days, in one column or several."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from datetime import date
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedgraph.data.columns.cells import is_numeric, to_floats
from fedgraph.data.columns.table_files import Table
from fedgraph.support.errors import DataError

Times = NDArray[np.datetime64]
Clock = Literal["", "UTC", "local"]

_FIRST_UNIX_TIME = 1e8
"""Smallest number, in 1973, that may be seconds (or fractions of them) from 1 January 1970."""

_LAST_TIME = 2.0**63
"""Numbers from here on are not of 64 bits, and mean no time."""

_UNITS = ((1e11, "s"), (1e14, "ms"), (1e17, "us"), (np.inf, "ns"))
_FIRST_DAY, _LAST_DAY = 20_000, 80_000
"""Spreadsheet days, counted from the end of 1899: from 1954 to 2119."""

_ZERO_DAY = np.datetime64("1899-12-30T00:00:00")
_DIGITS = {4: "%Y", 6: "%Y%m", 8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
"""Times as digits, by their number."""

_FIRST_YEAR, _LAST_YEAR = 1900, 2100
_DAYS = ("%d.%m.%Y", "%Y/%m/%d", "%d %b %Y", "%d-%b-%Y", "%d.%m.%y", "%d %b %y", "%d-%b-%y")
_FORMS = (*(day + clock for day in _DAYS for clock in (" %H:%M:%S", " %H:%M", "")), "%Y%m%dT%H%M%S", "%Y%m%dT%H%M")
"""Times other than 2012-03-01 00:05 of which it is clear what is the day, and what the month."""

_YEAR_OF_FOUR = np.datetime64("1000-01-01T00:00:00")
"""Earlier years are those of two digits, read as if they had four."""

_PERIOD = r"^(\d{4})-?([MQW])(\d\d?)$"
"""A month, quarter or week of a year."""

_ZONE = r".*:.*(Z|[+-]\d\d:?\d\d)$"
_MIDNIGHT = r"^(.*[T ])24:00(:00(?:\.0*)?)?$"
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

_TELL = "write times as 2012-03-01 00:05, or as seconds from 1970"


def clock_of(table: Table, names: Sequence[str]) -> Clock:
    """Return what the times in these columns are in: UTC where they have a zone or count from 1970, else local time."""
    column = pc.unique(table.columns[names[0]].drop_null())
    if len(names) > 2 or names[0].strip().lower() in _PARTS[0] or pa.types.is_date(column.type):
        return "local"
    if pa.types.is_timestamp(column.type):
        return "UTC" if column.type.tz else "local"
    numbers = to_floats(column)
    if numbers is None:
        texts = pc.utf8_trim_whitespace(column.cast(pa.string()))
        return "UTC" if pc.any(pc.match_substring_regex(texts, f"^{_ZONE}")).as_py() else "local"
    counts = bool(len(numbers)) and numbers.min() >= _FIRST_UNIX_TIME
    texts = column.cast(pa.string()).dictionary_encode()
    return "UTC" if counts and _parse_digits("", texts.dictionary, texts) is None else "local"


def split_words(name: str) -> list[str]:
    """Return the words in the name of a column: ``DateTime`` and ``date_time`` have two."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return [word for word in re.split(r"[^a-z0-9]+", parted.lower()) if word]


def parse_times(what: str, cells: NDArray[Any] | pa.Array) -> Times:
    """Return times in seconds from dates, texts, or numbers; NaT where a cell is empty.

    Numbers are seconds from 1970 or fractions of them, spreadsheet days, or the digits of a date. Raises DataError for
    other cells; ``what`` names the column.
    """
    column = cells if isinstance(cells, pa.Array) else pa.array(cells)
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False)).astype("datetime64[s]")
    coded = column.dictionary_encode()
    texts = coded.dictionary
    if pa.types.is_floating(texts.type) and pc.all(pc.equal(texts, pc.floor(texts))).as_py():
        texts = texts.cast(pa.int64())
    texts = texts.cast(pa.string())
    numbers = to_floats(texts)
    found = _parse_texts(what, texts, coded) if numbers is None else _parse_numbers(what, texts, numbers, coded)
    places = pc.fill_null(coded.indices, len(found)).to_numpy(zero_copy_only=False)
    return np.append(found, np.datetime64("NaT", "s"))[places]


def _row(coded: pa.DictionaryArray, place: int) -> int:
    return int(pc.index(coded.indices, place).as_py()) + 1


def _parse_numbers(what: str, texts: pa.Array, numbers: NDArray[np.float64], coded: pa.DictionaryArray) -> Times:
    as_digits = _parse_digits(what, texts, coded)
    if as_digits is not None:
        return as_digits
    if len(wrong := np.flatnonzero(~(np.abs(numbers) < _LAST_TIME))):
        shown = f"'{texts[int(wrong[0])]}' in row {_row(coded, int(wrong[0]))}"
        raise DataError(f"{what} holds {shown}, which is no time; {_TELL}", quoted=shown)
    if not len(numbers) or numbers.min() >= _FIRST_UNIX_TIME:
        unit = next(unit for limit, unit in _UNITS if np.abs(numbers).max(initial=0) < limit)
        whole = np.array([int(text) if re.fullmatch(r"\d+", text) else int(float(text)) for text in texts.to_pylist()])
        return whole.astype(np.int64).astype(f"datetime64[{unit}]").astype("datetime64[s]")
    if numbers.min() >= _FIRST_DAY and numbers.max() < _LAST_DAY:
        return _ZERO_DAY + np.rint(numbers * 86_400).astype(np.int64) * _SECOND
    raise DataError(f"{what} holds numbers that are too small for seconds from 1970: write times as text")


def _parse_digits(what: str, texts: pa.Array, coded: pa.DictionaryArray) -> Times | None:
    """Parse numbers whose digits are dates; None if they are not. Raises DataError if most, but not all, are dates."""
    cells = texts.to_pylist()
    lengths = {len(cell) for cell in cells if cell.isdigit()}
    if len(lengths) != 1 or not lengths <= _DIGITS.keys() or not all(cell.isdigit() for cell in cells):
        return None
    form = _DIGITS[lengths.pop()]
    found = np.array([_parsed(cell, form) for cell in cells], dtype="datetime64[s]")
    wrong = np.flatnonzero(np.isnat(found))
    if not len(wrong):
        return found
    if 2 * len(wrong) >= len(cells):
        return None
    row = _row(coded, int(wrong[0]))
    raise DataError(
        f"{what} holds '{cells[wrong[0]]}' in row {row}, and most other cells are times as digits "
        f"({form.replace('%', '')}): write 2012-03-01 00:05",
        quoted=f"'{cells[wrong[0]]}'",
    )


def _parsed(cell: str, form: str) -> np.datetime64:
    """Parse digits as a time, NaT if invalid. Hour 24 is the next day's midnight."""
    fields = re.fullmatch(r"(\d{4})(\d\d)?(\d\d)?(\d\d)?(\d\d)?(\d\d)?", cell)
    assert fields is not None, form
    year, month, day, hour, minute, second = (
        int(field or least) for field, least in zip(fields.groups(), "011000", strict=True)
    )
    if not _FIRST_YEAR <= year <= _LAST_YEAR or hour > 24 or minute > 59 or second > 59:
        return np.datetime64("NaT", "s")
    try:
        start = np.datetime64(f"{year:04d}-{month:02d}-{day:02d}", "s")
    except ValueError:
        return np.datetime64("NaT", "s")
    return start + np.int64(hour * 3600 + minute * 60 + second) * _SECOND


def _parse_texts(what: str, column: pa.Array, coded: pa.DictionaryArray) -> Times:
    # The start of intervals such as 2012-03-01 00:00 - 2012-03-01 01:00.
    texts = [text.strip().split(" - ")[0] for text in column.to_pylist()]
    zoned = [re.match(_ZONE, text) is not None for text in texts if text]
    if any(zoned) and not all(zoned):
        raise DataError(f"{what} has times with a zone and without: write all of them in UTC, or all in local time")
    texts = [_first_day(text) if re.match(_PERIOD, text) else text for text in texts]
    late = np.array([re.match(_MIDNIGHT, text) is not None for text in texts])
    texts = [re.sub(_MIDNIGHT, r"\g<1>00:00", text) if end else text for text, end in zip(texts, late, strict=True)]
    found = next((times for form in _FORMS if (times := _parsed_as(texts, form)) is not None), None)
    if found is None:
        found = np.empty(len(texts), dtype="datetime64[s]")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zones are converted to UTC, as intended
            for place, text in enumerate(texts):
                try:
                    found[place] = np.datetime64(text or "NaT", "s")
                except ValueError:
                    raise DataError(
                        f"{what} holds neither numbers nor times: row {_row(coded, place)} has '{text}'; {_TELL}",
                        quoted=f"'{text}'",
                    ) from None
    found[late] += _DAY
    return found


def _parsed_as(texts: Sequence[str], form: str) -> Times | None:
    """Parse times of one form, NaT where a text is empty; None if another text is not of it."""
    for part in ([next(filter(None, texts), "")], texts):  # the first one decides most forms
        parsed = pc.strptime(pa.array(part, pa.string()), format=form, unit="s", error_is_null=True)
        times = parsed.to_numpy(zero_copy_only=False).astype("datetime64[s]")
        if parsed.null_count > part.count("") or (times < _YEAR_OF_FOUR).any():
            return None
    return times


def _first_day(text: str) -> str:
    """Return the first day of a period such as 2012M03, 2012-Q1 or 2012-W09; the text itself if there is none."""
    year, kind, number = re.findall(_PERIOD, text)[0]
    try:
        if kind == "W":
            return date.fromisocalendar(int(year), int(number), 1).isoformat()
        return date(int(year), int(number) if kind == "M" else 3 * int(number) - 2, 1).isoformat()
    except ValueError:
        return text


# ---- columns of times ------------------------------------------------------------------------------------------------


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
    return bool(numbers.min() >= _FIRST_UNIX_TIME) or is_long or _parses(name, present)


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
    return tuple(found) if np.nanmin(years) >= _FIRST_YEAR and np.nanmax(years) <= _LAST_YEAR else ()


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
