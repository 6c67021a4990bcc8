"""Tables: with a label and divided among clients, or a table of mixed columns for every client."""

from fedgraph.data.tables.asia import asia_network
from fedgraph.data.tables.bif import BayesianNetwork, Variable, read_bif
from fedgraph.data.tables.client_tables import ClientTable, ClientTableSource, client_table_source, schema_settings
from fedgraph.data.tables.dealt import DealtTableSource
from fedgraph.data.tables.frames import FrameTables
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
    "schema_settings",
]
