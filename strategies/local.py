"""Local-only training: every client goes on from its own model, nothing is shared. The floor of every comparison."""

from __future__ import annotations

from torch import Tensor

from strategies.engine.base import CohortStrategy, Replies


class LocalOnly(CohortStrategy):
    """Returns to each client what it sent."""

    name = "local"
    title = "Local training only: nothing is shared"
    mixes_models = False

    def aggregate(self, server_round: int, replies: Replies) -> Tensor:
        """The clients' own models, unchanged."""
        return replies.parameters

    def global_model(self) -> None:
        """There is none: the clients share nothing."""
        return None
