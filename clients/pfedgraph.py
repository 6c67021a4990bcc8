"""pFedGraph on the client: local training with a cosine term towards the mixture (Ye et al. 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedgraph.algorithms.pfedgraph import PFedGraphSettings
from fedgraph.clients.engine.base import CohortClient
from fedgraph.training import GradientTerm


class PFedGraphClient(CohortClient[PFedGraphSettings]):
    """Minimises ``L_i(v) - lambda cos(v, u_i)``, where u_i is the mixture that client i received.

    The released program has the opposite sign of the cosine, which pushes models away from their mixtures.
    """

    def gradient_term(self) -> GradientTerm | None:
        """Return ``-lambda (u / ||u|| - cos(v, u) v / ||v||) / ||v||``, per client; none in the first round."""
        weight = self.settings.lambda_similarity
        if weight == 0 or self.request.round == 1:
            return None
        trainable = self.cohort.model.layout.num_trainable
        u = torch.nn.functional.normalize(self.models[:, :trainable].to(self.cohort.device), dim=1)

        def term(v: Tensor, clients: slice | Tensor, batch_weight: Tensor) -> Tensor:
            length = torch.linalg.vector_norm(v, dim=1, keepdim=True).clamp(min=1e-12)
            direction, towards = v / length, u[clients]
            cosine = (direction * towards).sum(1, keepdim=True)
            return -weight * (towards - cosine * direction) / length

        return term
