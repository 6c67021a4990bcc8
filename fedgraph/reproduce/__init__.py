"""Tables and figures of papers: every cell is an experiment, run once and shown next to the published value.

A table is a TOML file, run with one command::

    fedgraph reproduce sfl-table2 --profile small
"""

from fedgraph.reproduce.command import reproduce
from fedgraph.reproduce.figures.columns import over_columns_of_file
from fedgraph.reproduce.figures.panels import calm, palette, panels
from fedgraph.reproduce.quantity import FAIRNESS, Quantity
from fedgraph.reproduce.result_file import ResultFile, ResultLine, merge_into
from fedgraph.reproduce.results import Results
from fedgraph.reproduce.table import ColumnTable, RowTable
from fedgraph.reproduce.table_files import EXPLAINED
from fedgraph.reproduce.text import markdown_line

__all__ = [
    "EXPLAINED",
    "FAIRNESS",
    "ColumnTable",
    "Quantity",
    "ResultFile",
    "ResultLine",
    "Results",
    "RowTable",
    "calm",
    "markdown_line",
    "merge_into",
    "over_columns_of_file",
    "palette",
    "panels",
    "reproduce",
]
