"""pFedGraph: each client's model is a mixture of all, by a collaboration graph inferred from models and sizes.

Ye, Ni, Wu, Chen, Wang: Personalized Federated Learning with Inferred Collaboration Graphs (ICML 2023).
"""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord
from torch import Tensor
from torch.nn.functional import normalize

from fedgraph.federation import Federation
from fedgraph.graph import ClientGraph
from fedgraph.methods.baselines import PFedGraphSettings
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.base import CohortStrategy, Replies
from fedgraph.support.files import State

_ALIKE = 0.9
"""Changes whose cosine is larger count as the same, as in the released program."""


class PFedGraph(CohortStrategy[PFedGraphSettings]):
    """``theta_i <- sum_j w_ij theta_j``, where ``w_i`` minimises ``alpha ||w_i - p||^2 - sum_j w_ij s_ij``.

    ``w_i`` has no negative entries and adds up to 1; p are the clients' shares of all training examples, and s_ij is
    the cosine of what training has changed in the models of i and j since the start of the run. Clients that are absent
    are in no mixture, and keep their models.

    Attributes
    ----------
    weights : Tensor
        The graph w, float64 ``[clients, clients]``; rows of clients that were never present are 0.
    """

    name = "pfedgraph"
    title = "Personalised mixtures over a collaboration graph inferred from models and sizes (pFedGraph)"
    paper = "https://proceedings.mlr.press/v202/ye23b.html"
    default_client = "fedgraph.clients.pfedgraph:PFedGraphClient"

    @classmethod
    def uses_graph(cls, settings: PFedGraphSettings) -> bool:
        """See :class:`MethodStrategy`: the graph is inferred."""
        return False

    def __init__(self, settings: PFedGraphSettings, federation: Federation, plan: RunPlan) -> None:
        super().__init__(settings, federation, plan)
        self.weights = torch.zeros(len(federation.names), len(federation.names), dtype=torch.float64)

    def initialise(self, initial_arrays: ArrayRecord) -> None:
        """Give every client the initial model, from which changes are measured."""
        super().initialise(initial_arrays)
        self.initial = self.models[0, : self.layout.num_trainable].clone()

    def aggregate(self, server_round: int, replies: Replies) -> Tensor:
        """Infer the graph among the clients present, and mix their models over it, ``[present, parameters]``."""
        changes = normalize(replies.parameters[:, : self.layout.num_trainable] - self.initial, dim=1)
        likeness = (changes @ changes.T).double()
        likeness = torch.where(likeness > _ALIKE, 1.0, likeness)
        sizes = replies.num_examples.double()
        shares = sizes / sizes.sum().clamp(min=1)
        weights = onto_simplex(shares + likeness / (2 * self.settings.alpha))
        self.weights[replies.positions] = 0.0
        self.weights[replies.positions[:, None], replies.positions] = weights
        return weights.float() @ replies.parameters

    def learned_graph(self) -> ClientGraph | None:
        """Return the collaboration graph: an edge from j to i has the weight of j's model in the mixture of i."""
        if not bool(self.weights.any()):
            return None
        return ClientGraph.from_dense(self.federation.names, self.weights.float(), directed=True)

    def state(self) -> State:
        """Return what a resumed run needs, with the initial model and the graph."""
        return {**super().state(), "initial": self.initial, "weights": self.weights}

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned."""
        super().load_state(state)
        self.initial, self.weights = state["initial"], state["weights"]


def onto_simplex(rows: Tensor) -> Tensor:
    """Return the nearest points without negative entries that add up to 1.

    Held, Wolfe, Crowder: Validation of Subgradient Optimization (Mathematical Programming 6, 1974): the entries above a
    threshold, less the threshold.

    Parameters
    ----------
    rows : Tensor
        ``[rows, entries]``.

    Returns
    -------
    Tensor
        ``[rows, entries]``.
    """
    ranked = rows.sort(dim=1, descending=True).values
    counts = torch.arange(1, rows.shape[1] + 1, device=rows.device)
    thresholds = (ranked.cumsum(1) - 1) / counts
    kept = (ranked > thresholds).sum(1, keepdim=True).clamp(min=1)
    return (rows - thresholds.gather(1, kept - 1)).clamp(min=0)
