"""The ``[data]`` tables of tables: those that come with scikit-learn, and the user's own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from fedgraph.data.partition import Method
from fedgraph.data.shared_tests import SplitSettings

BundledName = Literal["iris", "wine", "breast-cancer", "diabetes"]


class TableOptions(SplitSettings):
    """The keys of ``[data]`` that any table has.

    Attributes
    ----------
    scaling : ``client`` = numeric features, and the target of a regression, as z-scores from each client's own training
              examples; ``none``.
    """

    partition: Method = "iid"
    scaling: Literal["client", "none"] = "client"


class BundledTableSettings(TableOptions):
    """The ``[data]`` table of a table that comes with scikit-learn."""

    set: BundledName = "iris"


class TableSettings(TableOptions):
    """The ``[data]`` table of the user's own table.

    Attributes
    ----------
    path           : .csv, .csv.gz or .parquet file, looked for beside the experiment, in the current folder, and in the
                     data folder. Not needed where every node has a file of its own (node config ``data``): all its
                     rows belong to the one client that the node names, or they are divided by ``client_column``; and
                     ``categories`` must list all values.
    columns        : names of the columns of a CSV file without a header.
    delimiter      : separates the columns of a CSV file; by default the comma, semicolon or tab of its first line.
                     Where it is not the comma, numbers may have decimal commas.
    test_path      : with ``test = "shared"``, a file with the same columns whose rows all clients are tested on; looked
                     for as ``path`` is. It needs no client column.
    label          : the column to predict; rows without it are left out.
    task           : ``classification``, or ``regression`` on a numeric label.
    client_column  : column whose values name the clients (the partition keys then have no effect); rows without it are
                     left out.
    features       : columns to predict from; default all others. Numbers stay numbers, anything else is one-hot.
    missing        : texts that mark a missing value. A missing number is 0 after scaling, a missing category all zeros.
    categories     : the values of categorical columns, including the label. By default those found in the file, which
                     all clients share; nodes with a file of their own must agree on a list. A numeric column that is
                     listed here is treated as categorical.
    max_categories : most values a one-hot column may have, and most classes of a label whose values are not listed.
    """

    set: Literal["table"] = "table"
    path: str | None = None
    test_path: str | None = None
    columns: tuple[str, ...] = ()
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    label: str
    task: Literal["classification", "regression"] = "classification"
    client_column: str | None = None
    features: tuple[str, ...] | None = None
    missing: tuple[str, ...] = ("", "?", "NA", "nan")
    categories: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    max_categories: PositiveInt = 200
