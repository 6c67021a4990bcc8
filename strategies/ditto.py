"""Ditto: FedAvg, beside which every client trains a model of its own that stays close to the global one.

Li et al., Ditto: Fair and Robust Federated Learning Through Personalization (ICML 2021), algorithm 1.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from fedgraph.federation import Federation
from fedgraph.methods.second_training import second_training
from fedgraph.runs import RunPlan
from fedgraph.support.settings import Settings
from strategies.engine.global_model import GlobalModelStrategy


class DittoSettings(Settings):
    """``[ditto]``.

    lambda_personal : weight of half the squared distance between a client's own model and the global one; 0 leaves
                      the clients on their own. The paper searches 0.05 to 2.
    personal_epochs, personal_steps : passes over a client's examples, or minibatches, on which its own model is
                      trained in a round; by default those of ``[train]``.
    """

    lambda_personal: float = Field(default=0.1, ge=0)
    personal_epochs: int | None = Field(default=None, ge=0)
    personal_steps: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _epochs_or_steps(self) -> DittoSettings:
        if self.personal_epochs is not None and self.personal_steps is not None:
            raise ValueError("give either personal-epochs or personal-steps, not both")
        return self


class Ditto(GlobalModelStrategy):
    """What the server sees is FedAvg; the clients' own models, which are what is measured, stay with them."""

    settings_type: ClassVar[type[Settings]] = DittoSettings

    def __init__(self, settings: Settings, federation: Federation, plan: RunPlan) -> None:
        super().__init__(settings, federation, plan)
        second_training(plan.train, "[ditto]", self.settings.personal_epochs, self.settings.personal_steps)

    @property
    def restorable(self) -> bool:
        """The clients' own models are not here."""
        return False
