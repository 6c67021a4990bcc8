"""SFL*: structured federated learning with a client graph learned from the models (Chen et al. 2022, eq. 4)."""

from __future__ import annotations

import logging
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedgraph.federation import Federation
from fedgraph.graph import ClientGraph
from fedgraph.graph.learning import GraphLearner, beside_given, with_row_sums
from fedgraph.runs import RunPlan
from fedgraph.support.files import State
from fedgraph.support.settings import Settings
from strategies.engine.base import Replies
from strategies.sfl import SFL, SFLSettings

log = logging.getLogger("fedgraph")

_LARGEST_NORM = 1e18
"""Of what clients are compared by: squares of larger ones overflow in float32."""


class SFLStarSettings(SFLSettings):
    """``[sfl-star]``: the keys of ``[sfl]``, and how the client graph is learned. A given graph is not needed.

    learner     : ``smoothness``: the sparse graph on which the models are smoothest, with nobody left alone (Kalofolias
                  2016); ``kernel``: a Gaussian kernel of the distances to the nearest; ``encoder``: trained embeddings
                  of the clients, as in the paper, fitted to that kernel.
    features    : what is near or far: the trained ``parameters``, or the ``updates``, what training changed in them.
    neighbours  : about how many others a client listens to.
    beta        : with a given graph its share is 1 - beta and that of the learned graph beta, both on one scale: rows
                  of the learned one are scaled to the mean row sum of the given one, self loops left out. Without a
                  given graph the learned one is alone, its rows scaled to add up to neighbours, so that a client
                  counts as much as a neighbour does on average; beta is then not used.
    momentum    : share of earlier rounds in the distances, below 1; 0 looks at this round alone.
    learn_from  : the first round in which the graph is learned. In those before it is the given graph or, without
                  one, everybody listens to everybody.
    learn_every : it is learned again every so many rounds, and whenever a client is there for the first time.
    released    : as for ``[sfl]``; and the graph is what the released program learns: every round a new encoder takes
                  ten steps towards the *distances*, which leaves it random. Its rows are divided by their sum, as are
                  those of the given graph with self loops, and beta of it is mixed in. The learned graph has no self
                  loops: without a given graph a client hears others alone, or itself where it hears nobody. Takes the
                  place of all keys above but beta, and of normalisation.
    """

    learner: Literal["smoothness", "kernel", "encoder"] = "smoothness"
    features: Literal["parameters", "updates"] = "parameters"
    neighbours: int = Field(default=4, ge=1)
    beta: float = Field(default=0.05, ge=0, le=1)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    learn_from: int = Field(default=1, ge=1)
    learn_every: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _released_learns_every_round(self) -> SFLStarSettings:
        fixed = {"learner": "encoder", "features": "parameters", "momentum": 0.0, "learn_from": 1, "learn_every": 1}
        return self.model_copy(update={**fixed, "normalisation": "random-walk"}) if self.released else self


class SFLStar(SFL):
    """SFL over ``A = (1 - beta) A_given + beta A_learned``, or over A_learned alone where no graph is given."""

    settings_type: ClassVar[type[Settings]] = SFLStarSettings
    needs_graph: ClassVar[bool] = False

    def __init__(self, settings: Settings, federation: Federation, plan: RunPlan) -> None:
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
        """A learned graph has no weights below zero, and goes with none."""
        return True

    @property
    def self_loops(self) -> bool:
        """As released, those that the given graph has are in the mixture already, and no other is added."""
        return not self.settings.released

    def relations(self, server_round: int, replies: Replies) -> ClientGraph:
        """Learn from those who sent something this round; the given and the learned graph among all in ``replies``."""
        if server_round < self.settings.learn_from:
            return ClientGraph.complete(replies.names) if replies.graph is None else replies.graph
        features, positions = self._features(replies)
        due = (server_round - self.settings.learn_from) % self.settings.learn_every == 0
        if due or not self._learner.knows(positions):
            self._learner.learn(features, positions, server_round)
        learned = self._learner.among(replies.positions)
        given = None if replies.graph is None else replies.graph.dense().double()
        if self.settings.released:
            walk = None if replies.graph is None else replies.graph.normalised("random-walk").dense().double()
            matrix = with_row_sums(learned, 1)
            matrix = matrix if walk is None else torch.lerp(walk, matrix, self.settings.beta)
        elif given is None or not bool((given - given.diag().diag()).any()):
            # Beside a graph without edges there is no scale to bring the learned one to.
            matrix = with_row_sums(learned, self.settings.neighbours)
        else:
            matrix = beside_given(given, learned, self.settings.beta)
        return _graph(replies.names, matrix)

    def learned_graph(self) -> ClientGraph | None:
        """What was learned last, by itself and unscaled; None before anything was."""
        return _graph(self.federation.names, self._learner.weights) if bool(self._learner.seen.any()) else None

    def state(self) -> State:
        """Also the encoder, and the graph learned last."""
        return {**super().state(), "learner": self._learner.state()}

    def load_state(self, state: State) -> None:
        """Take back what ``state`` gave."""
        super().load_state(state)
        self._learner.load_state(state["learner"])

    def _features(self, replies: Replies) -> tuple[Tensor, Tensor]:
        """What clients are compared by, ``[comparable, trained parameters]``, and their positions ``[comparable]``.

        Running statistics are not looked at, nor are replies of earlier rounds. Clients whose numbers are so large that
        distances to them overflow, such as after a training that diverged, are left out.
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
