"""Clients regularised by their drift from the global model: of FedDyn, and the base class of FedDC's."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import TypeVar

from fedgraph.algorithms.drift import FedDynSettings
from fedgraph.clients.engine.base import CohortClient
from fedgraph.models import finite_rows
from fedgraph.training import GradientTerm, TrainResult

_PURPOSE = "drift"


SomeDriftSettings = TypeVar("SomeDriftSettings", bound=FedDynSettings, default=FedDynSettings)


class DriftClient(CohortClient[SomeDriftSettings]):
    """Minimises ``L_k(v) + alpha/2 ||v - theta + drift_k||^2``, then ``drift_k <- drift_k + v - theta``.

    Up to a constant this is FedDyn's loss (Acar et al. 2021, eq. 1), and FedDC's without its correction of the
    gradient. A round whose reply did not reach the server is ignored. A client that did not train, or diverged, keeps
    its drift.
    """

    keeps: ClassVar[tuple[str, ...]] = (*CohortClient.keeps, "each client's drift, which follows from its sent models")

    @cached_property
    def drift(self) -> Tensor:
        """Drift of each client known to the server, ``[clients, trainable]``."""
        kept, received = self._kept, self.request.stacked["heard"]
        return torch.where(kept["round"] <= received, kept["drift"], kept["before"])

    def gradient_term(self) -> GradientTerm:
        """Return ``alpha (v - theta + drift_k)``."""
        alpha, device = self.settings.alpha, self.cohort.device
        theta, drift = self.request.shared["parameters"].to(device), self.drift.to(device)
        return lambda v, clients, batch_weight: alpha * (v - theta[: v.shape[1]] + drift[clients])

    def train(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Train from theta; return theta_k."""
        result = self.train_from(self.start(), self.gradient_term())
        self.drift_on(result)
        return {"parameters": result.parameters}, {"loss": result.loss}

    def drift_on(self, result: TrainResult) -> None:
        """Remember the drift with and without this round."""
        way = (result.parameters - self.models)[:, : self.drift.shape[1]]
        usable = (result.steps > 0) & finite_rows(result.parameters)
        drift = torch.where(usable[:, None], self.drift + way, self.drift)
        now = torch.full((len(drift), 1), float(self.request.round))
        self.remember(_PURPOSE, {"drift": drift, "before": self.drift, "round": now})

    @cached_property
    def _kept(self) -> dict[str, Tensor]:
        nothing = torch.zeros(self.cohort.model.layout.num_trainable)
        return self.recall(_PURPOSE, {"drift": nothing, "before": nothing, "round": torch.zeros(1)})
