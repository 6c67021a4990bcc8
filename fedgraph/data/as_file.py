"""Write in-memory data to a file, so that it is read like any other file."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
from torch import Tensor

from fedgraph.data.columns.table_files import as_arrow, with_marked_categories
from fedgraph.data.graphs import are_graphs, save_graphs
from fedgraph.support.errors import DataError
from fedgraph.support.files import replacing

UNNAMED_INDEX = "__index_level_{}__"
"""Column name of an unnamed level of an index, as in Parquet files of pandas; tables leave such columns out."""


def as_file(data: Any, folder: Path, name: str = "data", where: str = "the input") -> Path:
    """Write data into a folder, and return the file; paths are returned unchanged.

    Raises DataError for anything else, for an array of objects, and for a data frame with a column that Parquet cannot
    have.

    Parameters
    ----------
    data : str, Path, data frame, list of dict, array, Tensor or graphs
        A data frame of pandas becomes a Parquet file, with its index as the first column unless that is unnamed whole
        numbers; of other libraries, or anything that exports its columns to Arrow; so does a list of dicts, one for
        each row. An array, or a tensor, becomes an .npz file: images, the inputs of a custom data set, or rows of a
        table. A graph of PyTorch Geometric, a list of them, or a dict of either by client, becomes a .pt file.
    folder : Path
        Where the file is written.
    name : str
        Of the file, without suffix.
    where : str
        Names the data in messages.
    """
    if isinstance(data, str | PathLike):
        return Path(data)
    folder.mkdir(parents=True, exist_ok=True)
    if are_graphs(data):
        file = folder / f"{name}.pt"
        save_graphs(data, file)
        return file
    data = data.detach().cpu().numpy() if isinstance(data, Tensor) else data
    if isinstance(data, np.ndarray):
        if data.dtype.hasobject:
            raise DataError(f"{where} holds objects: give a data frame, or an array of numbers or of texts")
        file = folder / f"{name}.npz"
        with replacing(file) as temporary, temporary.open("wb") as stream:
            np.savez_compressed(stream, images=data)
        return file
    is_frame = hasattr(data, "iloc") and hasattr(data, "columns") and data.columns.nlevels == 1
    table = with_marked_categories(as_arrow(_flat(data) if is_frame else data, where))
    file = folder / f"{name}.parquet"
    with replacing(file) as temporary:
        pyarrow.parquet.write_table(table, temporary, write_page_checksum=True)
    return file


def _flat(frame: Any) -> Any:
    """Return a data frame of pandas with names that are text, truth values as Python spells them, no index."""
    frame = frame.rename(columns=str)
    index = frame.index
    if index.dtype.kind not in "iu" or index.name is not None:
        names = [UNNAMED_INDEX.format(level) if name is None else str(name) for level, name in enumerate(index.names)]
        frame = frame.reset_index(names=names)
    truths = {column: frame[column].map({True: "True", False: "False"}) for column in frame.select_dtypes("bool")}
    return frame.assign(**truths)
