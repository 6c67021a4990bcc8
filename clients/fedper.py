"""Clients that keep some layers of their model: FedPer, LG-FedAvg, and SFL combined with them."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import TypeVar

from fedgraph.clients.engine.base import CohortClient
from fedgraph.models import PersonalLayers, PersonalLayersSettings, finite_rows, initial_model

_PURPOSE = "personal-layers"


SomePersonalLayers = TypeVar("SomePersonalLayers", bound=PersonalLayersSettings, default=PersonalLayersSettings)


class PersonalLayersClient(CohortClient[SomePersonalLayers]):
    """Trains whole models and sends their shared layers; the method's ``personal-layers`` stay on the node.

    Until a client has trained, its personal layers are those of the initial model.
    """

    sends: ClassVar[tuple[str, ...]] = (
        "the parameters of each client's model after each training, without personal layers",
    )
    keeps: ClassVar[tuple[str, ...]] = (*CohortClient.keeps, "personal layers, in methods that have them")

    @cached_property
    def layers(self) -> PersonalLayers:
        """The shared and personal columns of a model."""
        return PersonalLayers.of(self.cohort.model.layout, self.settings.personal_layers, self.frozen is not None)

    def completed(self, shared: Tensor) -> Tensor:
        """Join shared layers ``[clients, shared]`` and each client's personal ones to ``[clients, parameters]``."""
        if not self.layers.personal.names:
            return super().completed(shared)
        return self.layers.join(shared, self._own, self.frozen)

    def at_server(self) -> Tensor:
        """Return the part of the models that the server has, without personal layers."""
        return self.sent if self.layers.personal.names else super().at_server()

    def train(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Train whole models, keep the personal layers, send the others."""
        stacked, metrics = super().train()
        if self.layers.personal.names:
            shared, personal = self.layers.split(stacked["parameters"])
            # A client whose training diverged keeps its previous layers; its shared layers must not be used, even if
            # they are finite.
            finite = finite_rows(stacked["parameters"])[:, None]
            self.remember(_PURPOSE, {"personal": torch.where(finite, personal, self._own)})
            stacked = {**stacked, "parameters": torch.where(finite, shared, torch.nan)}
        return stacked, metrics

    @cached_property
    def _own(self) -> Tensor:
        initial = initial_model(self.cohort.model, self.assignment.seed)
        _, personal = self.layers.split(initial[None])
        return self.recall(_PURPOSE, {"personal": personal[0]})["personal"]
