"""Ditto on the client: trains the global model as FedAvg, and a personal one.

Li et al. 2021, algorithm 1.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from fedgraph.algorithms.global_model import DittoSettings
from fedgraph.clients.engine.base import CohortClient
from fedgraph.models import finite_rows
from fedgraph.training import GradientTerm, TrainResult

_PURPOSE = "personal-model"


class DittoClient(CohortClient[DittoSettings]):
    """Evaluates v_i, which minimises L_i(v) + lambda/2 ||v - w||^2 with w the global model received.

    Until a client has trained, its v_i is the global model.
    """

    keeps: ClassVar[tuple[str, ...]] = (*CohortClient.keeps, "each client's personal model")

    @cached_property
    def w(self) -> Tensor:
        """The global model, one row per client."""
        return super().received()

    def received(self) -> Tensor:
        """Return v_i ``[clients, parameters]``."""
        return torch.where(self._kept["trained"][:, None] > 0, self._kept["parameters"], self.w)

    def train(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Train and return the global model; train and keep v_i. The loss is that of v_i."""
        result, personal = self.train_from(self.w), self.train_personal()
        usable = (personal.steps > 0) & finite_rows(personal.parameters)
        kept = {
            "parameters": torch.where(usable[:, None], personal.parameters, self.models),
            "trained": torch.where(usable, 1.0, self._kept["trained"]),
        }
        self.remember(_PURPOSE, kept)
        return {"parameters": result.parameters}, {"loss": personal.loss}

    def train_personal(self) -> TrainResult:
        """Train one round from v_i, with the same order of examples as the global model."""
        return self.train_from(self.models, self.pull(), purpose="personal-optimiser")

    def pull(self) -> GradientTerm | None:
        """Return lambda (v - w)."""
        weight = self.settings.lambda_personal
        if weight == 0:
            return None
        w = self.w[0].to(self.cohort.device)
        return lambda v, clients, batch_weight: weight * (v - w[: v.shape[1]])

    @cached_property
    def _kept(self) -> dict[str, Tensor]:
        return self.recall(_PURPOSE, {"parameters": self.w[0], "trained": torch.tensor(0.0)})
