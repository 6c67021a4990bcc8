"""Text of CSV files: rows to text, and encoding, separator and numbers of files of any origin."""

from __future__ import annotations

import codecs
import csv
import re
import unicodedata
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any


def as_csv(lines: Iterable[Sequence[Any]]) -> str:
    """Format rows of entries as CSV text, texts as :func:`cell_text`; None is an empty entry."""
    rows: list[str] = []
    # With this end of a line, line breaks of both kinds within a cell are quoted.
    writer = csv.writer(SimpleNamespace(write=rows.append), lineterminator="\r\n")
    writer.writerows([cell_text(entry) for entry in line] for line in lines)
    return "".join(f"{row[:-2]}\n" for row in rows)


_FORMULA = re.compile(r"'*([=+@\t\r\n]|-.*[(|!])", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?")


def cell_text(value: Any) -> Any:
    """Return the cell of a value, in which spreadsheets see no formula: such a text gets an apostrophe in front.

    They take texts for formulas that begin with ``=``, ``+``, ``@``, a tab or a line break; of those that begin with
    ``-`` only ones with a call or a reference are, as others are ordinary. Numbers stay as they are.
    """
    formula = isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value)
    return f"'{value}" if formula else value


def text_of_cell(cell: Any) -> Any:
    """Return the value of a cell of :func:`cell_text`."""
    return cell[1:] if isinstance(cell, str) and cell.startswith("'") and _FORMULA.match(cell) else cell


DECIMAL_COMMA = r"[+-]?\d*,\d+([eE][+-]?\d+)?"
"""Numbers with a decimal comma."""


_OTHER_SEPARATORS = (";", "\t", "|")


def detect_separator(line: str) -> str:
    """Return the delimiter of a CSV file with this header: of comma, semicolon, tab and bar the one
    that makes the most cells, the first of equal ones. Beside the others, commas between digits are decimal ones.
    """
    line = re.sub(r"[\r\n]+", " ", line)  # a heading between quotes may have a line break
    if any(separator in line for separator in _OTHER_SEPARATORS):
        line = re.sub(r"(?<=\d),(?=\d)", ".", line)
    return max((",", *_OTHER_SEPARATORS), key=lambda separator: len(next(csv.reader([line], delimiter=separator), [])))


OTHER_ENCODING = "cp1252"
"""Windows-1252, the encoding of CSV files that are neither UTF-8 nor marked as UTF-16."""


def csv_encoding(data: bytes, whole: bool = False) -> str:
    """Return the encoding of a CSV file from its first bytes: UTF-16 with its mark, UTF-8, or else Windows-1252.

    Parameters
    ----------
    data : bytes
        They may end within a character, unless they are the ``whole`` file.
    whole : bool
        Whether the file ends here.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data, whole)
    except UnicodeDecodeError:
        return OTHER_ENCODING
    return "utf-8"


def composed(text: str) -> str:
    """Return a text in Unicode normal form C, unlike file names on some systems."""
    return unicodedata.normalize("NFC", text)


def with_decimal_point(cell: str) -> str:
    """Replace the decimal comma of a number such as ``1,5`` by a point; other text is unchanged."""
    return cell.replace(",", ".") if re.fullmatch(DECIMAL_COMMA, cell) else cell
