"""FedAvg whose clients do not start from one model: each trains a model of its own first, and the mean is of those.

Gorbett, Shirazi, Ray: Cross-Silo Federated Learning Across Divergent Domains with Iterative Parameter Alignment (IEEE
Big Data 2023), section IV.B: averages of models with different initialisations do not do well.
"""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from strategies.engine.global_model import GlobalModelStrategy


class FedAvgOwnStart(GlobalModelStrategy):
    """Federated averaging after a first round that every client begins with a model drawn for itself."""

    def begin(self, initial_arrays: ArrayRecord) -> None:
        """A model drawn for each client."""
        super().begin(initial_arrays)
        assert self.plan.draw is not None
        self.models = torch.stack([self.plan.draw(name) for name in self.federation.names])

    def outgoing(self, server_round: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Everybody's own model as long as they differ, which is in the first round, then the global one."""
        differ = bool((self.models != self.models[:1]).any())
        return ({"parameters": self.models}, {}) if differ else super().outgoing(server_round)

    def adopt(self, models: Tensor) -> None:
        """Go on with one model for all, or with those that they started from."""
        self.models = models.expand(len(self.federation.names), -1)
