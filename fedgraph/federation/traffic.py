"""How much a run sends: exchanges, and the bytes of the arrays that went down to the nodes and came up from them."""

from __future__ import annotations

from dataclasses import dataclass


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

    def since(self, before: Traffic) -> Traffic:
        """What was added since it was ``before``."""
        return Traffic(**{name: value - getattr(before, name) for name, value in vars(self).items()})

    def per_client(self, clients: int) -> dict[str, float]:
        """Entries of ``summary.json``: mean bytes per client, each on a node of its own."""
        return {
            "bytes_down_per_client": self.bytes_down_alone / clients,
            "bytes_up_per_client": self.bytes_up_alone / clients,
        }
