"""Data sets by name: ``[data] set = "..."`` chooses the settings and the source.

Each kind of data has its own package: ``series``, ``images``, ``tables`` and ``owners``. ``columns``, ``schema``
and ``encoding`` are for tables with columns of many kinds.

    >>> from pathlib import Path
    >>> from fedgraph.data import open_source, parse_data
    >>> source = open_source(parse_data({"set": "digits", "clients": 3, "partition": "iid"}), Path("."))
    >>> source.load(source.client_names()).splits["train"].num_examples.tolist()
    [432, 431, 431]
"""

from fedgraph.data.as_file import as_file
from fedgraph.data.base import SPLITS, Augment, CohortData, DataSource, Split, SplitName
from fedgraph.data.data_set import DataSet, Examples
from fedgraph.data.examples import ExampleSplit
from fedgraph.data.own import CLIENT, GIVEN, OWN_TITLE, UNNAMED, OwnData, name_given_files
from fedgraph.data.pooled import pooled
from fedgraph.data.preprocessing import InputScale, Preprocessing
from fedgraph.data.registry import (
    OWN_FILE_SETS,
    catalogue_entries,
    is_custom_class,
    open_source,
    parse_data,
    settings_by_set,
)

__all__ = [
    "CLIENT",
    "GIVEN",
    "OWN_FILE_SETS",
    "OWN_TITLE",
    "SPLITS",
    "UNNAMED",
    "Augment",
    "CohortData",
    "DataSet",
    "DataSource",
    "ExampleSplit",
    "Examples",
    "InputScale",
    "OwnData",
    "Preprocessing",
    "Split",
    "SplitName",
    "as_file",
    "catalogue_entries",
    "is_custom_class",
    "name_given_files",
    "open_source",
    "parse_data",
    "pooled",
    "settings_by_set",
]
