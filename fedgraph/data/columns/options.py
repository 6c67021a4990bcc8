"""The keys of ``[data]`` on reading a file of columns, shared by all data sets that read one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from fedgraph.data.columns.cells import EMPTY, MISSING, Mark, Thousands
from fedgraph.data.columns.table_files import Table, read_table
from fedgraph.data.own import Name
from fedgraph.support.settings import Settings

_INDEX = r"__index_level_\d+__"
"""Name that pandas gives to an unnamed index in Parquet files."""


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


class FileSettings(Settings):
    """How a file of columns is read.

    Attributes
    ----------
    columns   : names of the columns of a CSV file without a header, or of the array of an .npz file.
    delimiter : separates the columns of a CSV file; by default the comma, semicolon, tab or bar of its header. Where it
                is not the comma, numbers may have decimal commas.
    missing   : what marks a missing value besides the usual marks, one or several: texts, and numbers, which match in
                any notation and in columns of any type.
    default_missing : whether the usual marks (:data:`~fedgraph.data.columns.cells.MISSING`: ``NA``, ``?`` and the like)
                mark a missing value. If not, they are texts. An empty cell is missing in any case.
    thousands : what separates thousands in numbers: ``.``, ``,``, a blank or an apostrophe; empty: nothing does. By
                default numbers that may have such separators are an error.
    """

    columns: tuple[Name, ...] = ()
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    missing: Annotated[tuple[Mark, ...], BeforeValidator(_listed)] = ()
    default_missing: bool = True
    thousands: Thousands | None = None

    def read(self, path: Path, array: Sequence[str] = ()) -> Table:
        """Read a file (:func:`fedgraph.data.columns.table_files.read_table`) without the unnamed index of pandas.

        ``array`` names the columns of an .npz file, by default ``columns``.
        """
        missing = (*(MISSING if self.default_missing else EMPTY), *self.missing)
        columns = tuple(array) if array and path.suffix.lower() == ".npz" else self.columns
        table = read_table(path, columns, missing, self.delimiter, self.thousands)
        kept = {name: column for name, column in table.columns.items() if not re.fullmatch(_INDEX, name)}
        return table if len(kept) == len(table.columns) else table.with_columns(kept)
