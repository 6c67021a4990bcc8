"""A column of a table as codes into its different values, which are far fewer than its rows as a rule."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedgraph.data.columns.files import Table
from fedgraph.support.errors import DataError

Floats = NDArray[np.float64]

_WHOLE = r"^([+-]?\d+)\.0*$"


def as_category(value: str | float) -> str:
    """A value as the text of a category: trimmed, and 2 for 2.0, as one file may write the one and one the other."""
    return re.sub(_WHOLE, r"\1", str(value).strip())


@dataclass(frozen=True)
class Column:
    """Values of a column.

    codes : int64 ``[rows]``, positions in ``texts``, -1 where missing.
    texts : the different values as text, each at least once in the column.
    """

    name: str
    where: str
    codes: NDArray[np.int64]
    texts: pa.Array

    @cached_property
    def numbers(self) -> Floats | None:
        """``texts`` as numbers; None when one of them is no number."""
        try:
            return np.asarray(pc.cast(self.texts, pa.float64()).to_numpy(zero_copy_only=False))
        except pa.ArrowInvalid:
            return None

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Rows that hold each of ``texts``."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.texts))

    def categories(self, least_rows: int = 1) -> tuple[str, ...]:
        """The values that so many rows hold, in the order of ``in_order``."""
        return in_order(self.texts.filter(pa.array(self.counts >= least_rows)).to_pylist())

    def as_numbers(self) -> Floats:
        """The column itself as numbers, ``[rows]``, NaN where missing. Raises DataError when one is no number."""
        if self.numbers is None:
            words = some([text for text in self.texts.to_pylist() if not is_number(text)])
            raise DataError(
                f"column '{self.name}' of {self.where} is to be numbers, but holds {words}: name what means "
                f"missing under missing-codes, or make it categorical under kinds",
                quoted=words,
            )
        return np.append(self.numbers, np.nan)[self.codes]

    def as_codes(self, categories: Sequence[str], unknown_is_missing: bool = False, least_rows: int = 1) -> Floats:
        """The column itself as positions in ``categories``, ``[rows]``, NaN where missing.

        least_rows : a value of fewer rows that is none of the categories is missing too.

        Raises DataError for another value that is none of them, unless ``unknown_is_missing``.
        """
        places = pc.index_in(self.texts, value_set=pa.array(categories, pa.string()))
        unknown = pc.is_null(places).to_numpy(zero_copy_only=False) & (self.counts >= least_rows)
        if unknown.any() and not unknown_is_missing:
            words = some(self.texts.filter(pa.array(unknown)).to_pylist())
            raise DataError(
                f"column '{self.name}' of {self.where} holds {words}, which is none of its categories: list all "
                f'of them under kinds, name what means missing under missing-codes, or set unknown = "missing"',
                quoted=words,
            )
        found = pc.cast(places, pa.float64()).to_numpy(zero_copy_only=False)
        return np.append(found, np.nan)[self.codes]


def read_column(table: Table, name: str, missing_codes: Sequence[str | float] = ()) -> Column:
    """A column of a table. Numbers that are not finite are missing, and so is what ``missing_codes`` lists.

    A number listed there stands for itself however it is written, a text only as it is written.

    Raises
    ------
    DataError
        When there is no such column, naming those there are, or it holds lists or the like.
    """
    column = table.column(name)
    try:
        coded = (pc.cast(column, pa.string()) if pa.types.is_null(column.type) else column).dictionary_encode()
        texts = pc.cast(coded.dictionary, pa.string())
    except pa.ArrowNotImplementedError:
        raise DataError(f"column '{name}' of {table.where} is of type {column.type}: use numbers or text") from None
    # 2 and 2.0 were two values and are one now.
    again = pc.replace_substring_regex(texts, _WHOLE, r"\1").dictionary_encode()
    marks = pa.array([as_category(code) for code in missing_codes], pa.string())
    kept = pc.invert(pc.is_in(again.dictionary, value_set=marks)).to_numpy(zero_copy_only=False)
    numbers = Column(name, table.where, np.zeros(0, np.int64), again.dictionary.filter(pa.array(kept))).numbers
    if numbers is not None:
        kept[kept] = ~_is_missing(numbers, missing_codes)
    renumbered = np.where(kept, np.cumsum(kept) - 1, -1)
    places = renumbered[again.indices.to_numpy(zero_copy_only=False)]
    rows = pc.fill_null(coded.indices, len(places)).to_numpy(zero_copy_only=False)
    return Column(name, table.where, np.append(places, -1)[rows], again.dictionary.filter(pa.array(kept)))


def read_numbers(table: Table, name: str, missing_codes: Sequence[str | float] = ()) -> Floats | None:
    """The same as ``read_column(...).as_numbers()``, but None where that is an error; faster for many values."""
    if not any(isinstance(code, str) for code in missing_codes):
        # It takes long to find that 100,000 words are no numbers; a hundred nearly always tell.
        few = Table({name: table.column(name).slice(0, 100)}, table.where)
        numbers = None if few.numbers(name) is None else table.numbers(name)
        return None if numbers is None else np.where(_is_missing(numbers, missing_codes), np.nan, numbers)
    column = read_column(table, name, missing_codes)
    return None if column.numbers is None else column.as_numbers()


def _is_missing(numbers: Floats, missing_codes: Sequence[str | float]) -> NDArray[np.bool_]:
    codes = [code for code in missing_codes if not isinstance(code, str)]
    return ~np.isfinite(numbers) | np.isin(numbers, codes)


def in_order(categories: Sequence[str]) -> tuple[str, ...]:
    """Sorted: as numbers where all of them are numbers, so that 10 comes after 9."""
    numbers = all(is_number(text) for text in categories)
    return tuple(sorted(categories, key=lambda text: (float(text), text) if numbers else (0.0, text)))


def is_number(text: str) -> bool:
    """Whether a category is a finite number, as in a file: Python alone reads 1_000 as one."""
    try:
        return "_" not in text and text.isascii() and bool(np.isfinite(float(text)))
    except ValueError:
        return False


def some(words: Sequence[str], shown: int = 5) -> str:
    """The first of them, as they are quoted in messages."""
    more = f" and {len(words) - shown:,} more" if len(words) > shown else ""
    return ", ".join(map(repr, words[:shown])) + more
