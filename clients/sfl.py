"""SFL on the client: local loss plus distances to the global and personalised model (Chen et al. 2022, eq. 3)."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import TypeVar

from fedgraph.algorithms.sfl import SFLFineTuningSettings, SFLSettings
from fedgraph.clients.fedavg import FineTuned
from fedgraph.clients.fedper import PersonalLayersClient
from fedgraph.training import GradientTerm

SomeSFLSettings = TypeVar("SomeSFLSettings", bound=SFLSettings, default=SFLSettings)


class SFLClient(PersonalLayersClient[SomeSFLSettings]):
    """Minimises L_i(v) + lambda_1 R(v, w) + lambda_2 R(v, u_i), with L_i the mean loss of a minibatch.

    w is the global read-out, u_i the personalised model that client i received; R is the Euclidean norm of the
    difference, or half its square, without personal layers.
    """

    def start(self) -> Tensor:
        """Return the personalised model u_i, or the read-out w for every client."""
        if self.settings.start == "read-out":
            w = self.request.shared["global"]
            return self.completed(w.expand_as(self.request.stacked["parameters"]).contiguous())
        return self.models

    def gradient_term(self) -> GradientTerm | None:
        """Return lambda_1 (v - w) / ||v - w|| + lambda_2 (v - u) / ||v - u||, per client."""
        to_global, to_personal = self.settings.lambda_global, self.settings.lambda_personal
        if to_global == 0 and to_personal == 0:
            return None
        # Columns of trained and shared parameters; in the server's messages, buffers come after them.
        columns, trainable = self.layers.shared_trainable, self.layers.shared.num_trainable
        device = self.cohort.device
        w = self.request.shared["global"][:trainable].to(device) if to_global else None
        u = self.request.stacked["parameters"][:, :trainable].to(device)
        columns = columns if isinstance(columns, slice) else columns.to(device)
        squared = self.settings.distance == "squared"

        def term(v: Tensor, clients: slice | Tensor, batch_weight: Tensor) -> Tensor:
            shared = v[:, columns]
            gradient = to_personal * distance_gradient(shared, u[clients], squared)
            if w is not None:
                gradient += to_global * distance_gradient(shared, w, squared)
            if isinstance(columns, slice):
                return gradient
            return torch.zeros_like(v).index_copy(1, columns, gradient)

        return term


class SFLFineTuningClient(FineTuned[SFLFineTuningSettings], SFLClient[SFLFineTuningSettings]):
    """Trains as SFL, and evaluates copies of the personalised models fine-tuned without the distances."""


def distance_gradient(v: Tensor, centre: Tensor, squared: bool) -> Tensor:
    """Compute the gradient of ||v - centre|| (or half its square) with respect to v, per row; zero where they coincide.

    ``v`` is ``[clients, parameters]``, ``centre`` the same or ``[parameters]``.
    """
    difference = v - centre
    if squared:
        return difference
    norm = torch.linalg.vector_norm(difference, dim=1, keepdim=True)
    return torch.where(norm > 0, difference / norm, torch.zeros_like(difference))
