"""The network traffic of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, Message

_ONCE_PER_NODE = frozenset({"shared", "arrays", "frozen"})
"""Records that a node receives or sends once for all its clients; all other records have arrays per client."""


@dataclass
class Traffic:
    """Traffic between server and nodes, as it was and as it would be with a node for every client.

    An array sent to several nodes counts for each of them. Names, settings and metrics (a few kilobytes per node) and
    the overhead of the transport are not counted, so that all runs of an experiment report the same numbers.

    Attributes
    ----------
    exchanges : int
        Requests with their replies; the opening query counts once, however often it had to be asked.
    bytes_down : int
        Bytes of the arrays in all requests as Flower encodes them: the numbers, and about 128 bytes per array.
    bytes_up : int
        The same for all replies that came, usable or not, including label counts in the opening query.
    bytes_down_alone, bytes_up_alone : int
        The same if every client had its own node, regardless of the nodes of this run: a model that a node gets
        once for all its clients counts for each of them, as does the one mean that a node of a stock strategy returns.
        These numbers describe the method; ``bytes_down`` and ``bytes_up`` also depend on which clients share a node.
        Candidates of ``sfl-cold-start``, which not all clients need, count for each client.
    """

    exchanges: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    bytes_down_alone: int = 0
    bytes_up_alone: int = 0

    def count(
        self, sent: Iterable[Message], received: Iterable[Message], hosted: Callable[[int], int] = lambda node: 1
    ) -> None:
        """Add the requests and replies of an exchange.

        Parameters
        ----------
        sent, received : iterable of Message
            Requests to nodes, and their replies.
        hosted : callable, optional
            Returns the number of clients of a node, given its id; by default 1. A request that names clients counts for
            these only.
        """
        requested: dict[int, int] = {}
        for message in sent:
            node = message.metadata.dst_node_id
            requested[node] = _clients_named(message) or hosted(node)
            once, own = _array_bytes(message)
            self.bytes_down += once + own
            self.bytes_down_alone += requested[node] * once + own
        for message in received:
            once, own = _array_bytes(message)
            self.bytes_up += once + own
            self.bytes_up_alone += requested.get(message.metadata.src_node_id, 1) * once + own

    def since(self, before: Traffic) -> Traffic:
        """Return the traffic added since the counter was ``before``."""
        return Traffic(**{name: value - getattr(before, name) for name, value in vars(self).items()})

    def per_client(self, clients: int) -> dict[str, float]:
        """Return the mean bytes per client, each on its own node, as entries of ``summary.json``."""
        return {
            "bytes_down_per_client": self.bytes_down_alone / clients,
            "bytes_up_per_client": self.bytes_up_alone / clients,
        }


def _clients_named(message: Message) -> int:
    config: Any = message.content.config_records.get("config", {}) if message.has_content() else {}
    named = config.get("clients")
    return len(named) if isinstance(named, list) else 0


def _array_bytes(message: Message) -> tuple[int, int]:
    """Return the bytes of the arrays that a node's clients share, and of the arrays that each client has for itself."""
    once = own = 0
    for name, record in message.content.items() if message.has_content() else ():
        if isinstance(record, ArrayRecord):
            size = sum(len(array.data) for array in record.values())
            once, own = (once + size, own) if name in _ONCE_PER_NODE else (once, own + size)
    return once, own
