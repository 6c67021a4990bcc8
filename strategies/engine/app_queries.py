"""How strategies ask people's own ClientApps, where a node is one client: by query; clients that fail are left out."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, MutableMapping
from typing import TypeVar

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedgraph.federation import nodes_may_come, split_replies
from fedgraph.messages import mark_empty
from fedgraph.messages.apps import read_client
from fedgraph.support.errors import ReplyError, RunError

log = logging.getLogger("fedgraph")

Answer = TypeVar("Answer")

_POLL_SECONDS = 0.5


def connected_nodes(grid: Grid, least: int, timeout: float = math.inf) -> list[int]:
    """Return the ids of the connected nodes, once there are enough.

    Raises RunError when there are fewer, and no more may come or the time is over.

    Parameters
    ----------
    grid : grid that connects to the nodes.
    timeout : seconds that nodes have to connect; by default there is no end, as for Flower's strategies.
    """
    deadline = time.monotonic() + timeout
    while len(nodes := sorted(grid.get_node_ids())) < least:
        if not nodes_may_come(grid) or time.monotonic() > deadline:
            raise RunError(
                f"{len(nodes)} nodes are connected, fewer than min_available_nodes = {least}: start more, or set "
                "min_available_nodes lower"
            )
        log.info("waiting for nodes: %d of %d are connected", len(nodes), least)
        time.sleep(_POLL_SECONDS)
    return nodes


def ask_clients(
    grid: Grid,
    nodes: list[int],
    content: RecordDict,
    message_type: str,
    read: Callable[[RecordDict], Answer],
    names: MutableMapping[int, str],
    timeout: float,
) -> dict[str, Answer]:
    """Ask nodes, and return what ``read`` makes of their answers by the name of the client, sorted.

    Nodes without a usable answer are left out, with an error in the log that names client and reason; so are all that
    answer under the same name, because it is unknown which of them it belongs to.

    Parameters
    ----------
    grid : grid that connects to the nodes.
    message_type : Flower's message type, such as ``query``.
    read : checks and unpacks the content of an answer; raises ReplyError.
    names : names of the clients by node id, as far as they are known; names that answers tell are added.
    timeout : seconds to wait for answers.
    """

    def named(node: int, answer: RecordDict) -> Answer:
        names[node] = read_client(answer) or str(node)
        return read(answer)

    messages = [Message(mark_empty(content), node, message_type) for node in nodes]
    found, problems = split_replies(grid.send_and_receive(messages, timeout=timeout), nodes, named)
    answered = [names[node] for node in found]
    for node in [node for node in found if answered.count(names[node]) > 1]:
        problems[node] = (
            f"another node answers as '{names[node]}' too: give each a name of its own (node config client)"
        )
    for node, problem in sorted(problems.items()):
        known = f"client '{names[node]}' (node {node})" if node in names else f"node {node}"
        log.error("going on without %s: %s", known, problem)
    return {names[node]: found[node] for node in sorted(found, key=names.__getitem__) if node not in problems}


def with_config(content: RecordDict, key: str, config: ConfigRecord | None) -> RecordDict:
    """Add the config of a user's own handlers and mods to a request, under the key that Flower's strategies use.

    As with these, it says the ``server-round``: 1, unless the user says another.
    """
    if key in content:
        raise ReplyError(f"configrecord_key = '{key}' is the name of a record of the request itself: take another")
    content[key] = ConfigRecord({"server-round": 1, **(config or {})})
    return content
