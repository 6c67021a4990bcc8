"""SFL*: structured federated learning with a client graph learned from the models (Chen et al. 2022, eq. 4)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedgraph.algorithms.exchange import Answers, Clients, State
from fedgraph.algorithms.model_rows import Models, matrix
from fedgraph.algorithms.sfl import SFL, SFLSettings
from fedgraph.graph import ClientGraph
from fedgraph.graph.learning import GraphLearner, combine_graphs, with_row_sums

log = logging.getLogger("fedgraph")

_LARGEST_NORM = 1e18
"""Largest norm of the clients' features, whose squares must not overflow in float32."""


class SFLStarSettings(SFLSettings):
    """``[sfl-star]``: the keys of ``[sfl]``, and how the client graph is learned. A given graph is not needed.

    Attributes
    ----------
    learner     : ``smoothness``: the sparse graph without isolated clients on which the models are smoothest
                  (Kalofolias 2016); ``kernel``: a Gaussian kernel of the distances to the nearest; ``encoder``: trained
                  embeddings of the clients, as in the paper, fitted to that kernel.
    features    : what distances are measured on: the trained ``parameters``, or their ``updates`` by training.
    neighbours  : approximate number of neighbours of a client.
    beta        : weight of the learned graph, against 1 - beta for the given graph, both on one scale: rows of the
                  learned one are scaled to the mean row sum of the given one, without self loops. Without a given graph
                    only the learned one is used, with row sums of neighbours, so that a client weighs as much as an
                    average neighbour; beta is then not used.
    momentum    : share of earlier rounds in the distances, below 1; 0 uses this round only.
    released    : as for ``[sfl]``; and the graph is what the released program learns: every round a new encoder takes
                  ten steps towards the *distances*, which leaves it random. Its rows are divided by their sum, as are
                  those of the given graph with self loops, and beta of it is mixed in. The learned graph has no self
                  loops: without a given graph a client receives the models of others only, or its own where it has no
                  neighbour. Replaces all keys above except beta, and normalisation.
    """

    learner: Literal["smoothness", "kernel", "encoder"] = "smoothness"
    features: Literal["parameters", "updates"] = "parameters"
    neighbours: int = Field(default=4, ge=1)
    beta: float = Field(default=0.05, ge=0, le=1)
    momentum: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _released_learns_every_round(self) -> SFLStarSettings:
        fixed = {"learner": "encoder", "features": "parameters", "momentum": 0.0}
        return self.model_copy(update={**fixed, "normalisation": "random-walk"}) if self.released else self


class SFLStar(SFL[SFLStarSettings]):
    """SFL over ``A = (1 - beta) A_given + beta A_learned``, or over A_learned only where no graph is given."""

    name = "sfl-star"
    title = "Structured federated learning that learns the client graph (SFL*)"
    needs = "nothing; a client graph ([graph]) may be given"
    needs_graph = False

    @property
    def takes_means(self) -> bool:
        """True: a learned graph has no negative weights, and cannot be combined with any."""
        return True

    @property
    def self_loops(self) -> bool:
        """False for the released variant, whose mixture contains the self loops of the given graph."""
        return not self.settings.released

    def init(self, clients: Clients, models: Models) -> State:
        """Return the state of SFL, and that of the graph learner."""
        return {**super().init(clients, models), "learner": self.learner(clients).state()}

    def learner(self, clients: Clients, state: State | None = None) -> GraphLearner:
        """Return the graph learner, as a state has left it."""
        settings = self.settings
        learner = GraphLearner(
            clients=len(clients),
            learner="released" if settings.released else settings.learner,
            neighbours=settings.neighbours,
            momentum=settings.momentum,
            seed=clients.seed,
        )
        if state is not None:
            learner.load_state({name: _copied(value) for name, value in state["learner"].items()})
        return learner

    def relations(
        self, clients: Clients, state: State, answers: Answers, number: int
    ) -> tuple[ClientGraph, Mapping[str, object]]:
        """Learn a graph from the answers of this round, and mix it with the given one, for all in ``answers``."""
        learner = self.learner(clients, state)
        learner.learn(*self.features(clients, state, answers), number)
        learned, settings = learner.among(answers.positions), self.settings
        given_graph = None if answers.graph is None else answers.graph.dense().double()
        if settings.released:
            walk = None if answers.graph is None else answers.graph.normalised("random-walk").dense().double()
            weights = with_row_sums(learned, 1)
            weights = weights if walk is None else torch.lerp(walk, weights, settings.beta)
        elif given_graph is None or not bool((given_graph - given_graph.diag().diag()).any()):
            # A given graph without edges defines no scale for the learned one.
            weights = with_row_sums(learned, settings.neighbours)
        else:
            weights = combine_graphs(given_graph, learned, settings.beta)
        return _graph(answers.names, weights), {"learner": learner.state()}

    def learned_graph(self, clients: Clients, state: State) -> ClientGraph | None:
        """Return the graph learned last, not mixed or scaled; None before the first one."""
        learner = self.learner(clients, state)
        return _graph(clients.names, learner.weights) if bool(learner.seen.any()) else None

    def features(self, clients: Clients, state: State, answers: Answers) -> tuple[Tensor, Tensor]:
        """Return features to compare clients by, ``[comparable, trained parameters]``, and positions ``[comparable]``.

        Running statistics and answers of earlier rounds are not used. Clients with numbers so large that distances
        overflow, for example after a training that diverged, are left out.
        """
        fresh, trained = answers.fresh, slice(0, clients.layout.num_trainable)
        features, positions = answers.parameters[fresh, trained], answers.positions[fresh]
        if self.settings.features == "updates":
            read_out = self.settings.start == "read-out"
            before = self.readout(clients, state) if read_out else matrix(state["models"], positions)
            features = features - before[..., trained]
        comparable = torch.linalg.vector_norm(features, dim=1) < _LARGEST_NORM
        if bool(comparable.all()):
            return features, positions
        names = ", ".join(clients.names[position] for position in positions[~comparable].tolist())
        log.warning("the client graph is learned without %s: numbers are too large to compare", names)
        return features[comparable], positions[comparable]


def _copied(value: object) -> object:
    """Return a copy of a tensor, or of a dict of tensors."""
    if isinstance(value, dict):
        return {name: each.clone() for name, each in value.items()}
    return value.clone() if isinstance(value, Tensor) else value


def _graph(names: tuple[str, ...], matrix: Tensor) -> ClientGraph:
    return ClientGraph.from_dense(names, matrix, directed=not torch.equal(matrix, matrix.T))
