"""A client graph learned round after round from the updates of the clients present, and remembered for those absent."""

from __future__ import annotations

import logging
from typing import Literal

import torch
from torch import Tensor

from fedgraph.graph.learning.encoder import GraphEncoder, fit_encoder, largest_per_row, released_weights
from fedgraph.graph.learning.kernel import kernel_graph
from fedgraph.graph.learning.neighbours import off_diagonal_mean
from fedgraph.graph.learning.smoothness import smooth_graph
from fedgraph.graph.pairwise import squared_distances
from fedgraph.support.errors import GraphError
from fedgraph.support.files import State
from fedgraph.support.randomness import generator
from fedgraph.support.threads import pinned_threads

log = logging.getLogger("fedgraph")

LearnerName = Literal["smoothness", "kernel", "encoder", "released"]

_WIDTH, _WIDTH_PER_NEIGHBOUR = 40, 15
"""Embeddings are as wide as in MTGNN, or wider where that is too little to separate so many neighbours from others."""


class GraphLearner:
    """Learner of a graph over N clients, from features such as their parameters.

    The squared distances of a round are divided by their mean, so that rounds are comparable while models change less
    and less, and averaged over rounds. If only some clients are present, weights and distances among them are learned
    and all others stay as they were.

    Parameters
    ----------
    clients : int
        N.
    learner : {"smoothness", "kernel", "encoder", "released"}
        One of the modules of these names, or ``released``: the released program of SFL, with neither memory nor
        neighbours.
    neighbours : int
        Approximate number of neighbours of a client.
    momentum : float
        Weight of earlier rounds in the average of distances; 0 forgets them.
    seed : int
        Of the run; the encoder draws from it.

    Attributes
    ----------
    weights : Tensor
        A, float64 ``[N, N]``, non-negative, with zeros on the diagonal and where nothing is known.
    seen : Tensor
        Clients that were present when the graph was learned, bool ``[N]``.
    """

    def __init__(
        self, clients: int, learner: LearnerName, neighbours: int = 8, momentum: float = 0.0, seed: int = 0
    ) -> None:
        self.learner = learner
        self.neighbours = neighbours
        self.momentum = momentum
        self.seed = seed
        self.weights = torch.zeros(clients, clients, dtype=torch.float64)
        """A, ``[N, N]``: non-negative, zero diagonal; zero where nothing is known."""
        self.distances = torch.full((clients, clients), torch.nan, dtype=torch.float64)
        self.seen = torch.zeros(clients, dtype=torch.bool)
        """Clients that were present when the graph was learned, ``[N]``."""
        self.encoder: GraphEncoder | None = None
        if learner == "encoder":
            width = max(_WIDTH, _WIDTH_PER_NEIGHBOUR * neighbours)
            self.encoder = GraphEncoder(clients, generator(seed, "client graph"), width=width)

    def learn(self, features: Tensor, positions: Tensor, server_round: int) -> None:
        """Learn the weights among the clients at ``positions``.

        Raises GraphError for features that are not finite and for a wrong number of rows.

        Parameters
        ----------
        features : Tensor
            ``[present, width]``, a row for each of them.
        positions : Tensor
            int64 ``[present]``.
        server_round : int
            Seeds the learner ``released``.
        """
        if features.ndim != 2 or len(features) != len(positions):
            raise GraphError(f"a row of features per client, {len(positions)}, is expected; got {list(features.shape)}")
        self.seen[positions] = True
        if len(positions) < 2:
            return
        distances = self._remembered(squared_distances(features).double().cpu(), positions)
        # Matrices this small gain nothing from more cores, and the number of cores would change the last bits.
        with pinned_threads(1):
            weights = self._weights(distances, positions, server_round)
        self.weights[positions[:, None], positions] = weights.double()

    def among(self, positions: Tensor) -> Tensor:
        """Return the weights among some clients, float64 ``[present, present]``."""
        return self.weights[positions[:, None], positions]

    def state(self) -> State:
        """Return everything that a resumed run needs to continue as if it had never stopped."""
        encoder = {} if self.encoder is None else dict(self.encoder.state_dict())
        return {"weights": self.weights, "distances": self.distances, "seen": self.seen, "encoder": encoder}

    def load_state(self, state: State) -> None:
        """Restore the output of :meth:`state`."""
        self.weights, self.distances, self.seen = state["weights"], state["distances"], state["seen"]
        if self.encoder is not None:
            self.encoder.load_state_dict(state["encoder"])

    def _remembered(self, distances: Tensor, positions: Tensor) -> Tensor:
        """Return the average over rounds; for pairs that were never present together the distance of this round."""
        if not bool(distances.isfinite().all()):
            raise GraphError("a client graph cannot be learned from features that are not finite")
        distances = distances / (off_diagonal_mean(distances) or 1.0)
        earlier = self.distances[positions[:, None], positions]
        averaged = torch.where(earlier.isnan(), distances, torch.lerp(distances, earlier, self.momentum))
        self.distances[positions[:, None], positions] = averaged
        return averaged

    def _weights(self, distances: Tensor, positions: Tensor, server_round: int) -> Tensor:
        if self.learner == "released":
            return released_weights(distances.sqrt(), generator(self.seed, "client graph", server_round))
        if self.learner == "smoothness":
            return smooth_graph(distances, self.neighbours).weights
        target = kernel_graph(distances, self.neighbours)
        if self.encoder is None:
            return target
        fit = fit_encoder(self.encoder, target, positions)
        log.debug("round %d: the graph encoder is off by %.2f after %d steps", server_round, fit.error, fit.steps)
        # Edges come in both directions, so a row may have more of them than ``neighbours``.
        widest = int((target > 0).sum(dim=1).max())
        return largest_per_row(self.encoder(positions).detach(), widest)
