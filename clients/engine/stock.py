"""The client class for stock Flower strategies: trains the global model with their terms."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedgraph.clients.engine.base import CohortClient
from fedgraph.messages.apps import STOCK_TERMS
from fedgraph.training import GradientTerm


class StockClient(CohortClient):
    """Client of stock strategies: FedProx's proximal term, and the clipping of ``fixedclipping_mod``.

    Strategies that only average receive the mean of the node's models (:meth:`CohortClient.averaged`).
    """

    terms: ClassVar[frozenset[str]] = frozenset(STOCK_TERMS)
    sends: ClassVar[tuple[str, ...]] = (
        "the parameters of each client's model; where the strategy only averages (FedAvg, FedProx, FedAdam and "
        "similar) and the server asks for no more, the mean of its clients' models",
    )

    @property
    def _trains_as_usual(self) -> bool:
        return type(self).train is StockClient.train and "clipping-norm" not in self.request.stacked

    def train(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Train; clip each client's update if the strategy sends a ``clipping_norm``."""
        stacked, numbers = super().train()
        bounds = self.request.stacked.get("clipping-norm")
        if bounds is None:
            return stacked, numbers
        update = stacked["parameters"] - self.models
        shares = (bounds / torch.linalg.vector_norm(update, dim=1)).clamp(max=1)
        # A zero update, or one without a bound, is not clipped.
        shares = torch.where(shares.isnan() | (bounds == 0), 1.0, shares)
        clipped = self.models + shares[:, None] * update
        return {"parameters": clipped}, {**numbers, "norm_bit": (shares < 1).double()}

    def gradient_term(self) -> GradientTerm | None:
        """Return FedProx's mu (v - w) if the strategy sends ``proximal-mu`` (Li et al. 2020, eq. 2)."""
        mu = self.request.stacked.get("proximal-mu")
        if mu is None:
            return None
        device = self.cohort.device
        mu, w = mu[:, None].to(device), self.models.to(device)
        return lambda v, clients, batch_weight: mu[clients] * (v - w[clients, : v.shape[1]])
