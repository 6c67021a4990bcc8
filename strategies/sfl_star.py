"""SFL*: structured federated learning with a client graph learned from the models (Chen et al. 2022, eq. 4)."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from fedgraph.federation import Federation
from fedgraph.graph import ClientGraph
from fedgraph.graph.learning import GraphLearner, beside_given, with_row_sums
from fedgraph.methods.sfl import SFLStarSettings
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.base import Replies
from fedgraph.strategies.sfl import SFL
from fedgraph.support.files import State

log = logging.getLogger("fedgraph")

_LARGEST_NORM = 1e18
"""Largest norm of the features that clients are compared by: squares of larger ones overflow in float32."""


class SFLStar(SFL[SFLStarSettings]):
    """SFL over ``A = (1 - beta) A_given + beta A_learned``, or over A_learned only where no graph is given."""

    name = "sfl-star"
    title = "Structured federated learning that learns the client graph (SFL*)"
    needs = "nothing; a client graph ([graph]) may be given"
    needs_graph = False

    def __init__(self, settings: SFLStarSettings, federation: Federation, plan: RunPlan) -> None:
        super().__init__(settings, federation, plan)
        self._learner = GraphLearner(
            clients=len(federation.names),
            learner="released" if self.settings.released else self.settings.learner,
            neighbours=self.settings.neighbours,
            momentum=self.settings.momentum,
            seed=plan.seed,
        )

    @property
    def takes_means(self) -> bool:
        """True: a learned graph has no negative weights, and cannot be combined with any."""
        return True

    @property
    def self_loops(self) -> bool:
        """False for the released variant, whose mixture already contains the self loops of the given graph."""
        return not self.settings.released

    def relations(self, server_round: int, replies: Replies) -> ClientGraph:
        """Learn a graph from the replies of this round, and mix it with the given one, for all in ``replies``."""
        features, positions = self._features(replies)
        self._learner.learn(features, positions, server_round)
        learned = self._learner.among(replies.positions)
        given = None if replies.graph is None else replies.graph.dense().double()
        if self.settings.released:
            walk = None if replies.graph is None else replies.graph.normalised("random-walk").dense().double()
            matrix = with_row_sums(learned, 1)
            matrix = matrix if walk is None else torch.lerp(walk, matrix, self.settings.beta)
        elif given is None or not bool((given - given.diag().diag()).any()):
            # A given graph without edges defines no scale for the learned one.
            matrix = with_row_sums(learned, self.settings.neighbours)
        else:
            matrix = beside_given(given, learned, self.settings.beta)
        return _graph(replies.names, matrix)

    def learned_graph(self) -> ClientGraph | None:
        """Return the graph learned last, not mixed or scaled; None before the first one."""
        return _graph(self.federation.names, self._learner.weights) if bool(self._learner.seen.any()) else None

    def state(self) -> State:
        """Return what a resumed run needs, with the state of the graph learner."""
        return {**super().state(), "learner": self._learner.state()}

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned."""
        super().load_state(state)
        self._learner.load_state(state["learner"])

    def _features(self, replies: Replies) -> tuple[Tensor, Tensor]:
        """Return features to compare clients by, ``[comparable, trained parameters]``, and positions ``[comparable]``.

        Running statistics and replies of earlier rounds are not used. Clients with numbers so large that distances
        overflow, for example after a training that diverged, are left out.
        """
        fresh, trained = replies.fresh, slice(0, self.layout.num_trainable)
        features, positions = replies.parameters[fresh, trained], replies.positions[fresh]
        if self.settings.features == "updates":
            read_out = self.settings.start == "read-out"
            features = features - (self.global_model()[trained] if read_out else self.models[positions, trained])
        comparable = torch.linalg.vector_norm(features, dim=1) < _LARGEST_NORM
        if bool(comparable.all()):
            return features, positions
        names = ", ".join(self.federation.names[position] for position in positions[~comparable].tolist())
        log.warning("the client graph is learned without %s: numbers too large to be compared", names)
        return features[comparable], positions[comparable]


def _graph(names: tuple[str, ...], matrix: Tensor) -> ClientGraph:
    return ClientGraph.from_dense(names, matrix, directed=not torch.equal(matrix, matrix.T))
