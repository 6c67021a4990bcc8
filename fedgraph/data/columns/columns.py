"""A column of a table as codes of its distinct values, which are usually far fewer than its rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedgraph.data.columns.cells import is_number
from fedgraph.data.columns.table import Table, infinite_error
from fedgraph.support.errors import DataError, similar

Floats = NDArray[np.float64]

_MOST_WORDS, _MOST_CODES = 5, 10

_WHOLE = r"^([+-]?\d+)\.0*$"


def as_category(value: str | float) -> str:
    """Return a value as the text of a category.

    Trimmed, with ``2`` for ``2.0``, as files differ in how they write whole numbers.
    """
    return re.sub(_WHOLE, r"\1", str(value).strip())


@dataclass(frozen=True)
class Column:
    """The values of a column.

    Attributes
    ----------
    name, where : of the column, and of its table in messages.
    codes : ``[rows]``, positions in ``texts``, -1 where missing.
    texts : the distinct values as text, each at least once in the column.
    numbered : as of its :class:`Table`.
    """

    name: str
    where: str
    codes: NDArray[np.int64]
    texts: pa.Array
    numbered: NDArray[np.int64] | None = None

    @cached_property
    def numbers(self) -> Floats | None:
        """``texts`` as numbers; None if one of them is not a number."""
        try:
            return np.asarray(pc.cast(self.texts, pa.float64()).to_numpy(zero_copy_only=False))
        except pa.ArrowInvalid:
            return None

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of rows with each of ``texts``."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.texts))

    def categories(self, least_rows: int = 1) -> tuple[str, ...]:
        """Return the values in at least ``least_rows`` rows, in the order of :func:`sort_categories`."""
        return sort_categories(self.texts.filter(pa.array(self.counts >= least_rows)).to_pylist())

    def row_of(self, texts: Sequence[str]) -> int:
        """Return the first row, counted from 1 in the file, that holds one of ``texts``."""
        wanted = pc.is_in(self.texts, value_set=pa.array(texts, pa.string())).to_numpy(zero_copy_only=False)
        rows = np.append(wanted, False)[self.codes].nonzero()[0]
        # Parts of a file may reorder its rows.
        return int((rows + 1 if self.numbered is None else self.numbered[rows]).min())

    def check_words(self, advice: str) -> None:
        """Raise DataError, with advice, if a column of numbers holds a few words.

        A column counts as numeric if at most five of its values, and at most half of them, are words, and the others
        are more than ten or have decimals. Words among few whole numbers may be categories: 0, 1, 2, 3+.
        """
        texts = self.texts.to_pylist()
        words = [text for text in texts if not is_number(text)]
        others = len(texts) - len(words)
        if not words or len(words) > min(_MOST_WORDS, len(texts) // 2):
            return
        if others > _MOST_CODES or any(map(has_fraction, texts)):
            raise DataError(
                f"column '{self.name}' of {self.where} holds {quote_some(words)} (the first in row "
                f"{self.row_of(words)}), and all other values are numbers: {advice}",
                quoted=quote_some(words),
            )

    def as_numbers(self) -> Floats:
        """Return the column as numbers, ``[rows]``, NaN where missing. Raises DataError if a value is not a number."""
        if self.numbers is None:
            words = [text for text in self.texts.to_pylist() if not is_number(text)]
            raise DataError(
                f"column '{self.name}' of {self.where} must be numeric, but holds {quote_some(words)} (the first in "
                f"row {self.row_of(words)}): list marks of missing values under missing-codes, or declare it under "
                "kinds",
                quoted=quote_some(words),
            )
        return np.append(self.numbers, np.nan)[self.codes]

    def as_codes(self, categories: Sequence[str], unknown_is_missing: bool = False, least_rows: int = 1) -> Floats:
        """Return the column as positions in ``categories``, ``[rows]``, NaN where missing.

        Raises DataError for a value that is not a category, unless it counts as missing.

        Parameters
        ----------
        categories : all values that the column may have.
        unknown_is_missing : whether a value that is not a category is missing, rather than an error.
        least_rows : a value in fewer rows that is not a category is missing in any case.
        """
        places = pc.index_in(self.texts, value_set=pa.array(categories, pa.string()))
        unknown = pc.is_null(places).to_numpy(zero_copy_only=False) & (self.counts >= least_rows)
        if unknown.any() and not unknown_is_missing:
            words = quote_some(self.texts.filter(pa.array(unknown)).to_pylist())
            raise DataError(
                f"column '{self.name}' of {self.where} holds unknown categories: {words}. List all "
                f'of them under kinds, list marks of missing values under missing-codes, or set unknown = "missing"',
                quoted=words,
            )
        found = pc.cast(places, pa.float64()).to_numpy(zero_copy_only=False)
        return np.append(found, np.nan)[self.codes]


def read_column(table: Table, name: str, missing_codes: Sequence[str | float] = ()) -> Column:
    """Read a column of a table as codes of its distinct values.

    Raises DataError for an unknown column (listing the known ones), for a column of lists or the like, and for infinite
    numbers.

    Parameters
    ----------
    table : Table
        Its nulls are missing, and so are numbers that are NaN.
    name : str
        Of the column.
    missing_codes : sequence of str or float
        Further values that are missing. A number matches however it is written in the table, a text only as written.
    """
    column = table.column(name)
    try:
        coded = (pc.cast(column, pa.string()) if pa.types.is_null(column.type) else column).dictionary_encode()
    except pa.ArrowNotImplementedError:
        raise DataError(f"column '{name}' of {table.where} is of type {column.type}: use numbers or text") from None
    texts = Table({name: coded.dictionary}, table.where).texts(name)
    # Merge 2 and 2.0, which were two values so far.
    again = pc.replace_substring_regex(texts, _WHOLE, r"\1").dictionary_encode()
    marks = pa.array([as_category(code) for code in missing_codes], pa.string())
    kept = pc.invert(pc.is_in(again.dictionary, value_set=marks)).to_numpy(zero_copy_only=False)
    numbers = Column(name, table.where, np.zeros(0, np.int64), again.dictionary.filter(pa.array(kept))).numbers
    if numbers is not None:
        kept[kept] = ~_is_missing(numbers, missing_codes)
    renumbered = np.where(kept, np.cumsum(kept) - 1, -1)
    places = renumbered[again.indices.to_numpy(zero_copy_only=False)]
    rows = pc.fill_null(coded.indices, len(places)).to_numpy(zero_copy_only=False)
    found = Column(
        name, table.where, np.append(places, -1)[rows], again.dictionary.filter(pa.array(kept)), table.numbered
    )
    if found.numbers is not None and np.isinf(found.numbers).any():
        infinite = found.texts.filter(pa.array(np.isinf(found.numbers))).to_pylist()
        raise infinite_error(name, table.where, infinite[0], found.row_of(infinite[:1]))
    return found


def read_categories(
    table: Table, name: str, known: Sequence[str] | None = None
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Read a column as codes and the list of their categories; numbers match in any notation.

    Returns codes int64 ``[rows]``, -1 for missing, and the categories. Raises DataError for values that ``known`` does
    not list, for a number that it lists twice, and for a column of lists or the like.

    Parameters
    ----------
    table : Table
        Its nulls are missing.
    name : str
        Of the column.
    known : sequence of str, optional
        The categories; by default the distinct values, in the order of :func:`sort_categories`.
    """
    column = read_column(table, name)
    texts = column.texts.to_pylist()
    if known is None:
        listed = column.categories()
        wanted = list(listed)
    else:
        listed, wanted = tuple(known), [as_category(text) for text in known]
    place_of = {text: place for place, text in enumerate(wanted)}
    if len(place_of) < len(wanted):
        twice = [text for text, alike in zip(listed, wanted, strict=True) if wanted.count(alike) > 1]
        raise DataError(
            f"[data.categories] {name} lists {quote_some(twice[:2])}, which are the same category: leave one out"
        )
    unlisted = sorted(set(texts) - set(wanted))
    if unlisted:
        raise DataError(
            f"column '{name}' of {table.where} holds {quote_some(unlisted)}, which its list of categories does not: "
            "add to [data.categories] before training, or leave such cells empty, which counts as missing"
            f"{spelling_hint(unlisted, wanted)}"
        )
    places = np.array([*(place_of[text] for text in texts), -1], dtype=np.int64)
    return places[column.codes], listed


def spelling_hint(texts: Sequence[str], known: Sequence[str]) -> str:
    """Return a hint, to be appended to a message, if a text is nearly a known one; else an empty text."""
    folded = {text.casefold(): text for text in known}
    alike = next((text for text in texts if text.casefold() in folded), None)
    if alike is not None:
        return f"; '{alike}' is '{folded[alike.casefold()]}' but for upper and lower case"
    return similar(texts, known)


def read_numbers(table: Table, name: str, missing_codes: Sequence[str | float] = ()) -> Floats | None:
    """Return ``read_column(...).as_numbers()``, or None where that raises; faster for many distinct values."""
    if not any(isinstance(code, str) for code in missing_codes):
        numbers = table.numbers(name)
        return None if numbers is None else np.where(_is_missing(numbers, missing_codes), np.nan, numbers)
    table.check_certain(name)
    column = read_column(table, name, missing_codes)
    return None if column.numbers is None else column.as_numbers()


def _is_missing(numbers: Floats, missing_codes: Sequence[str | float]) -> NDArray[np.bool_]:
    codes = [code for code in missing_codes if not isinstance(code, str)]
    return np.isnan(numbers) | np.isin(numbers, codes)


def sort_categories(categories: Sequence[str]) -> tuple[str, ...]:
    """Sort categories: by value if all are numbers, so that 10 comes after 9, else as text."""
    numbers = all(is_number(text) for text in categories)
    return tuple(sorted(categories, key=lambda text: (float(text), text) if numbers else (0.0, text)))


def has_fraction(text: str) -> bool:
    """Return whether a category is a number and not a whole one."""
    return is_number(text) and not float(text).is_integer()


def quote_some(words: Sequence[str], shown: int = 5) -> str:
    """Quote the first words for a message."""
    more = f" and {len(words) - shown:,} more" if len(words) > shown else ""
    return ", ".join(map(repr, words[:shown])) + more
