"""Tables: with a label and divided among clients, or with mixed columns for every client."""

from fedgraph.data.tables.bayesian_network import asia_network
from fedgraph.data.tables.bif import BayesianNetwork, Variable, read_bif
from fedgraph.data.tables.client_tables import (
    ClientTable,
    ClientTableSettings,
    ClientTableSource,
    client_table_source,
)
from fedgraph.data.tables.divided import DividedTableSource
from fedgraph.data.tables.frames import FrameTables
from fedgraph.data.tables.new_rows import rows_by_client

__all__ = [
    "BayesianNetwork",
    "ClientTable",
    "ClientTableSettings",
    "ClientTableSource",
    "DividedTableSource",
    "FrameTables",
    "Variable",
    "asia_network",
    "client_table_source",
    "read_bif",
    "rows_by_client",
]
