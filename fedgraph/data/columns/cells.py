"""The meaning of the cells of a column: which are missing, and which number a text is, whatever the country's way of
writing numbers.

A text such as ``1.234`` is a number of one unit or of a thousand. Where a column, or the file around it, shows that it
may be the second, the column is in doubt, and reading its numbers raises an error that says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BeforeValidator

from fedgraph.support.errors import DataError
from fedgraph.support.files import DECIMAL_COMMA

MISSING = ("", "?", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "-NaN", "-nan", "NULL", "null")
"""Texts that mark a missing value unless the settings name others: the empty cell, ``?``, and most of pandas' list."""

Mark = Annotated[str, BeforeValidator(lambda given: repr(given) if isinstance(given, int | float) else given)]
"""What marks a missing value: a text, or a number, which matches however it is written in the file."""

Thousands = Literal["", ".", ",", " ", "'"]
"""What separates thousands in the numbers of a file; the empty text: nothing does."""

_WHOLE = r"[+-]?\d+"
_POINT = r"[+-]?(?:\d+\.\d*|\.\d+|\d+(?:\.\d*)?[eE][+-]?\d+|\.\d+[eE][+-]?\d+)"
_COMMA = DECIMAL_COMMA
_SPACES, _QUOTES = "[ \u00a0\u202f\u2009]", "['\u2019]"
_GROUPS = {
    ".": r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?",
    ",": r"[+-]?[1-9]\d{0,2}(?:,\d{2,3})*,\d{3}(?:\.\d+)?",
    " ": rf"[+-]?[1-9]\d{{0,2}}(?:{_SPACES}\d{{3}})+(?:[.,]\d+)?",
    "'": rf"[+-]?[1-9]\d{{0,2}}(?:{_QUOTES}\d{{3}})+(?:[.,]\d+)?",
}
_ONE_GROUP = {".": r"[+-]?[1-9]\d{0,2}\.\d{3}", ",": r"[+-]?[1-9]\d{0,2},\d{3}"}
"""A number with a point, or a comma, that may stand for thousands as well as for decimals."""

_SURE_GROUPS = f"(?:{'|'.join(_GROUPS.values())})"
_FEW, _MANY = 100, 1000


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column is of texts."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_numeric(kind: pa.DataType) -> bool:
    """Return whether a column is of numbers."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def floats_of(column: pa.Array) -> NDArray[np.float64] | None:
    """Return a column as float64, NaN where missing; None if it has anything but numbers. Not truth values."""
    if pa.types.is_boolean(column.type) or pa.types.is_temporal(column.type):
        return None
    try:
        if is_text(column.type):
            # An unsuccessful cast of a million words takes long; the first hundred nearly always tell.
            pc.cast(column[:_FEW], pa.float64())
        values: NDArray[np.float64] = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return values


def is_number(text: str) -> bool:
    """Return whether a text is a finite number with a decimal point, if any; ``float`` also accepts ``1_000``."""
    try:
        return "_" not in text and text.isascii() and bool(np.isfinite(float(text)))
    except ValueError:
        return False


def without(column: pa.Array, marks: Sequence[str]) -> pa.Array:
    """Return a column with null where a cell is one of the marks; those that are numbers match as numbers.

    In a column with words, a code such as ``099`` is no number: it is missing only where it is written like this.
    """
    numbers = np.array([float(mark) for mark in marks if is_number(mark)])
    text = is_text(column.type)
    if text:
        column = _nulled(column, pc.is_in(column, value_set=pa.array(marks, pa.string())))
    if not len(numbers) or not (text or is_numeric(column.type)):
        return column
    values = floats_of(column)
    if values is not None:
        if pa.types.is_float32(column.type):
            values, numbers = values.astype(np.float32), numbers.astype(np.float32)
        hit = np.isin(values, numbers)
        return _nulled(column, pa.array(hit)) if hit.any() else column
    coded = column.dictionary_encode()
    known = [text is not None and _is_one_of(text, numbers) for text in coded.dictionary.to_pylist()]
    if not any(known):
        return column
    return _nulled(column, pa.array(known).take(coded.indices))


def _is_one_of(text: str, numbers: NDArray[np.float64]) -> bool:
    return is_number(text) and not re.match(r"[+-]?0\d", text) and float(text) in numbers


def _nulled(column: pa.Array, where: pa.Array) -> pa.Array:
    return pc.if_else(pc.fill_null(where, False), pa.scalar(None, column.type), column)


# ---- numbers as people write them ------------------------------------------------------------------------------------


class Written:
    """How the numbers of a column of texts are written.

    Attributes
    ----------
    points, commas : a cell with a decimal point, and one with a decimal comma; empty if there is none.
    either : a cell with one point, or one comma, that may separate thousands; by that mark.
    groups : a cell whose marks can only separate thousands.
    whole : a whole number without any mark, of the largest.
    """

    def __init__(self, texts: pa.Array, comma_separates: bool) -> None:
        self._texts = texts
        self.points = self._first(_POINT, _ONE_GROUP["."])
        self.commas = self._first(_COMMA, _ONE_GROUP[","])
        self.either = {mark: found for mark, form in _ONE_GROUP.items() if (found := self._first(form))}
        self.groups = self._first(_SURE_GROUPS, *_ONE_GROUP.values())
        whole = texts.filter(pc.match_substring_regex(texts, f"^{_WHOLE}$"))
        sizes = np.abs(pc.cast(whole, pa.float64()).to_numpy(zero_copy_only=False))
        # Where commas separate cells, numbers are mostly English: a few small whole ones prove nothing.
        few = comma_separates and (len(np.unique(sizes)) < 2 or not (sizes >= 100).any())
        self.whole = "" if few or not sizes.any() else whole[int(sizes.argmax())].as_py()

    def _first(self, form: str, *but: str) -> str:
        matches = pc.match_substring_regex(self._texts, f"^{form}$")
        for other in but:
            matches = pc.and_(matches, pc.invert(pc.match_substring_regex(self._texts, f"^{other}$")))
        place = pc.index(matches, True).as_py()
        return "" if place < 0 else self._texts[place].as_py()

    def thousands(self) -> tuple[str, str] | None:
        """Return a cell with a mark that may separate thousands, and one that suggests it; None if there is none."""
        if self.groups:
            return self.groups, self.whole or self.points or self.commas
        if "." in self.either and not self.points and (self.commas or self.whole):
            return self.either["."], self.commas or self.whole
        if "," in self.either and not self.commas and (self.points or self.whole):
            return self.either[","], self.points or self.whole
        if len(self.either) == 2:
            return self.either["."], self.either[","]
        return None


def read_numbers_as_written(
    columns: Mapping[str, pa.Array], where: str, separator: str, thousands: Thousands | None
) -> tuple[dict[str, pa.Array], dict[str, DataError]]:
    """Return columns in which numbers have a decimal point and nothing else, and the doubts about those that may not.

    A column is of numbers if more than half of its cells are.

    Parameters
    ----------
    columns : by name; those that are no texts stay as they are.
    where : names the file in errors.
    separator : of the file's cells. Beside other separators than a comma, numbers may have decimal commas.
    thousands : what separates thousands; None if the settings do not say.

    Returns
    -------
    dict of str to pyarrow.Array
        The columns.
    dict of str to DataError
        By column, the error that reading its numbers raises.
    """
    found = {name: _written(column, separator == ",", thousands) for name, column in columns.items()}
    styles = {name: how for name, how in found.items() if how is not None}
    has_commas = any(how.commas for how in styles.values())
    proofs = {} if thousands == "" else {name: pair for name, how in styles.items() if (pair := how.thousands())}
    proof = next(iter(proofs.values()), None)
    read, doubts = dict(columns), {}
    for name, how in styles.items():
        what, pair = f"column '{name}' of {where}", proofs.get(name)
        alike = "." in how.either and not how.points and not how.commas and thousands is None
        if pair is None and alike and (has_commas or (proof is not None and "." in proof[0])):
            other = next(each.commas for each in styles.values() if each.commas) if has_commas else proof[0]  # type: ignore[index]
            pair = how.either["."], other
        if pair is None and separator == "," and "," in how.either and not how.commas and thousands is None:
            pair = how.either[","], ""
        if thousands:
            read[name] = _without_thousands(columns[name], thousands)
        elif pair is not None:
            doubts[name] = _doubt(what, columns[name], *pair)
        elif how.points and how.commas:
            doubts[name] = _two_ways(what, columns[name], how)
        elif (how.commas or "," in how.either) and separator == ",":
            cell = how.commas or how.either[","]
            doubts[name] = DataError(
                f"{what} holds '{cell}' in row {_row(columns[name], cell)}: decimals have a point, unless semicolons "
                "or tabs separate the columns",
                quoted=f"'{cell}'",
            )
        elif how.commas or "," in how.either:
            read[name] = _with_points(columns[name])
    return read, doubts


def _written(column: pa.Array, comma_separates: bool, thousands: Thousands | None) -> Written | None:
    """Return how the numbers of a column are written; None for a column without marks, or of no numbers."""
    if not is_text(column.type) or column.null_count == len(column):
        return None
    there = column.drop_null()
    plain = floats_of(there) is not None
    if plain and (thousands or not _may_be_thousands(there)):
        return None if not thousands else Written(pc.unique(there), comma_separates)
    texts = pc.unique(there)
    forms = f"^(?:{_WHOLE}|{_POINT}|{_COMMA}|{_SURE_GROUPS})$"
    if not plain:
        share = pc.mean(pc.cast(pc.match_substring_regex(there, forms), pa.float64())).as_py()
        if share <= 0.5:
            return None
    return Written(texts, comma_separates)


def _may_be_thousands(numbers: pa.Array) -> bool:
    """Return whether all numbers with a point have exactly three decimals; the first ones tell for nearly all."""
    for part in (numbers[:_MANY], numbers):
        points = part.filter(pc.match_substring(part, "."))
        if len(points) and not pc.all(pc.match_substring_regex(points, f"^{_ONE_GROUP['.']}$")).as_py():
            return False
    return bool(len(points))


def _without_thousands(column: pa.Array, mark: Thousands) -> pa.Array:
    grouped = pc.match_substring_regex(column, f"^{_GROUPS[mark]}$")
    marks = {" ": _SPACES, "'": _QUOTES}.get(mark, f"[{mark}]")
    column = pc.if_else(grouped, pc.replace_substring_regex(column, marks, ""), column)
    return column if mark == "," else _with_points(column)


def _with_points(column: pa.Array) -> pa.Array:
    commas = pc.match_substring_regex(column, f"^{_COMMA}$")
    return pc.if_else(commas, pc.replace_substring(column, ",", "."), column)


def _doubt(what: str, column: pa.Array, cell: str, other: str) -> DataError:
    mark = next(mark for mark, form in _GROUPS.items() if re.fullmatch(form, cell))
    row = _row(column, other)
    second = f" and '{other}' {f'in row {row}' if row else 'in another column'}" if other else ""
    held = f"'{cell}' in row {_row(column, cell)}{second}"
    return DataError(
        f"{what} holds {held}: write numbers without thousands separators, or say what separates thousands, [data] "
        f'thousands = "{mark}", or "" if nothing does',
        quoted=held,
    )


def _two_ways(what: str, column: pa.Array, how: Written) -> DataError:
    return DataError(
        f"{what} holds '{how.points}' in row {_row(column, how.points)}, and other cells have decimal commas: write "
        "all numbers in one way",
        quoted=f"'{how.points}'",
    )


def _row(column: pa.Array, cell: str) -> int:
    """Return the first row with a cell, counted from 1; 0 if there is none."""
    place: int = pc.index(column, cell).as_py()
    return place + 1
