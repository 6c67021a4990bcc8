"""Local training only: every client continues from its own model, and nothing is shared. The usual baseline."""

from __future__ import annotations

from torch import Tensor

from strategies.engine.base import CohortStrategy, Replies


class LocalOnly(CohortStrategy):
    """Returns to each client the model it sent."""

    name = "local"
    title = "Local training only: nothing is shared"
    mixes_models = False

    def aggregate(self, server_round: int, replies: Replies) -> Tensor:
        """Return the clients' own models, unchanged."""
        return replies.parameters

    def global_model(self) -> None:
        """Return None: there is no global model."""
        return None
