"""How much a run sends: exchanges, and the bytes of the arrays that went down to the nodes and came up from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, Message

_ONCE_PER_NODE = frozenset({"shared", "arrays"})
"""Records of which a node gets or gives one for all its clients: in the others, every client has arrays of its own."""


@dataclass
class Traffic:
    """What went between the server and its nodes, and what would have gone with a node for every client.

    exchanges  : the opening query is one, however often it had to be asked.
    bytes_down : bytes of the arrays in all requests as Flower encodes them: the numbers, and about 128 bytes per array.
    bytes_up   : the same of all replies that came, usable or not; label counts in the opening query are among them.
    bytes_down_alone, bytes_up_alone : the same if every client had a node of its own, whatever the nodes of this run
                 were: a model that a node gets once for all its clients counts for each of them, as does the one mean
                 that a node of a stock strategy answers with. It is what a method takes; what a run took depends on who
                 shares a node too. Candidates of ``sfl-cold-start``, which not all clients need, count for each.

    An array that goes to several nodes counts for each of them. Names, settings and metrics (a few kilobytes per node)
    and what the transport adds are not counted, so that runs of the same experiment have the same numbers.
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

        hosted : how many clients a node has; a request that names clients speaks to those alone.
        """
        asked: dict[int, int] = {}
        for message in sent:
            node = message.metadata.dst_node_id
            asked[node] = _clients_named(message) or hosted(node)
            once, own = _array_bytes(message)
            self.bytes_down += once + own
            self.bytes_down_alone += asked[node] * once + own
        for message in received:
            once, own = _array_bytes(message)
            self.bytes_up += once + own
            self.bytes_up_alone += asked.get(message.metadata.src_node_id, 1) * once + own

    def since(self, before: Traffic) -> Traffic:
        """What was added since it was ``before``."""
        return Traffic(**{name: value - getattr(before, name) for name, value in vars(self).items()})

    def per_client(self, clients: int) -> dict[str, float]:
        """Entries of ``summary.json``: mean bytes per client, each on a node of its own."""
        return {
            "bytes_down_per_client": self.bytes_down_alone / clients,
            "bytes_up_per_client": self.bytes_up_alone / clients,
        }


def _clients_named(message: Message) -> int:
    config: Any = message.content.config_records.get("config", {}) if message.has_content() else {}
    named = config.get("clients")
    return len(named) if isinstance(named, list) else 0


def _array_bytes(message: Message) -> tuple[int, int]:
    """Bytes of the arrays that the node's clients have in common, and of those that each has for itself."""
    once = own = 0
    for name, record in message.content.items() if message.has_content() else ():
        if isinstance(record, ArrayRecord):
            size = sum(len(array.data) for array in record.values())
            once, own = (once + size, own) if name in _ONCE_PER_NODE else (once, own + size)
    return once, own
