"""Tables from CSV and Parquet files, and from data frames: columns of texts or of the types of the file."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from fedgraph.data.columns.cells import MISSING, Thousands, is_text, mask_missing, normalise_numbers
from fedgraph.data.columns.table import RawRows, Table
from fedgraph.data.own import LOOKED_FOR
from fedgraph.support.csv_text import OTHER_ENCODING, composed, csv_encoding, detect_separator
from fedgraph.support.errors import DataError, counted, quoted
from fedgraph.support.files import read_arrays
from fedgraph.support.untrusted import in_short

_HEAD = 1 << 16
"""Bytes of a CSV file from which its encoding is inferred."""

CATEGORIES = {b"fedgraph": b"categories"}
"""Metadata of a column of categories, as Parquet files keep the type of those alone that are texts."""

_JSON = rb"\s*(\{\s*\"|\[\s*[\[{])"
"""Start of objects, and of lists of objects or lists."""

_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}

_LONGEST_LINE = 200
"""Characters of a line that an error has."""


def read_table(
    path: Path,
    columns: Sequence[str] = (),
    missing: Sequence[str] = MISSING,
    delimiter: str | None = None,
    thousands: Thousands | None = None,
) -> Table:
    """Read a table from a .csv, .csv.gz, .parquet or .npz file; the last few files are cached in the process.

    All columns of a CSV file are text; those of a Parquet file keep their types. Where the columns are not separated by
    commas, numbers with decimal commas have points instead, in columns that are mostly numbers. Raises DataError when
    the file is missing, cannot be read, or has no rows, two columns of one name, or another number of columns than
    ``columns``. The message names the file.

    Parameters
    ----------
    path : Path
        Of the file. A CSV file is UTF-8, UTF-16 with its mark, or else Windows-1252.
    columns : sequence of str
        Names of the columns of a CSV file without a header, or of the array of an .npz file.
    missing : sequence of str
        What means missing: texts, and numbers however they are written, in columns of any type.
    delimiter : str, optional
        Between the columns of a CSV file; by default that of its header (:func:`detect_separator`).
    thousands : str, optional
        What separates thousands in numbers.
    """
    if not path.is_file():
        raise DataError(
            f"there is no table {path.absolute()}: put the file there, or name another by [data] path; {LOOKED_FOR}"
        )
    return _read(path.absolute(), path.stat().st_mtime_ns, tuple(columns), tuple(missing), delimiter, thousands)


@lru_cache(maxsize=4)
def _read(
    path: Path,
    _changed: int,
    columns: tuple[str, ...],
    missing: tuple[str, ...],
    delimiter: str | None,
    thousands: Thousands | None,
) -> Table:
    notes: list[str] = []
    separator = ","
    try:
        if path.name.lower().endswith(".parquet"):
            arrow = _parquet(path, columns)
        elif path.suffix.lower() == ".npz":
            arrow = _array(path, columns)
        else:
            text = _CsvText.of(path)
            if text.is_all and not columns:
                raise DataError(f"{path} has no rows")
            separator = delimiter or detect_separator(text.header)
            try:
                arrow = _csv(path, columns, separator, text)
            except pa.ArrowInvalid as error:
                if "invalid UTF8" not in str(error):
                    raise
                text = text._replace(encoding=OTHER_ENCODING)
                arrow = _csv(path, columns, separator, text)
            if text.encoding == OTHER_ENCODING:
                notes.append("its text is not UTF-8 and was read as Windows-1252")
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, pa.ArrowException) as error:
        raise _unreadable(path, error) from None
    if arrow.num_rows == 0:
        raise DataError(f"{path} has no rows")
    table = _cleaned(arrow, str(path), missing, "rename one, or list all names in [data] columns")
    found, doubts = normalise_numbers(table.columns, str(path), separator, thousands)
    cleaned = {
        name: column if column is table.columns[name] else mask_missing(column, missing)
        for name, column in found.items()
    }
    raw = RawRows(arrow.columns, separator)
    return Table(cleaned, str(path), doubts=doubts, notes=notes, categorical=table.categorical, raw=raw)


def _unreadable(path: Path, error: Exception) -> DataError:
    """Return the error of a file that cannot be parsed; the cells of a line are quoted, as its owner's values."""
    widths = re.search(r"Expected (\d+) columns, got (\d+): (.*)", str(error), re.DOTALL)
    if widths is None:
        return DataError(f"{path} cannot be read as a table: {error}", quoted=str(error))
    names, cells, line = int(widths[1]), int(widths[2]), in_short(widths[3], _LONGEST_LINE)
    return DataError(
        f"{path} cannot be read as a table: its first line has {counted(names, 'column')}, and another line has "
        f"{cells}: {line}; the first line must name all columns, and cells with the separator or a line break need "
        "quotation marks",
        quoted=line,
    )


def from_frame(frame: Any, where: str = "the data frame") -> Table:
    """Return a data frame as a table, without the index of pandas.

    Truth values are the text ``True`` and ``False``; empty text is missing. Raises DataError when it is not a table,
    has no rows, two columns of one name, or a column that Arrow cannot take.

    Parameters
    ----------
    frame : data frame
        Of pandas, polars or another library that exports its columns to Arrow, or a table of pyarrow.
    where : str
        Names it in messages.
    """
    if isinstance(frame, Table):
        return frame
    arrow = as_arrow(frame, where)
    if arrow.num_rows == 0:
        raise DataError(f"{where} has no rows")
    table = _cleaned(arrow, where, ("",), "rename one")
    return table.with_columns({name: _spelled(column) for name, column in table.columns.items()})


def as_arrow(frame: Any, where: str = "the data frame") -> pa.Table:
    """Return rows as a table of Arrow, without the index of pandas; periods are the times at which they begin.

    Raises DataError for anything that is not rows, and for a column that Arrow cannot take.

    Parameters
    ----------
    frame : data frame, list of dict, or dict
        A data frame of any library that exports its columns to Arrow; a dict for each row; a dict by column.
    where : str
        Names it in messages.
    """
    kind = type(frame).__name__
    if hasattr(frame, "iloc") and not hasattr(frame, "columns"):
        raise DataError(f"{where} is a {kind}, a single column or row: give a data frame, such as frame.loc[[0]]")
    if hasattr(frame, "iloc") and frame.columns.nlevels > 1:
        raise DataError(f"{where} has {frame.columns.nlevels} levels of column names: give each column one name")
    try:
        if hasattr(frame, "iloc"):  # of pandas, whose column names may be numbers
            frame = frame.rename(columns=str)
            periods = [name for name, kind in frame.dtypes.items() if str(kind).startswith("period")]
            frame = frame.assign(**{name: frame[name].dt.to_timestamp() for name in periods})
            return pa.Table.from_pandas(frame, preserve_index=False)
        if isinstance(frame, Sequence) and frame and all(isinstance(row, Mapping) for row in frame):
            names = dict.fromkeys(name for row in frame for name in row)
            return pa.table({str(name): [row.get(name) for row in frame] for name in names})
        return pa.table(frame)
    except (TypeError, ValueError, pa.ArrowException) as error:
        if hasattr(frame, "columns"):
            reasons = ", ".join(map(str, error.args)).rstrip(".")
            raise DataError(
                f"{where} cannot be read: {reasons}. Each column needs a name of its own, and numbers, texts or times "
                "alone"
            ) from None
        raise DataError(
            f"{where} is of type {kind}, and cannot be read: give a data frame, a list of dicts (one for each row), a "
            "dict of columns, or the path of a file"
        ) from None


def with_marked_categories(arrow: pa.Table) -> pa.Table:
    """Return a table whose columns of categories have metadata that say so, for a file."""
    fields = [
        field.with_metadata({**(field.metadata or {}), **CATEGORIES}) if _is_of_categories(field.type) else field
        for field in arrow.schema
    ]
    return arrow.cast(pa.schema(fields, arrow.schema.metadata))


def _spelled(column: pa.Array) -> pa.Array:
    """Return booleans as ``True`` and ``False``, as in dicts of categories."""
    return pc.if_else(column, "True", "False") if pa.types.is_boolean(column.type) else column


def _cleaned(arrow: pa.Table, where: str, missing: Sequence[str], advice: str) -> Table:
    """Return the columns with text trimmed, dictionaries decoded, durations in seconds, missing values as null."""
    names = [composed(name.strip().replace("\r\n", "\n")) for name in arrow.column_names]
    empty = {place for place, name in enumerate(names) if not name and _is_empty(arrow.column(place))}
    if empty and len(empty) < len(names):  # a separator at the end of each line
        arrow = arrow.select([place for place in range(len(names)) if place not in empty])
        names = [name for place, name in enumerate(names) if place not in empty]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{where} has two columns named {', '.join(twice)}: {advice}")
    cleaned, categorical = {}, []
    for name, column, field in zip(names, arrow.columns, arrow.schema, strict=True):
        array = column.combine_chunks()
        if CATEGORIES.items() <= (field.metadata or {}).items() or _is_of_categories(array.type):
            categorical.append(name)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if pa.types.is_decimal(array.type):
            array = array.cast(pa.float64())
        if pa.types.is_duration(array.type):
            # Not safe: 104 days have more nanoseconds than exact numbers.
            array = pc.divide(array.cast(pa.int64()).cast(pa.float64(), safe=False), _PER_SECOND[array.type.unit])
        if is_text(array.type):
            array = pc.utf8_trim_whitespace(array.cast(pa.string()))
            plain = pc.all(pc.string_is_ascii(array)).as_py()
            array = array if plain or plain is None else _composed(array)
        cleaned[name] = mask_missing(array, missing)
    return Table(cleaned, where, categorical=categorical)


def _composed(texts: pa.StringArray) -> pa.StringArray:
    """Return texts in Unicode normal form C; ``pyarrow.compute.utf8_normalize`` returns form D before pyarrow 26."""
    different = texts.dictionary_encode()
    return pa.array(map(composed, different.dictionary.to_pylist()), pa.string()).take(different.indices)


def _is_of_categories(kind: pa.DataType) -> bool:
    """Return whether a column is of unordered categories, as those of pandas are; ordered ones may be numbers."""
    return pa.types.is_dictionary(kind) and not kind.ordered


def _is_empty(column: pa.ChunkedArray) -> bool:
    """Return whether a column has no value in any row."""
    if not is_text(column.type):
        return bool(column.null_count == len(column))
    return not pc.any(pc.not_equal(pc.utf8_trim_whitespace(column), "")).as_py()


def _parquet(path: Path, columns: tuple[str, ...]) -> pa.Table:
    if columns:
        raise DataError(f"{path} names its columns itself: leave out [data] columns")
    return pyarrow.parquet.ParquetFile(path, page_checksum_verification=True).read()


def _array(path: Path, columns: tuple[str, ...]) -> pa.Table:
    """Read the array of an .npz file, of numbers or texts."""
    if not columns:
        raise DataError(f"{path} is an array, whose columns have no names: list them, [data] columns")
    arrays = read_arrays(path)
    if len(arrays) != 1:
        raise DataError(f"{path} has the arrays {quoted(list(arrays))}: save the one with the rows alone")
    (values,) = arrays.values()
    if values.ndim != 2 or values.shape[1] != len(columns):
        raise DataError(
            f"{path} is an array of shape {list(values.shape)}: it needs [rows, {len(columns)}], with the columns "
            f"{', '.join(columns)} in this order; or give a data frame"
        )
    return pa.table({name: pa.array(column) for name, column in zip(columns, values.T, strict=True)})


class _CsvText(NamedTuple):
    """The header of a CSV file, which may have quoted line breaks, its encoding, and whether it is the whole file."""

    header: str
    encoding: str
    is_all: bool

    @classmethod
    def of(cls, path: Path) -> _CsvText:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as stream:
            head = stream.read(_HEAD)
        encoding = csv_encoding(head)
        if (b"\0" in head and encoding != "utf-16") or re.match(_JSON, head):
            raise DataError(f"{path} is no file of text in columns: save it as CSV or Parquet")
        text = codecs.getincrementaldecoder(encoding)().decode(head).removeprefix("\ufeff")
        lines = io.StringIO(text, newline="")
        header = lines.readline()
        while header.count('"') % 2 and (more := lines.readline()):
            header += more
        return cls(header.rstrip("\r\n"), encoding, 0 < len(head) < _HEAD and not lines.read(1))


def _csv(path: Path, columns: tuple[str, ...], delimiter: str, text: _CsvText) -> pa.Table:
    """Read all columns as text: types inferred from the first rows may not fit later ones."""
    first = next(csv.reader(io.StringIO(text.header, newline=""), delimiter=delimiter), [])
    if columns and len(columns) != len(first):
        raise DataError(f"{path} has {len(first)} columns, and [data] columns names {len(columns)}")
    numbered = [str(position) for position in range(len(first))]
    return pyarrow.csv.read_csv(
        path,
        read_options=pyarrow.csv.ReadOptions(
            column_names=numbered, skip_rows_after_names=0 if columns else 1, encoding=text.encoding
        ),
        parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(numbered, pa.string()), strings_can_be_null=False
        ),
    ).rename_columns(list(columns) or first)
