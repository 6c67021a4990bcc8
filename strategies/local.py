"""Local training only: every client continues from its own model, and nothing is shared. The usual baseline."""

from __future__ import annotations

from torch import Tensor

from fedgraph.strategies.engine.base import CohortStrategy, Replies
from fedgraph.support.settings import Settings


class LocalOnly(CohortStrategy):
    """Returns to each client the model it sent."""

    name = "local"
    title = "Local training only: nothing is shared"

    @classmethod
    def uses_graph(cls, settings: Settings) -> bool:
        """Return whether a subclass has an ``aggregate`` of its own."""
        return cls.aggregate is not LocalOnly.aggregate

    @property
    def aggregates(self) -> bool:
        """Return False: no client can harm another one. A subclass with an ``aggregate`` of its own may mix models."""
        return type(self).aggregate is not LocalOnly.aggregate

    def aggregate(self, server_round: int, replies: Replies) -> Tensor:
        """Return the clients' own models, unchanged."""
        return replies.parameters

    def global_model(self) -> None:
        """Return None: there is no global model."""
        return None
