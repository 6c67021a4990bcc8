"""Parses times in cells: texts, numbers, digits, spreadsheet days."""

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

from fedgraph.data.columns.cells import to_floats
from fedgraph.support.errors import DataError

Times = NDArray[np.datetime64]
Clock = Literal["", "UTC", "local"]

FIRST_UNIX_TIME = 1e8
"""Smallest number, in 1973, that may be seconds (or fractions of them) from 1 January 1970."""

_LAST_TIME = 2.0**63
"""Numbers from here on are not of 64 bits, and mean no time."""

_UNITS = ((1e11, "s"), (1e14, "ms"), (1e17, "us"), (np.inf, "ns"))
_FIRST_DAY, _LAST_DAY = 20_000, 80_000
"""Spreadsheet days, counted from the end of 1899: from 1954 to 2119."""

_ZERO_DAY = np.datetime64("1899-12-30T00:00:00")
_DIGITS = {4: "%Y", 6: "%Y%m", 8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
"""Times as digits, by their number."""

FIRST_YEAR, LAST_YEAR = 1900, 2100
_DAYS = ("%d.%m.%Y", "%Y/%m/%d", "%d %b %Y", "%d-%b-%Y", "%d.%m.%y", "%d %b %y", "%d-%b-%y")
_FORMS = (*(day + clock for day in _DAYS for clock in (" %H:%M:%S", " %H:%M", "")), "%Y%m%dT%H%M%S", "%Y%m%dT%H%M")
"""Times other than 2012-03-01 00:05 of which it is clear what is the day, and what the month."""

_YEAR_OF_FOUR = np.datetime64("1000-01-01T00:00:00")
"""Earlier years are those of two digits, read as if they had four."""

_PERIOD = r"^(\d{4})-?([MQW])(\d\d?)$"
"""A month, quarter or week of a year."""

_ZONE = r".*:.*(Z|[+-]\d\d:?\d\d)$"
_MIDNIGHT = r"^(.*[T ])24:00(:00(?:\.0*)?)?$"
_SECOND, _DAY = np.timedelta64(1, "s"), np.timedelta64(1, "D")

_TELL = "write times as 2012-03-01 00:05, or as seconds from 1970"


def parse_times(what: str, cells: NDArray[Any] | pa.Array) -> Times:
    """Return times in seconds from dates, texts, or numbers; NaT where a cell is empty.

    Numbers are seconds from 1970 or fractions of them, spreadsheet days, or the digits of a date. Raises DataError for
    other cells; ``what`` names the column.
    """
    column = cells if isinstance(cells, pa.Array) else pa.array(cells)
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False)).astype("datetime64[s]")
    coded = column.dictionary_encode()
    texts = _as_texts(coded.dictionary)
    numbers = to_floats(texts)
    found = _parse_texts(what, texts, coded) if numbers is None else _parse_numbers(what, texts, numbers, coded)
    places = pc.fill_null(coded.indices, len(found)).to_numpy(zero_copy_only=False)
    return np.append(found, np.datetime64("NaT", "s"))[places]


def clock_of(column: pa.Array) -> Clock:
    """Return what times are in: UTC where they have a zone or count from 1970, else local time."""
    if pa.types.is_timestamp(column.type):
        return "UTC" if column.type.tz else "local"
    if pa.types.is_date(column.type):
        return "local"
    texts = _as_texts(pc.unique(column.drop_null()))
    numbers = to_floats(texts)
    if numbers is None:
        zoned = pc.match_substring_regex(pc.utf8_trim_whitespace(texts), f"^{_ZONE}")
        return "UTC" if pc.any(zoned).as_py() else "local"
    counts = bool(len(numbers)) and numbers.min() >= FIRST_UNIX_TIME
    return "UTC" if counts and _parse_digits("", texts, texts.dictionary_encode()) is None else "local"


def _as_texts(cells: pa.Array) -> pa.Array:
    """Return cells as texts, whole numbers without a fraction."""
    if pa.types.is_floating(cells.type) and pc.all(pc.equal(cells, pc.floor(cells))).as_py():
        cells = cells.cast(pa.int64())
    return cells.cast(pa.string())


def _row(coded: pa.DictionaryArray, place: int) -> int:
    return int(pc.index(coded.indices, place).as_py()) + 1


def _parse_numbers(what: str, texts: pa.Array, numbers: NDArray[np.float64], coded: pa.DictionaryArray) -> Times:
    as_digits = _parse_digits(what, texts, coded)
    if as_digits is not None:
        return as_digits
    if len(wrong := np.flatnonzero(~(np.abs(numbers) < _LAST_TIME))):
        shown = f"'{texts[int(wrong[0])]}' in row {_row(coded, int(wrong[0]))}"
        raise DataError(f"{what} holds {shown}, which is no time; {_TELL}", quoted=shown)
    if not len(numbers) or numbers.min() >= FIRST_UNIX_TIME:
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
    if not FIRST_YEAR <= year <= LAST_YEAR or hour > 24 or minute > 59 or second > 59:
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
