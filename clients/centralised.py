"""Centralised training on a node that has all clients' data."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from fedgraph.clients.engine.base import CohortClient, derived
from fedgraph.data import pooled
from fedgraph.training import Cohort, num_steps


class CentralisedClient(CohortClient):
    """Trains one model on the pooled examples, with the total number of minibatches of all clients per round."""

    sends: ClassVar[tuple[str, ...]] = ("the parameters of one model, trained on the pooled data of all its clients",)

    def train(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Train; return the model and its loss for every client."""
        result = self.train_from(self.models[:1], cohort=_pool(self.cohort))
        clients = len(self.request.clients)
        return {"parameters": result.parameters.expand(clients, -1)}, {"loss": result.loss.expand(clients)}


def _pool(cohort: Cohort) -> Cohort:
    """Return a single client with the examples of all."""
    return derived(cohort, "pool", lambda: _pooled(cohort))


def _pooled(cohort: Cohort) -> Cohort:
    examples = cohort.data.splits["train"].num_examples
    steps = int(num_steps(examples, cohort.settings, cohort.least_examples).sum())
    settings = cohort.settings.model_copy(update={"local_epochs": None, "local_steps": steps})
    return Cohort(cohort.model, pooled(cohort.data), settings, cohort.seed)
