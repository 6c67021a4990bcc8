"""Fine-tuning on the client: evaluates a model after training on the client's own examples."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from typing_extensions import TypeVar

from fedgraph.algorithms.global_model import FineTuningSettings
from fedgraph.clients.engine.base import CohortClient, cohort_with
from fedgraph.support.randomness import derive_seed

SomeFineTuning = TypeVar("SomeFineTuning", bound=FineTuningSettings, default=FineTuningSettings)


class FineTuned(CohortClient[SomeFineTuning]):
    """Mixin before a client class: evaluates fine-tuned copies, with separate moments and order of examples."""

    keeps: ClassVar[tuple[str, ...]] = (*CohortClient.keeps, "the fine-tuned models that were evaluated last")

    def evaluated(self) -> Tensor:
        """Return the models received after each client's fine-tuning, ``[clients, parameters]``."""
        cohort = self.cohort
        tuning = cohort_with(
            cohort, self.settings.training(cohort.settings, "fine-tuning:"), derive_seed(cohort.seed, "fine-tuning")
        )
        # Requests to train round r and to evaluate after round r - 1 evaluate the same models.
        coming = self.request.round if self.request.train else self.request.round + 1
        return tuning.train(self.models, coming).parameters


class FineTuningClient(FineTuned):
    """Trains as FedAvg, and evaluates fine-tuned copies of the global model."""
