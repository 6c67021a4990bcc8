"""Methods as algorithms, without Flower: generators of exchanges that map state and answers to the next state.

A Flower strategy or the engine runs them; by hand:

    >>> import torch
    >>> from fedgraph.algorithms import Answers, Clients
    >>> from fedgraph.algorithms.sfl import SFL, SFLSettings
    >>> from fedgraph.graph import ClientGraph
    >>> from fedgraph.models import Layout
    >>> graph, counts = ClientGraph.complete(["a", "b"]), torch.tensor([1, 1])
    >>> clients = Clients(("a", "b"), counts, Layout(("w",), ((1,),)), graph)
    >>> sfl = SFL(SFLSettings(hops=1))
    >>> state = sfl.init(clients, torch.zeros(2, 1))
    >>> round = sfl.round(clients, state, 1)
    >>> next(round).stacked["parameters"].flatten().tolist()          # what the clients get
    [0.0, 0.0]
    >>> trained = {"parameters": torch.tensor([[1.0], [3.0]])}
    >>> answers = Answers(torch.arange(2), clients.names, trained, counts, graph, counts > 0)
    >>> try:
    ...     round.send(answers)
    ... except StopIteration as end:
    ...     end.value["models"].flatten().tolist()                    # what they get next
    [2.0, 2.0]
"""

from fedgraph.algorithms.algorithm import Algorithm
from fedgraph.algorithms.exchange import Answers, Ask, Clients, Evaluation, Round, RunFacts, State, own_splits
from fedgraph.algorithms.global_model import GlobalModel
from fedgraph.algorithms.method import STOCK_CLIENT, Method
from fedgraph.algorithms.model_rows import (
    ModelRows,
    Models,
    check_models,
    check_rows,
    combined,
    filled,
    matrix,
    mixed,
    written,
)
from fedgraph.algorithms.state_types import check_state

__all__ = [
    "STOCK_CLIENT",
    "Algorithm",
    "Answers",
    "Ask",
    "Clients",
    "Evaluation",
    "GlobalModel",
    "Method",
    "ModelRows",
    "Models",
    "Round",
    "RunFacts",
    "State",
    "check_models",
    "check_rows",
    "check_state",
    "combined",
    "filled",
    "matrix",
    "mixed",
    "own_splits",
    "written",
]
