"""Strategies with one model for all clients: it goes out, every client trains it, and one comes of what returns."""

from __future__ import annotations

from torch import Tensor

from fedgraph.graph import weighted_mean
from fedgraph.support.files import State
from fedgraph.support.settings import S
from strategies.engine.base import CohortStrategy, Replies


class GlobalModelStrategy(CohortStrategy[S]):
    """Averages the clients' models, weighted by training examples. A method overrides ``update``.

    Unlike with a stock Flower strategy every client's own model is seen, checked and, where it is unusable, left out.
    """

    def update(self, server_round: int, replies: Replies) -> Tensor:
        """The next global model ``[parameters]``: by default that of FedAvg (McMahan et al. 2017, algorithm 1)."""
        return weighted_mean(replies.parameters, replies.num_examples)

    def aggregate(self, server_round: int, replies: Replies) -> Tensor:
        """The next global model, a row for each client."""
        return self.update(server_round, replies).expand(len(replies.names), -1)

    def write_back(self, replies: Replies, models: Tensor) -> None:
        """The global model is for everybody, also for those who were absent."""
        self.replace_models(models)

    def outgoing(self, server_round: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The global model, once."""
        return {}, {"parameters": self.global_model()}

    def global_model(self) -> Tensor:
        """The global model, ``[parameters]``."""
        return self.models[0]

    def replace_models(self, models: Tensor) -> None:
        """Go on with another model; all rows are the same."""
        self.models = models[:1].expand(len(self.federation.names), -1)

    def state(self) -> State:
        """The global model, once."""
        return {**super().state(), "models": self.models[:1]}

    def load_state(self, state: State) -> None:
        """Take back what ``state`` gave."""
        super().load_state(state)
        self.replace_models(state["models"])
