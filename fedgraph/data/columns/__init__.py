"""Tables from files, and their columns as codes of their distinct values."""

from fedgraph.data.columns.cells import MISSING
from fedgraph.data.columns.columns import (
    Floats,
    as_category,
    read_categories,
    read_column,
    sort_categories,
)
from fedgraph.data.columns.embeddings import with_embeddings
from fedgraph.data.columns.notes import likely_marks, notes_on_column, two_categories
from fedgraph.data.columns.options import FileSettings
from fedgraph.data.columns.table import Table
from fedgraph.data.columns.table_files import from_frame, read_table

__all__ = [
    "MISSING",
    "FileSettings",
    "Floats",
    "Table",
    "as_category",
    "from_frame",
    "likely_marks",
    "notes_on_column",
    "read_categories",
    "read_column",
    "read_table",
    "sort_categories",
    "two_categories",
    "with_embeddings",
]
