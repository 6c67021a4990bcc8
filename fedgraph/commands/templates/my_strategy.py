"""MyStrategy: every client moves towards the mean of its neighbours on the client graph, with momentum.

    fedgraph run my_strategy.toml             # on handwritten digits, in seconds
    fedgraph check my_strategy:MyStrategy     # whether it does what every run relies on

What is below runs as it is. Change the settings and ``aggregate`` first; all else may stay, or go.
"""

import torch
from flwr.app import ArrayRecord
from pydantic import Field

from fedgraph.strategies.engine.base import CohortStrategy, Replies
from fedgraph.support.files import State
from fedgraph.support.settings import Settings


# The keys of the table [MyStrategy] of an experiment. Types and bounds are checked, unknown keys refused.
class MyStrategySettings(Settings):
    """The table ``[MyStrategy]``.

    Attributes
    ----------
    share    : how far a client moves towards its neighbours, from 0 (not at all) to 1 (all the way).
    momentum : share of the last move that is added to the next; 0 for none.
    """

    share: float = Field(default=0.5, ge=0, le=1)
    momentum: float = Field(default=0.2, ge=0, lt=1)


class MyStrategy(CohortStrategy[MyStrategySettings]):
    """U = Theta + V with V = momentum V + share (A_hat Theta - Theta); rows of the client graph A_hat sum to one."""

    # The experiment must have a table [graph]; leave this out if your method needs no graph.
    needs_graph = True
    # What clients do besides training, such as adding a term to the gradient, is a class of its own:
    # default_client = "my_strategy:MyClient", a subclass of fedgraph.clients.engine.base.CohortClient.

    def aggregate(self, server_round: int, replies: Replies) -> torch.Tensor:
        """Return the next model of every client in ``replies``, ``[present, parameters]``.

        ``replies.parameters`` are the trained models, ``[present, parameters]``, sorted by the names of their clients
        (``replies.names``); what is not finite or of another shape was left out. ``replies.num_examples`` has how many
        training examples they have. Clients may be absent: ``replies.positions`` says which rows of ``[clients, ...]``
        these are, and ``replies.graph`` is the graph among them.
        """
        assert replies.graph is not None, "see needs_graph"
        theta = replies.parameters
        # One step over the graph, with a self loop for each client. Your own mathematics goes here.
        mean = replies.graph.propagate(theta, hops=1, normalisation="random-walk")
        last = self._velocity[replies.positions]
        velocity = self.settings.momentum * last + self.settings.share * (mean - theta)
        self._velocity[replies.positions] = velocity
        return theta + velocity

    # Called once, at the beginning of a run, with the initial model of all clients.
    def initialise(self, initial_arrays: ArrayRecord) -> None:
        """Start with the same model everywhere, and with no move."""
        super().initialise(initial_arrays)
        self._velocity = torch.zeros_like(self.models)

    # A run that was stopped goes on from its last checkpoint: all that the strategy remembers from round to round
    # belongs in it, as tensors, numbers, strings, lists and dicts. A strategy that remembers nothing needs neither.
    def state(self) -> State:
        """Return the models, and what is remembered beside them."""
        return {**super().state(), "velocity": self._velocity}

    def load_state(self, state: State) -> None:
        """Restore what ``state`` returned."""
        super().load_state(state)
        self._velocity = state["velocity"].clone()
