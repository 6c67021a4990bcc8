"""Which clients a node hosts, from its node config."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from typing import Any

from fedgraph.support.errors import IdentityError


def listed(text: str) -> list[str]:
    """The entries of a list in a node config; as in a CSV file, one with a comma in it stands in double quotes."""
    return next(csv.reader([text], skipinitialspace=True), [])


def named_clients(node_config: Mapping[str, Any]) -> tuple[str, ...]:
    """The clients that a node config names, ``clients = "a,b"``."""
    return tuple(name.strip() for name in listed(str(node_config.get("clients", ""))) if name.strip())


def hosted_clients(node_config: Mapping[str, Any], known: Sequence[str]) -> tuple[str, ...]:
    """The clients of a node, a subset of the data set's ``known`` clients.

    Node config ``clients = "a,b"`` names them; otherwise ``partition-id`` of ``num-partitions`` deals the known
    clients out in contiguous blocks whose sizes differ by at most one.

    Raises
    ------
    IdentityError
        When the node config has neither, names an unknown client or one twice, or counts partitions wrongly.
    """
    if "clients" in node_config:
        names = named_clients(node_config)
        unknown = [name for name in names if name not in set(known)]
        if unknown:
            raise IdentityError(
                f"node config 'clients' names {', '.join(unknown)}, which this node's data does not have; "
                f"it has {', '.join(known[:8])}{', ...' if len(known) > 8 else ''} ({len(known)} clients)"
            )
        if not names or len(set(names)) != len(names):
            raise IdentityError(f"node config 'clients' = '{node_config['clients']}' is empty or names a client twice")
        return names
    if "partition-id" not in node_config or "num-partitions" not in node_config:
        raise IdentityError(
            "this node does not know which clients it hosts: give it the node config key 'clients', for example "
            "--node-config 'clients=\"mercy,st-olav\"', or 'partition-id' and 'num-partitions'"
        )
    try:
        partition, partitions = int(node_config["partition-id"]), int(node_config["num-partitions"])
        if float(node_config["partition-id"]) != partition or float(node_config["num-partitions"]) != partitions:
            raise ValueError("not whole")
    except (ValueError, TypeError):
        raise IdentityError(
            f"node config 'partition-id' = '{node_config['partition-id']}' and 'num-partitions' = "
            f"'{node_config['num-partitions']}' must be whole numbers"
        ) from None
    if not 0 <= partition < partitions:
        raise IdentityError(
            f"node config 'partition-id' is {partition}; with 'num-partitions' = {partitions} it must be "
            f"0 to {partitions - 1}"
        )
    small, larger = divmod(len(known), partitions)
    start = partition * small + min(partition, larger)
    return tuple(known[start : start + small + (partition < larger)])
