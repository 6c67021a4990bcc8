"""FedDC on the client: regularised by its drift, with corrected gradients (Gao et al. 2022, algorithm 1)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from fedgraph.algorithms.drift import FedDCSettings
from fedgraph.clients.feddyn import DriftClient
from fedgraph.clients.scaffold import ScaffoldClient
from fedgraph.training import GradientTerm


class FedDCClient(DriftClient[FedDCSettings], ScaffoldClient[FedDCSettings]):
    """Minimises ``L_i(v) + alpha/2 ||v + h_i - w||^2 + <v, c - c_i>``, and then updates its drift h_i and its c_i."""

    sends: ClassVar[tuple[str, ...]] = ScaffoldClient.sends

    def gradient_term(self) -> GradientTerm:
        """Return ``alpha (v + h_i - w) + c - c_i``."""
        pull, correction = DriftClient.gradient_term(self), ScaffoldClient.gradient_term(self)
        return lambda v, clients, weight: pull(v, clients, weight) + correction(v, clients, weight)

    def train(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Train from w; return the model and the next c_i."""
        result = self.train_from(self.start(), self.gradient_term())
        self.drift_on(result)
        return {"parameters": result.parameters, "control": self.control_on(result)}, {"loss": result.loss}
