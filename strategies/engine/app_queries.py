"""Queries of custom ClientApps, with one client per node; failing clients are skipped."""

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
    """Wait for enough nodes, and return their ids.

    Raises RunError when there are too few and no more may connect, or at the timeout.

    Parameters
    ----------
    grid : grid that connects to the nodes.
    timeout : seconds to wait; by default unlimited, as in Flower's strategies.
    """
    deadline = time.monotonic() + timeout
    while len(nodes := sorted(grid.get_node_ids())) < least:
        if not nodes_may_come(grid) or time.monotonic() > deadline:
            raise RunError(
                f"{len(nodes)} nodes are connected, fewer than min_available_nodes = {least}: start more, or lower "
                "min_available_nodes"
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
    """Query nodes, and return their answers, read by ``read``, by client name, sorted.

    Nodes without a usable answer, and all nodes that answer with the same name, are skipped with an error in the log.

    Parameters
    ----------
    grid : grid that connects to the nodes.
    message_type : Flower's message type, such as ``query``.
    read : checks and unpacks the content of an answer; raises ReplyError.
    names : known names of the clients by node id; names from answers are added.
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
            f"another node has the name '{names[node]}' too: set a different one for each (node config client)"
        )
    for node, problem in sorted(problems.items()):
        known = f"client '{names[node]}' (node {node})" if node in names else f"node {node}"
        log.error("going on without %s: %s", known, problem)
    return {names[node]: found[node] for node in sorted(found, key=names.__getitem__) if node not in problems}


def with_config(content: RecordDict, key: str, config: ConfigRecord | None) -> RecordDict:
    """Add the config of a user's own handlers and mods to a request, under the key that Flower's strategies use.

    As in these, it has a ``server-round``, 1 unless the user sets it.
    """
    if key in content:
        raise ReplyError(f"configrecord_key = '{key}' is the name of a record of the request: use another")
    content[key] = ConfigRecord({"server-round": 1, **(config or {})})
    return content
