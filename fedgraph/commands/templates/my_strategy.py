"""MyStrategy: every client moves towards the mean of its neighbours on the client graph, with momentum.

    fedgraph run my_strategy.toml             # on handwritten digits, in seconds
    fedgraph check my_strategy:MyStrategy     # test it against the contract of strategies

The code below runs as it is. Change the settings and ``round`` first.
"""

import torch
from pydantic import Field

from fedgraph.algorithms import Algorithm, Clients, Models, Round, State, written
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


class MyStrategy(Algorithm[MyStrategySettings]):
    """U = Theta + V with V = momentum V + share (A_hat Theta - Theta); rows of the client graph A_hat sum to one."""

    # The experiment must have a table [graph]; delete this if your method needs no graph.
    needs_graph = True
    # For clients that do more than train, such as adding a term to the gradient, write a client class:
    # default_client = "my_strategy:MyClient", a subclass of fedgraph.clients.engine.base.CohortClient.

    def init(self, clients: Clients, models: Models) -> State:
        """Return the state before the first round: each client's model ``[clients, parameters]``, and no velocity."""
        return {"models": models, "velocity": torch.zeros(models.shape)}

    # A round returns the whole state, which is also the checkpoint: tensors, numbers, strings, lists and dicts. If the
    # state is only the models, override ``aggregate(self, clients, state, answers)`` instead, which returns the models
    # of the clients that replied.
    def round(self, clients: Clients, state: State, number: int) -> Round:
        """Let all clients train their models, and return the next state.

        ``answers.parameters`` are the trained models, ``[present, parameters]``, sorted by client name
        (``answers.names``), without replies that are not finite or have another shape; ``answers.num_examples`` are
        their numbers of training examples. Clients may be absent: ``answers.positions`` are the present rows of
        ``[clients, ...]``, and ``answers.graph`` is the graph among them.
        """
        answers = yield self.ask(clients, state)
        assert answers.graph is not None, "see needs_graph"
        theta, present = answers.parameters, answers.positions
        # One step over the graph with self loops. Replace it by your own computation.
        mean = answers.graph.propagate(theta, hops=1, normalisation="random-walk")
        velocity = self.settings.momentum * state["velocity"][present] + self.settings.share * (mean - theta)
        return {
            "models": written(state["models"], present, theta + velocity),
            "velocity": state["velocity"].index_copy(0, present, velocity),
        }
