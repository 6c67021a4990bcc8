"""pFedGraph: each client's model is a mixture of all, by a collaboration graph inferred from models and sizes.

Ye, Ni, Wu, Chen, Wang: Personalized Federated Learning with Inferred Collaboration Graphs (ICML 2023).
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from fedgraph.algorithms.algorithm import Algorithm
from fedgraph.algorithms.exchange import Clients, Round, State
from fedgraph.algorithms.model_rows import Models, matrix, mixed
from fedgraph.graph import ClientGraph
from fedgraph.support.settings import Settings

_ALIKE = 0.9
"""Changes with a larger cosine count as equal, as in the released program."""


class PFedGraphSettings(Settings):
    """``[pfedgraph]``.

    Attributes
    ----------
    alpha : strength of the pull of mixture weights towards the shares of training examples: a very large alpha is
            FedAvg; near 0 a client only mixes models that changed in the same direction.
    lambda_similarity : weight of the cosine between a client's model and its mixture in its loss.
    """

    alpha: float = Field(default=0.8, gt=0, allow_inf_nan=False)
    lambda_similarity: float = Field(default=0.01, ge=0, allow_inf_nan=False)


class PFedGraph(Algorithm[PFedGraphSettings]):
    """``theta_i <- sum_j w_ij theta_j``, where ``w_i`` minimises ``alpha ||w_i - p||^2 - sum_j w_ij s_ij``.

    ``w_i`` has no negative entries and adds up to 1; p are the clients' shares of all training examples, and s_ij is
    the cosine between the changes of the models of i and j since the start of the run. Clients that are absent are in
    no mixture, and keep their models. The state has the graph w as ``weights``, float64 ``[clients, clients]``; rows of
    clients that were never present are 0.
    """

    name = "pfedgraph"
    title = "Personalised mixtures over a collaboration graph inferred from models and sizes (pFedGraph)"
    paper = "https://proceedings.mlr.press/v202/ye23b.html"
    default_client = "fedgraph.clients.pfedgraph:PFedGraphClient"

    @classmethod
    def uses_graph(cls, settings: PFedGraphSettings) -> bool:
        """See :class:`Algorithm`: the graph is inferred."""
        return False

    def init(self, clients: Clients, models: Models) -> State:
        """Return the models, the initial one for measuring changes, and no graph yet."""
        first = matrix(models, torch.zeros(1, dtype=torch.int64))[0, : clients.layout.num_trainable]
        weights = torch.zeros(len(clients), len(clients), dtype=torch.float64)
        return {"models": models, "initial": first.clone(), "weights": weights}

    def round(self, clients: Clients, state: State, number: int) -> Round:
        """Infer the graph among the clients present, and mix their models over it."""
        answers = yield self.ask(clients, state)
        present = answers.positions
        changes = normalize(answers.parameters[:, : clients.layout.num_trainable] - state["initial"], dim=1)
        likeness = (changes @ changes.T).double()
        likeness = torch.where(likeness > _ALIKE, 1.0, likeness)
        sizes = answers.num_examples.double()
        shares = sizes / sizes.sum().clamp(min=1)
        weights = onto_simplex(shares + likeness / (2 * self.settings.alpha))
        graph = state["weights"].clone()
        graph[present] = 0.0
        graph[present[:, None], present] = weights
        models = mixed(state["models"], present, answers.models, lambda rows: weights.to(rows) @ rows)
        return {**state, "weights": graph, "models": models}

    def learned_graph(self, clients: Clients, state: State) -> ClientGraph | None:
        """Return the collaboration graph: an edge from j to i has the weight of j's model in the mixture of i."""
        if not bool(state["weights"].any()):
            return None
        return ClientGraph.from_dense(clients.names, state["weights"].float(), directed=True)


def onto_simplex(rows: Tensor) -> Tensor:
    """Return the nearest points without negative entries that add up to 1.

    Held, Wolfe, Crowder: Validation of Subgradient Optimization (Mathematical Programming 6, 1974): the entries above a
    threshold, less the threshold. Returns ``[rows, entries]``.

    Parameters
    ----------
    rows : ``[rows, entries]``.
    """
    ranked = rows.sort(dim=1, descending=True).values
    counts = torch.arange(1, rows.shape[1] + 1, device=rows.device)
    thresholds = (ranked.cumsum(1) - 1) / counts
    kept = (ranked > thresholds).sum(1, keepdim=True).clamp(min=1)
    return (rows - thresholds.gather(1, kept - 1)).clamp(min=0)
