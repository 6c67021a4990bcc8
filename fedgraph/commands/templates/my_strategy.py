"""MyStrategy: every client moves towards the mean of its neighbours on the client graph, with momentum.

    fedgraph run my_strategy.toml             # on handwritten digits, in seconds
    fedgraph check my_strategy:MyStrategy     # whether it does what every run relies on

What is below runs as it is. Change the settings and ``round`` first; all else may stay, or go.
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

    # The experiment must have a table [graph]; leave this out if your method needs no graph.
    needs_graph = True
    # What clients do besides training, such as adding a term to the gradient, is a class of its own:
    # default_client = "my_strategy:MyClient", a subclass of fedgraph.clients.engine.base.CohortClient.

    def init(self, clients: Clients, models: Models) -> State:
        """Return what is remembered before the first round: each client's model ``[clients, parameters]``, no move."""
        return {"models": models, "velocity": torch.zeros(models.shape)}

    # What a round returns is all that is remembered, and the checkpoint from which a run that was stopped goes on:
    # tensors, numbers, strings, lists and dicts. A method that remembers nothing but models needs no round of its own:
    # it overrides ``aggregate(self, clients, state, answers)``, which returns the models of those who have answered.
    def round(self, clients: Clients, state: State, number: int) -> Round:
        """Have all clients train their models, and return the next state.

        ``answers.parameters`` are the trained models, ``[present, parameters]``, sorted by the names of their clients
        (``answers.names``); what is not finite or of another shape was left out. ``answers.num_examples`` has how many
        training examples they have. Clients may be absent: ``answers.positions`` says which rows of ``[clients, ...]``
        these are, and ``answers.graph`` is the graph among them.
        """
        answers = yield self.ask(clients, state)
        assert answers.graph is not None, "see needs_graph"
        theta, present = answers.parameters, answers.positions
        # One step over the graph, with a self loop for each client. Your own mathematics goes here.
        mean = answers.graph.propagate(theta, hops=1, normalisation="random-walk")
        velocity = self.settings.momentum * state["velocity"][present] + self.settings.share * (mean - theta)
        return {
            "models": written(state["models"], present, theta + velocity),
            "velocity": state["velocity"].index_copy(0, present, velocity),
        }
