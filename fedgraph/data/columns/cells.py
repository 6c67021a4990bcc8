"""Missing values and number formats (decimal commas, thousands separators) in columns of text.

``1.234`` may be a decimal or 1234. If other cells of the column or of the file suggest the latter, the column is
ambiguous, and reading its numbers raises an error.
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

from fedgraph.support.csv_text import DECIMAL_COMMA
from fedgraph.support.errors import DataError

EMPTY = ("",)
"""What marks a missing value in any case: the empty cell."""

MISSING = (*EMPTY, "?", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "-NaN", "-nan", "NULL", "null")
"""Texts that mark a missing value by default: the empty cell, ``?``, and most of pandas' list."""

Mark = Annotated[str, BeforeValidator(lambda given: repr(given) if isinstance(given, int | float) else given)]
"""Marks a missing value: a text, or a number, which matches in any notation."""

Thousands = Literal["", ".", ",", " ", "'"]
"""Separates thousands in the numbers of a file; empty for none."""

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
"""A number whose single point or comma may separate thousands or decimals."""

_SURE_GROUPS = f"(?:{'|'.join(_GROUPS.values())})"
_FEW, _MANY = 100, 1000


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column holds text."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_numeric(kind: pa.DataType) -> bool:
    """Return whether a column holds numbers."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def to_floats(column: pa.Array) -> NDArray[np.float64] | None:
    """Return a column as float64, NaN where missing; None for booleans, dates, and texts that are not all numbers."""
    if pa.types.is_boolean(column.type) or pa.types.is_temporal(column.type):
        return None
    try:
        if is_text(column.type):
            # A failing cast of a million words is slow; the first hundred nearly always suffice.
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


def mask_missing(column: pa.Array, marks: Sequence[str]) -> pa.Array:
    """Replace cells equal to one of the marks by null; numeric marks match by value.

    In a column with words, a code such as ``099`` is not a number and matches as text only.
    """
    numbers = np.array([float(mark) for mark in marks if is_number(mark)])
    text = is_text(column.type)
    if text:
        column = _nulled(column, pc.is_in(column, value_set=pa.array(marks, pa.string())))
    if not len(numbers) or not (text or is_numeric(column.type)):
        return column
    values = to_floats(column)
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


class NumberFormat:
    """The number format of a text column.

    Attributes
    ----------
    points, commas : example cells with a decimal point and a decimal comma; empty if there is none.
    either : by mark, a cell whose single point or comma may separate thousands.
    groups : a cell whose marks can only separate thousands.
    whole : the largest whole number without any mark.
    """

    def __init__(self, texts: pa.Array, comma_separates: bool) -> None:
        self._texts = texts
        self.points = self._first(_POINT, _ONE_GROUP["."])
        self.commas = self._first(_COMMA, _ONE_GROUP[","])
        self.either = {mark: found for mark, form in _ONE_GROUP.items() if (found := self._first(form))}
        self.groups = self._first(_SURE_GROUPS, *_ONE_GROUP.values())
        whole = texts.filter(pc.match_substring_regex(texts, f"^{_WHOLE}$"))
        sizes = np.abs(pc.cast(whole, pa.float64()).to_numpy(zero_copy_only=False))
        # Comma-separated files mostly use decimal points: a few small whole numbers prove nothing.
        few = comma_separates and (len(np.unique(sizes)) < 2 or not (sizes >= 100).any())
        self.whole = "" if few or not sizes.any() else whole[int(sizes.argmax())].as_py()

    def _first(self, form: str, *but: str) -> str:
        matches = pc.match_substring_regex(self._texts, f"^{form}$")
        for other in but:
            matches = pc.and_(matches, pc.invert(pc.match_substring_regex(self._texts, f"^{other}$")))
        place = pc.index(matches, True).as_py()
        return "" if place < 0 else self._texts[place].as_py()

    def thousands(self) -> tuple[str, str] | None:
        """Return a cell whose mark may separate thousands, and a cell that suggests it; None if there is none."""
        if self.groups:
            return self.groups, self.whole or self.points or self.commas
        if "." in self.either and not self.points and (self.commas or self.whole):
            return self.either["."], self.commas or self.whole
        if "," in self.either and not self.commas and (self.points or self.whole):
            return self.either[","], self.points or self.whole
        if len(self.either) == 2:
            return self.either["."], self.either[","]
        return None


def normalise_numbers(
    columns: Mapping[str, pa.Array], where: str, separator: str, thousands: Thousands | None
) -> tuple[dict[str, pa.Array], dict[str, DataError]]:
    """Rewrite numbers with a plain decimal point. Returns the columns, and by column an error if it is ambiguous.

    A text column counts as numeric if more than half of its cells are numbers; other columns are returned unchanged.

    Parameters
    ----------
    where : names the file in errors.
    separator : of the file's cells. Unless it is a comma, numbers may have decimal commas.
    thousands : the thousands separator; None if the settings give none.

    Returns
    -------
    dict of str to pyarrow.Array
        The columns.
    dict of str to DataError
        By column, the error that reading its numbers raises.
    """
    found = {name: _number_format(column, separator == ",", thousands) for name, column in columns.items()}
    styles = {name: style for name, style in found.items() if style is not None}
    has_commas = any(style.commas for style in styles.values())
    proofs = {} if thousands == "" else {name: pair for name, style in styles.items() if (pair := style.thousands())}
    proof = next(iter(proofs.values()), None)
    read, doubts = dict(columns), {}
    for name, style in styles.items():
        what, pair = f"column '{name}' of {where}", proofs.get(name)
        alike = "." in style.either and not style.points and not style.commas and thousands is None
        if pair is None and alike and (has_commas or (proof is not None and "." in proof[0])):
            other = next(each.commas for each in styles.values() if each.commas) if has_commas else proof[0]  # type: ignore[index]
            pair = style.either["."], other
        if pair is None and separator == "," and "," in style.either and not style.commas and thousands is None:
            pair = style.either[","], ""
        if thousands:
            read[name] = _without_thousands(columns[name], thousands)
        elif pair is not None:
            doubts[name] = _ambiguous_thousands(what, columns[name], *pair)
        elif style.points and style.commas:
            doubts[name] = _mixed_decimals(what, columns[name], style)
        elif (style.commas or "," in style.either) and separator == ",":
            cell = style.commas or style.either[","]
            doubts[name] = DataError(
                f"{what} holds '{cell}' in row {_row(columns[name], cell)}: decimals have a point, unless semicolons "
                "or tabs separate the columns",
                quoted=f"'{cell}'",
            )
        elif style.commas or "," in style.either:
            read[name] = _with_points(columns[name])
    return read, doubts


def _number_format(column: pa.Array, comma_separates: bool, thousands: Thousands | None) -> NumberFormat | None:
    """Return the number format of a column; None for a column without marks or numbers."""
    if not is_text(column.type) or column.null_count == len(column):
        return None
    present = column.drop_null()
    plain = to_floats(present) is not None
    if plain and (thousands or not _may_be_thousands(present)):
        return None if not thousands else NumberFormat(pc.unique(present), comma_separates)
    texts = pc.unique(present)
    forms = f"^(?:{_WHOLE}|{_POINT}|{_COMMA}|{_SURE_GROUPS})$"
    if not plain:
        share = pc.mean(pc.cast(pc.match_substring_regex(present, forms), pa.float64())).as_py()
        if share <= 0.5:
            return None
    return NumberFormat(texts, comma_separates)


def _may_be_thousands(numbers: pa.Array) -> bool:
    """Return whether all numbers with a point have exactly three decimals; the first thousand usually decide."""
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


def _ambiguous_thousands(what: str, column: pa.Array, cell: str, other: str) -> DataError:
    mark = next(mark for mark, form in _GROUPS.items() if re.fullmatch(form, cell))
    row = _row(column, other)
    second = f" and '{other}' {f'in row {row}' if row else 'in another column'}" if other else ""
    held = f"'{cell}' in row {_row(column, cell)}{second}"
    return DataError(
        f"{what} holds {held}: write numbers without thousands separators, or say what separates thousands, [data] "
        f'thousands = "{mark}", or "" if nothing does',
        quoted=held,
    )


def _mixed_decimals(what: str, column: pa.Array, style: NumberFormat) -> DataError:
    return DataError(
        f"{what} holds '{style.points}' in row {_row(column, style.points)}, and other cells have decimal commas: "
        "write all numbers in one way",
        quoted=f"'{style.points}'",
    )


def _row(column: pa.Array, cell: str) -> int:
    """Return the first row with a cell, counted from 1; 0 if there is none."""
    place: int = pc.index(column, cell).as_py()
    return place + 1
