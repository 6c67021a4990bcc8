"""Notes on columns that may have been misread: marks of missing values, codes, and categories that are the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc

from fedgraph.data.columns.cells import is_text
from fedgraph.data.columns.columns import Floats, read_column
from fedgraph.data.columns.table import Table

_MOST_MARKS, _FEWEST_MARKED, _FEWEST_OTHERS = 3, 3, 4
"""Most numbers of a column that may mark missing values, fewest rows of each, and fewest other numbers."""

_TRUTH = {"true": "yes", "false": "no"}

_CODE = r"^0\d\d+$"
"""Numbers with a zero in front and as many digits as codes have; months and hours have fewer."""


def near_duplicates(texts: Sequence[str]) -> tuple[str, str] | None:
    """Return two categories that may be the same, such as ``dead`` and ``DEAD`` or ``yes`` and ``TRUE``; else None."""
    seen: dict[str, str] = {}
    for text in texts:
        word = _TRUTH.get(text.casefold(), text.casefold())
        if word in seen:
            return seen[word], text
        seen[word] = text
    return None


def two_categories(name: str, texts: Sequence[str]) -> list[str]:
    """Return a note if two categories of a column may be the same, else none."""
    pair = near_duplicates(texts)
    return [f"'{pair[0]}' and '{pair[1]}' of '{name}' are two categories"] if pair else []


def likely_marks(values: Floats) -> list[float]:
    """Return the numbers that may mark missing values, such as -999 or 98 and 99; usually none.

    They are a few extreme numbers, each in several rows, further from all others than these are from each other.
    """
    present = values[np.isfinite(values)]
    for sign in (1.0, -1.0):
        marks, rest = list[float](), sign * present
        while len(marks) < _MOST_MARKS and 2 * len(rest) > len(present):
            mark = rest.min()
            others = rest[rest > mark]
            if len(others) in (0, len(rest)) or len(rest) - len(others) < _FEWEST_MARKED:
                break
            marks.append(float(sign * mark))
            apart, spread = others.min() - mark, others.max() - others.min()
            if spread < apart and 2 * len(others) > len(present) and len(np.unique(others)) >= _FEWEST_OTHERS:
                return marks
            rest = others
    return []


def notes_on_column(table: Table, name: str, as_categories: str) -> list[str]:
    """Return the notes on a column, of numbers or of categories; ``as_categories`` as in :func:`notes_on_numbers`."""
    values = table.numbers(name)
    if values is None:
        return two_categories(name, sorted(read_column(table, name).texts.to_pylist()))
    return notes_on_numbers(table, name, values, as_categories)


def notes_on_numbers(table: Table, name: str, values: Floats, as_categories: str) -> list[str]:
    """Return notes on a column of numbers that may hold marks of missing values or be codes, such as 01234.

    ``as_categories`` is the table of settings that makes a column categorical.
    """
    notes, marks = list[str](), [f"{mark:g}" for mark in likely_marks(values)]
    if marks:
        it = ("it marks", "it") if len(marks) == 1 else ("they mark", "them")
        notes.append(
            f"'{name}' holds {' and '.join(marks)}, far from its other values: if {it[0]} missing ones, leave these "
            f"cells empty, or add {it[1]} to [data] missing, which counts in all columns"
        )
    column = table.columns[name]
    if is_text(column.type) and pc.any(pc.match_substring_regex(column, _CODE)).as_py():
        notes.append(
            f"'{name}' is read as numbers, though some have zeros in front: if it is codes, see {as_categories}"
        )
    return notes
