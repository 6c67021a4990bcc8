"""The server's side of every exchange: nodes and replies in a fixed order, and problems of replies."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedgraph.federation.federation import Present
from fedgraph.federation.traffic import Traffic
from fedgraph.messages import check_content, mark_empty, read_error
from fedgraph.support.errors import IdentityError, ReplyError
from fedgraph.support.pause import GrowingPause, ask_sooner
from fedgraph.support.untrusted import in_short

log = logging.getLogger("fedgraph")

_LONGEST_LOOK = 3.0
"""Seconds between two looks for replies, Flower's own number."""

_LONGEST_TRACEBACK = 20_000
"""Maximum number of characters of a node's error in the log."""

SomeReply = TypeVar("SomeReply")


class PassingGrid(Grid):
    """A grid that passes everything on to another one, for those that do one thing otherwise.

    Parameters
    ----------
    grid : Grid
        Grid that delivers the messages.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def set_run(self, run: Any) -> None:
        """Forward Flower's description of the run to the wrapped grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """Flower's description of the run."""
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Build a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the connected nodes."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages to the wrapped grid."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to the given messages."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Run one exchange; ``timeout`` is in seconds."""
        return self._grid.send_and_receive(messages, timeout=timeout)


def quick(grid: Grid) -> Grid:
    """Return a grid that looks for replies sooner than Flower's, which does so every three seconds."""
    module = type(grid).__module__
    if not module.startswith("flwr."):
        return grid
    ask_sooner(module)
    return QuickGrid(grid)


class QuickGrid(PassingGrid):
    """Flower grid that looks for replies soon and then less often, at least every three seconds."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Run one exchange; ``timeout`` is in seconds."""
        missing = set(self._grid.push_messages(messages))
        pause, replies = GrowingPause(_LONGEST_LOOK), list[Message]()
        ends = time.monotonic() + (float("inf") if timeout is None else timeout)
        while True:
            pulled = list(self._grid.pull_messages(missing))
            replies += pulled
            missing -= {reply.metadata.reply_to_message_id for reply in pulled}
            left = ends - time.monotonic()
            if not missing or left <= 0:
                return replies
            pause.sleep(left)


class OrderedGrid(PassingGrid):
    """Flower grid restricted to the nodes that host clients, in the order of their first client's name.

    Node ids are random and replies arrive in any order, so sums in order of arrival would not be reproducible. All
    traffic after the opening query passes through this grid, which counts exchanges and array bytes.

    Parameters
    ----------
    grid : Grid
        Grid that delivers the messages.
    present : Present
        Clients of the run and the nodes that host them.
    traffic : Traffic, optional
        Counter to continue; a new one by default.

    Attributes
    ----------
    traffic : Traffic
        Traffic so far.
    """

    def __init__(self, grid: Grid, present: Present, traffic: Traffic | None = None) -> None:
        super().__init__(grid)
        self.traffic = Traffic() if traffic is None else traffic
        self._num_clients = {node: len(rows) for node, rows in present.hosts.items()}
        self._rank = {
            node: rank for rank, node in enumerate(sorted(present.hosts, key=lambda n: present.clients_of(n)[0]))
        }

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the connected nodes that host clients, in order."""
        connected = set(self._grid.get_node_ids())
        return [node for node in self._rank if node in connected]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to the given messages, in the order of the nodes."""
        return self._ordered(self._grid.pull_messages(message_ids))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Run one exchange and return the replies in the order of the nodes.

        Replies of nodes without clients are dropped. ``timeout`` is in seconds.
        """
        outgoing = list(messages)
        if not outgoing:
            return []
        for content in {id(message.content): message.content for message in outgoing}.values():
            mark_empty(content)
        self.traffic.exchanges += 1
        replies = self._ordered(self._grid.send_and_receive(outgoing, timeout=timeout))
        self.traffic.count(outgoing, replies, self._hosted)
        return replies

    def _hosted(self, node: int) -> int:
        return self._num_clients.get(node, 1)

    def _ordered(self, replies: Iterable[Message]) -> list[Message]:
        known = [reply for reply in replies if reply.metadata.src_node_id in self._rank]
        return sorted(known, key=lambda reply: self._rank[reply.metadata.src_node_id])


def split_replies(
    replies: Iterable[Message],
    asked: Iterable[int],
    read: Callable[[int, RecordDict], SomeReply],
    timeout: float | None = None,
) -> tuple[dict[int, SomeReply], dict[int, str]]:
    """Separate usable replies from problems.

    Replies are read only here, so an error in a reply is a problem of its node only. The structure of each is checked
    before decoding (:func:`fedgraph.messages.check_content`). Replies of other nodes, and second replies of a node, are
    ignored.

    Parameters
    ----------
    replies : iterable of Message
        Replies in any order.
    asked : iterable of int
        Ids of the nodes of the exchange.
    read : callable
        Checks and unpacks the content of a reply, given the node id and the content. May raise ReplyError or
        IdentityError; any other exception is reported as a malformed reply.
    timeout : float, optional
        ``[experiment] timeout``, if it was the time that nodes had.

    Returns
    -------
    found : dict of int to SomeReply
        Usable replies by node id.
    problems : dict of int to str
        Reasons by node id, for all nodes without a usable reply.
    """
    found: dict[int, SomeReply] = {}
    limit = "" if timeout is None else f", which is {timeout:g} s ([experiment] timeout)"
    problems = dict.fromkeys(asked, f"no reply in time{limit}")
    answered: set[int] = set()
    for reply in replies:
        node = reply.metadata.src_node_id
        if node not in problems or node in answered:
            log.warning("ignored a reply from node %d, which is not in the exchange or has already answered", node)
            continue
        answered.add(node)
        if reply.has_error():
            log.error("node %d: %s", node, in_short(reply.error.reason or "", _LONGEST_TRACEBACK))
        problem = read_error(reply)
        if problem is None:
            try:
                check_content(reply.content)
                found[node] = read(node, reply.content)
            except (ReplyError, IdentityError) as error:
                problem = str(error)
            except Exception as error:
                # Replies are untrusted: their exceptions must not end the run.
                problem = f"malformed reply ({type(error).__name__}: {error})"
        if problem is not None:
            problems[node] = in_short(problem)
    return found, {node: problem for node, problem in problems.items() if node not in found}
