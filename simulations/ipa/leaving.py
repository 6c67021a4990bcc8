"""Peers that leave, for `fedgraph reproduce ipa-leaving`: after half of the rounds one of them answers no more.

Each client has a node to itself, so that nobody else is lost with it. What it has left at the server stays there.
"""

from __future__ import annotations

from fedgraph.clients.ditto import DittoClient
from fedgraph.clients.engine.base import CohortClient
from fedgraph.clients.feddyn import DriftClient
from fedgraph.clients.ipa import IPAClient
from fedgraph.clients.pfedgraph import PFedGraphClient
from fedgraph.messages import WorkReply
from fedgraph.support.errors import ReplyError

WHO, LAST = "client-2", 50
"""Who leaves, and after which round: it takes the model that it has then with it."""


class Leaving(CohortClient):
    """Clients of FedAvg, of whom one leaves."""

    def reply(self) -> WorkReply:
        """Answer as ever, or raise ReplyError for who has left."""
        if WHO in self.request.clients and self.request.round > LAST:
            raise ReplyError(f"{WHO} has left after round {LAST}")
        return super().reply()


class LeavingPeers(Leaving, IPAClient):
    """Peers of IPA."""


class LeavingDitto(Leaving, DittoClient):
    """Clients of Ditto."""


class LeavingDrift(Leaving, DriftClient):
    """Clients of FedDyn."""


class LeavingPFedGraph(Leaving, PFedGraphClient):
    """Clients of pFedGraph."""
