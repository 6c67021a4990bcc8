"""Base class of strategies with one model for all clients: all train it, and the server combines the results."""

from __future__ import annotations

from torch import Tensor

from fedgraph.strategies.engine.base import CohortStrategy, Replies
from fedgraph.strategies.engine.loop import check_returned
from fedgraph.support.files import State
from fedgraph.support.settings import S


class GlobalModelStrategy(CohortStrategy[S]):
    """Averages the clients' models, weighted by training examples; a method overrides ``update``.

    Unlike in a stock Flower strategy, every client's own model is seen, checked and, where it is unusable, left out.
    """

    defences = (*CohortStrategy.defences, "average", "trim")

    @classmethod
    def uses_graph(cls, settings: S) -> bool:
        """See :class:`MethodStrategy`: an average does not."""
        return cls.needs_graph

    def update(self, server_round: int, replies: Replies) -> Tensor:
        """Return the next global model ``[parameters]``; by default as FedAvg (McMahan et al. 2017, algorithm 1)."""
        return self.defence.average(replies.parameters, replies.num_examples)

    def aggregate(self, server_round: int, replies: Replies) -> Tensor:
        """Return the next global model, as a row for each client."""
        model = self.update(server_round, replies)
        where = f"{type(self).__name__}.update, in round {server_round}, returned"
        check_returned(where, model, self.models.shape[1:], "a number for each parameter of the global model")
        return model.expand(len(replies.names), -1)

    def write_back(self, replies: Replies, models: Tensor) -> None:
        """Write the global model for all clients, including absent ones."""
        self.replace_models(models)

    def outgoing(self, server_round: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the global model, as one shared tensor."""
        return {}, {"parameters": self.global_model()}

    def global_model(self) -> Tensor:
        """Return the global model, ``[parameters]``."""
        return self.models[0]

    def replace_models(self, models: Tensor) -> None:
        """Continue with another model; all rows are the same."""
        self.models = models[:1].expand(len(self.federation.names), -1)

    def state(self) -> State:
        """Return what a resumed run needs, with the global model once."""
        return {**super().state(), "models": self.models[:1]}

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned."""
        super().load_state(state)
        self.replace_models(state["models"])
