"""Tables: with a label and divided among clients, or a table of mixed columns for every client."""

from fedgraph.data.tables.asia import asia_network
from fedgraph.data.tables.bif import BayesianNetwork, Variable, read_bif
from fedgraph.data.tables.client_tables import (
    ClientTable,
    ClientTableSource,
    client_table_source,
    rows_of,
    schema_settings,
)
from fedgraph.data.tables.dealt import DealtTableSource
from fedgraph.data.tables.frames import FrameTables
from fedgraph.data.tables.new_rows import rows_by_client
from fedgraph.data.tables.tables_of_clients import ClientTableSettings

__all__ = [
    "BayesianNetwork",
    "ClientTable",
    "ClientTableSettings",
    "ClientTableSource",
    "DealtTableSource",
    "FrameTables",
    "Variable",
    "asia_network",
    "client_table_source",
    "read_bif",
    "rows_by_client",
    "rows_of",
    "schema_settings",
]
