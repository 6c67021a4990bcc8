"""Tables from files, and their columns as codes of their distinct values."""

from fedgraph.data.columns.cells import MISSING
from fedgraph.data.columns.columns import Floats, as_category, in_order, read_categories, read_column
from fedgraph.data.columns.embeddings import with_embeddings
from fedgraph.data.columns.options import FileSettings
from fedgraph.data.columns.table_files import Table, read_table, table_of

__all__ = [
    "MISSING",
    "FileSettings",
    "Floats",
    "Table",
    "as_category",
    "in_order",
    "read_categories",
    "read_column",
    "read_table",
    "table_of",
    "with_embeddings",
]
