"""Fine-tuning: what is measured is a model after some training on each client's own data; here FedAvg's.

Wang et al., Federated Evaluation of On-device Personalization (2019), section 3; a usual baseline since.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedgraph.federation import Federation
from fedgraph.methods.second_training import second_training
from fedgraph.runs import RunPlan
from fedgraph.support.settings import Settings
from fedgraph.training import TrainSettings
from strategies.engine.global_model import GlobalModelStrategy


class FineTuningSettings(Settings):
    """``[fedavg-ft]``, and part of ``[sfl-ft]``: how a copy of a model is fine-tuned before it is measured.

    local_epochs, local_steps : passes over a client's examples, or minibatches; by default those of ``[train]``.
    learning_rate : the same after every round; by default that of ``[train]`` in the round to come.
    """

    local_epochs: int | None = Field(default=None, ge=0)
    local_steps: int | None = Field(default=None, ge=0)
    learning_rate: float | None = Field(default=None, gt=0)

    def checked_with(self, train: TrainSettings, where: str) -> None:
        """Raise ExperimentError, naming the table ``where``, unless a copy can be trained so beside ``train``."""
        second_training(train, where, self.local_epochs, self.local_steps, self.learning_rate)


class FedAvgFineTuning(GlobalModelStrategy):
    """FedAvg; fine-tuned copies are only measured, and the run folder holds the global model."""

    settings_type: ClassVar[type[Settings]] = FineTuningSettings

    def __init__(self, settings: Settings, federation: Federation, plan: RunPlan) -> None:
        super().__init__(settings, federation, plan)
        self.settings.checked_with(plan.train, "[fedavg-ft]")
