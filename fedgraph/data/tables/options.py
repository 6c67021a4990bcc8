"""Settings of labelled tables: those bundled with scikit-learn, and the user's own."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from fedgraph.data.columns.options import FileSettings
from fedgraph.data.own import Name
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
    """The ``[data]`` table of a table bundled with scikit-learn."""

    set: BundledName = "iris"


class TableSettings(TableOptions, FileSettings):
    """The ``[data]`` table of the user's own table.

    Attributes
    ----------
    path           : .csv, .csv.gz or .parquet file, looked for next to the experiment, in the current folder, and in
                     the data folder. Not needed where every node has its own file (node config ``data``): all its
                     rows belong to the one client that the node names, or they are divided by ``client_column``; and
                     ``categories`` must list all values.
    test_path      : with ``test = "shared"``, a file with the same columns whose rows all clients are tested on; looked
                     for as ``path`` is. It needs no client column.
    label          : the column to predict; rows without it are left out.
    task           : ``classification``, or ``regression`` on a numeric label.
    client_column  : column whose values name the clients (the partition keys then have no effect); rows without it are
                     left out.
    features       : columns to predict from; default all others. Numbers stay numbers, anything else is one-hot. A
                     missing number is 0 after scaling, a missing category all zeros.
    drop           : columns that are not features, such as row numbers and names of persons.
    categories     : the values of categorical columns, including the label. By default those found in the file, which
                     all clients share; nodes with their own file must agree on a list. A numeric column that is
                     listed here is treated as categorical.
    max_categories : most values a one-hot column may have, and most classes of a label whose values are not listed.
    """

    set: Literal["table"] = "table"
    path: str | None = None
    test_path: str | None = None
    label: Name
    task: Literal["classification", "regression"] = "classification"
    client_column: Name | None = None
    features: tuple[Name, ...] | None = None
    drop: tuple[Name, ...] = ()
    categories: dict[Name, tuple[Name, ...]] = Field(default_factory=dict)
    max_categories: PositiveInt = 200

    @model_validator(mode="after")
    def _check_drop(self) -> TableSettings:
        kept = [name for name in self.drop if name in (self.features or ()) or name in (self.label, self.client_column)]
        if kept:
            raise ValueError(f"drop leaves out '{kept[0]}', which label, client-column or features name")
        return self
