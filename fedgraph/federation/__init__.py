"""Participants of a run, their authentication, and exchanges with all of them.

>>> from fedgraph.federation import hosted_clients
>>> hosted_clients({"partition-id": 1, "num-partitions": 2}, ["a", "b", "c"])
('c',)
"""

from fedgraph.federation.exchange import OrderedGrid, PassingGrid, quick, split_replies
from fedgraph.federation.federation import Federation, Present, data_of, hosts_of, nodes_of
from fedgraph.federation.identity import (
    configured_clients,
    hosted_clients,
    listed,
    prove,
    read_private_key,
    read_public_keys,
)
from fedgraph.federation.opening_query import SomeAnswer, ask_all_nodes, identify, nodes_may_come
from fedgraph.federation.roll_call import ClientsTable, RollCall
from fedgraph.federation.traffic import Traffic
from fedgraph.support.errors import by_reason

__all__ = [
    "ClientsTable",
    "Federation",
    "OrderedGrid",
    "PassingGrid",
    "Present",
    "RollCall",
    "SomeAnswer",
    "Traffic",
    "ask_all_nodes",
    "by_reason",
    "configured_clients",
    "data_of",
    "hosted_clients",
    "hosts_of",
    "identify",
    "listed",
    "nodes_may_come",
    "nodes_of",
    "prove",
    "quick",
    "read_private_key",
    "read_public_keys",
    "split_replies",
]
