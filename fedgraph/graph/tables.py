"""A graph from a text table: a list of edges or distances, a square matrix, or pairs of names."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgraph.support.csv_text import OTHER_ENCODING, composed, csv_encoding, detect_separator, with_decimal_point
from fedgraph.support.errors import GraphError

_SOURCE, _TARGET = ("from", "source"), ("to", "target")
_DISTANCE, _WEIGHT = ("cost", "distance"), ("weight",)
_NO_HEADER = (
    "the list of the client graph has no header, so its third column was taken for distances; the header "
    "from,to,weight would make them weights"
)
_NOT_UTF8 = "the text of the client graph is not UTF-8 and was read as Windows-1252"


class EdgeTable(NamedTuple):
    """Rows of an edge list; ``values`` are distances or weights. ``notes`` are about the reading."""

    sources: list[str]
    targets: list[str]
    values: np.ndarray
    are_distances: bool
    notes: tuple[str, ...] = ()


class MatrixTable(NamedTuple):
    """A square table; ``names`` is None if the file does not name the clients. ``notes`` are about the reading."""

    names: list[str] | None
    matrix: np.ndarray
    notes: tuple[str, ...] = ()


def read_relations(path: Path) -> EdgeTable | MatrixTable:
    """Read a text file, which may be compressed (``.gz``), and detect the kind of table.

    Cells are separated by commas, or else by semicolons, tabs or bars; then numbers may have decimal commas. Edges: a
    header with from, to (or source, target) and one of cost, distance, weight, or no other column, for weights of 1; or
    three columns without a header: from, to, distance. Matrix: N rows of N numbers; client names as a header row,
    optionally also as the first column.

    The text is UTF-8, UTF-16 with its mark, or else Windows-1252. Raises GraphError, without a path, for a table that
    is neither, or that could be both.
    """
    text, encoding = _text(path)
    table = _relations(*_lines(text))
    return table._replace(notes=(*table.notes, _NOT_UTF8)) if encoding == OTHER_ENCODING else table


def _relations(lines: list[tuple[int, list[str]]], width: int) -> EdgeTable | MatrixTable:
    header = [cell.lower() for cell in lines[0][1]]
    source, target = _column(header, _SOURCE), _column(header, _TARGET)
    if source is not None and target is not None:
        if len(lines) == 1:
            raise GraphError("the list has no edges: there is nothing below its headings")
        distance, weight = _column(header, _DISTANCE), _column(header, _WEIGHT)
        value = distance if weight is None else weight
        if width == 2:
            rows = [row for _, row in lines[1:]]
            return EdgeTable([row[source] for row in rows], [row[target] for row in rows], np.ones(len(rows)), False)
        if value is None or (distance is not None and weight is not None):
            raise GraphError(
                "an edge list has one value column, named cost or distance (goes through the Gaussian kernel) or "
                f"weight (used as it is), or the columns from and to alone; the header is {','.join(lines[0][1])}"
            )
        return _edges(lines[1:], source, target, value, weight is None)
    if width == 3 and _is_number(lines[0][1][2]) and not _names_itself(lines):
        if len(lines) in (3, 4) and all(_is_number(cell) for _, row in lines for cell in row):
            raise GraphError(
                "a table of three columns and as few rows may be a list or a matrix; give it the header from,to,cost "
                "or from,to,weight, or for a matrix the client names as first row and first column"
            )
        return _edges(lines, 0, 1, 2, True)._replace(notes=(_NO_HEADER,))
    if width in (2, 3) and len(lines) > 1 and not all(_is_number(row[1]) for _, row in lines[1:]):
        raise GraphError(
            "an edge list needs the headings from,to, or from,to,weight or from,to,distance; the first row is "
            f"{','.join(lines[0][1])}. (A matrix has numbers below its header row)"
        )
    return _square(lines, width)


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Read a ``.csv`` or ``.csv.gz`` file of two columns, with the header from,to (or source,target).

    Raises GraphError, without a path, for any other table.
    """
    lines, width = _lines(_text(path)[0])
    header = [cell.lower() for cell in lines[0][1]]
    source, target = _column(header, _SOURCE), _column(header, _TARGET)
    if width != 2 or source is None or target is None:
        raise GraphError(f"a list of pairs has the header from,to and no other column; got {','.join(lines[0][1])}")
    return [(row[source], row[target]) for _, row in lines[1:]]


def _text(path: Path) -> tuple[str, str]:
    """Return the text of a file and its encoding."""
    content = path.read_bytes()
    if path.suffix.lower() == ".gz":
        content = gzip.decompress(content)
    encoding = csv_encoding(content, whole=True)
    return content.decode(encoding).removeprefix("\ufeff"), encoding


def _lines(text: str) -> tuple[list[tuple[int, list[str]]], int]:
    """Return numbered rows of trimmed cells, without empty rows, and the number of cells in each."""
    separator = detect_separator(text.lstrip().partition("\n")[0])
    found = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    rows = ((number, [composed(cell.strip()) for cell in row]) for number, row in enumerate(found, 1))
    if separator != ",":
        rows = ((number, [with_decimal_point(cell) for cell in row]) for number, row in rows)
    lines = [(number, row) for number, row in rows if any(row)]
    if not lines:
        raise GraphError("the table is empty")
    width = len(lines[0][1])
    for number, row in lines:
        if len(row) != width:
            raise GraphError(f"line {number} has {len(row)} columns but the first row has {width}")
    return lines, width


def _column(header: Sequence[str], wanted: Sequence[str]) -> int | None:
    return next((header.index(name) for name in wanted if name in header), None)


def _edges(lines: list[tuple[int, list[str]]], source: int, target: int, value: int, are_distances: bool) -> EdgeTable:
    values = _numbers([(number, [row[value]]) for number, row in lines]).reshape(-1)
    return EdgeTable([row[source] for _, row in lines], [row[target] for _, row in lines], values, are_distances)


def _names_itself(lines: list[tuple[int, list[str]]]) -> bool:
    """Return whether the first column repeats the first row, as in a matrix with names on both sides."""
    return [row[0] for _, row in lines[1:]] == lines[0][1][1:]


def _square(lines: list[tuple[int, list[str]]], width: int) -> MatrixTable:
    first = lines[0][1]
    if len(lines) == width and all(_is_number(cell) for cell in first):
        return MatrixTable(None, _numbers(lines))
    if len(lines) == width + 1:
        return MatrixTable(first, _numbers(lines[1:]))
    if len(lines) == width:
        if not _names_itself(lines):
            number, row, name = next(
                (n, row[0], name) for (n, row), name in zip(lines[1:], first[1:], strict=True) if row[0] != name
            )
            raise GraphError(f"line {number} is named '{row}' but the column of the same place is named '{name}'")
        return MatrixTable(first[1:], _numbers([(number, row[1:]) for number, row in lines[1:]]))
    raise GraphError(
        f"a table of {len(lines)} rows and {width} columns is neither a square matrix (with client names as header "
        "row, and if wanted as first column) nor an edge list with a header from,to,cost or from,to,weight"
    )


def _numbers(lines: list[tuple[int, list[str]]]) -> np.ndarray:
    try:
        return np.array([row for _, row in lines], dtype=np.float64)
    except ValueError:
        number, cell = next((number, cell) for number, row in lines for cell in row if not _is_number(cell))
        raise GraphError(f"line {number} holds '{cell}' where a number belongs") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
