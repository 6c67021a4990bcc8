"""SFL, structured federated learning: models are aggregated over the client graph (Chen et al. 2022, algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from typing_extensions import TypeVar

from fedgraph.algorithms.algorithm import Algorithm
from fedgraph.algorithms.exchange import Answers, Ask, Clients, Round, State
from fedgraph.algorithms.global_model import FineTuningSettings
from fedgraph.algorithms.model_rows import Models, combined, mixed, written
from fedgraph.graph import ClientGraph, graph_mean, graph_mean_weights, weighted_mean
from fedgraph.models import PersonalLayersSettings
from fedgraph.support.errors import ExperimentError


class SFLSettings(PersonalLayersSettings):
    """``[sfl]``.

    Attributes
    ----------
    alpha           : share of the graph in the aggregation; 0 leaves every client its own model.
    hops            : K, how often the normalised adjacency is applied; 3 in the paper.
    normalisation   : ``random-walk``: rows sum to one, so that equal models do not change; ``symmetric`` (GCN): also
                      rescales the models of clients with few or many neighbours. Self loops are added where missing.
    mixes           : what is propagated over the graph: the clients' ``models``, or the ``updates`` by training. With
                      the latter a client moves its trained model along the updates of its neighbourhood: V =
                      server-momentum V + mix of updates, U = Theta + server-learning-rate V. Running statistics stay
                      those of its own model.
    server_learning_rate, server_momentum : used only with mixes = ``updates``.
    weighting       : ``examples``: clients are weighted by their training examples, in the read-out and in row i of
                      (1 - alpha) I + alpha A^K, also with itself: a client with few examples beside one with many
                      keeps little of its own model whatever alpha is; ``none``: equally.
    everybody       : weight of all clients in the mean, relative to 1 for a client's own neighbourhood, for clients
                      without neighbours.
    lambda_global   : lambda_1, weight of the distance to the read-out w, relative to the mean loss of a minibatch (eq.
                      3). The released program has 0.3, but its distances have no gradient: 0 in effect.
    lambda_personal : lambda_2, weight of the distance to the personalised model u_i; likewise.
    distance        : ``euclidean`` norm, or half of it ``squared``.
    start           : clients train from their ``personalised`` model, or all from the ``read-out``.
    released        : behave like the authors' released program, whose distance terms have no gradient and whose clients
                      start from the read-out; replaces both lambdas and start.
    """

    alpha: float = Field(default=1.0, ge=0, le=1)
    hops: int = Field(default=1, ge=0)
    normalisation: Literal["random-walk", "symmetric"] = "random-walk"
    mixes: Literal["models", "updates"] = "models"
    server_learning_rate: float = Field(default=0.1, gt=0)
    server_momentum: float = Field(default=0.9, ge=0, lt=1)
    weighting: Literal["none", "examples"] = "none"
    everybody: float = Field(default=0.0, ge=0)
    lambda_global: float = Field(default=0.0, ge=0)
    lambda_personal: float = Field(default=0.0, ge=0)
    distance: Literal["euclidean", "squared"] = "euclidean"
    start: Literal["personalised", "read-out"] = "personalised"
    released: bool = False

    @model_validator(mode="after")
    def _fit_together(self) -> SFLSettings:
        if self.normalisation == "symmetric" and (self.weighting == "examples" or self.everybody):
            raise ValueError('weighting = "examples" and everybody are means: they need normalisation = "random-walk"')
        return self

    @model_validator(mode="after")
    def _released_stands_for_others(self) -> SFLSettings:
        fixed = {"lambda_global": 0.0, "lambda_personal": 0.0, "start": "read-out"}
        return self.model_copy(update=fixed) if self.released else self


SomeSFLSettings = TypeVar("SomeSFLSettings", bound=SFLSettings, default=SFLSettings)


class SFL(Algorithm[SomeSFLSettings]):
    """U = (1 - alpha) Theta + alpha A_hat^K Theta; row i is client i's next model, the mean of rows the read-out.

    Raises ExperimentError for a client graph with negative weights where they are shares of a mean, and for robust
    averages of sums.
    """

    name = "sfl"
    title = "Structured federated learning with a given client graph"
    needs = "a client graph ([graph])"
    paper = "https://arxiv.org/abs/2203.00829"
    default_client = "fedgraph.clients.sfl:SFLClient"
    needs_graph = True
    defences = (*Algorithm.defences, "average", "trim")

    def check(self, clients: Clients) -> None:
        """See :class:`Algorithm`."""
        if self.takes_means and clients.graph is not None and bool((clients.graph.weights < 0).any()):
            raise ExperimentError(
                f"[graph] has negative weights, which {type(self).__name__} cannot use as shares of a mean: leave such "
                'edges out, or use the method sfl with weighting = "none" and everybody = 0'
            )
        if clients.facts.averages != "mean" and self.settings.normalisation != "random-walk":
            raise ExperimentError(
                f'[defence] average = "{clients.facts.averages}" needs the weights of a mean: '
                f'[{type(self).name}] normalisation = "random-walk"'
            )

    @property
    def takes_means(self) -> bool:
        """Whether weights of the graph are shares of means, and therefore must not be negative."""
        return bool(self.settings.weighting == "examples" or self.settings.everybody)

    @property
    def self_loops(self) -> bool:
        """Whether self loops are added for clients without one in the client graph."""
        return True

    def init(self, clients: Clients, models: Models) -> State:
        """Return the models and, where updates are mixed, their velocity.

        Also the updates of the last answers, if these may replace missing ones, as they cannot be recovered later.
        """
        updates = self.settings.mixes == "updates"
        trained = torch.zeros(len(clients), clients.layout.num_trainable if updates else 0)
        kept = trained.clone() if updates and clients.facts.keeps_last else torch.zeros(0)
        return {"models": models, "velocity": trained, "updates": kept}

    def round(self, clients: Clients, state: State, number: int) -> Round:
        """Have all train, and propagate once over the graph among the clients present."""
        answers = yield self.ask(clients, state)
        graph, own = self.relations(clients, state, answers, number)
        if self.settings.mixes == "updates":
            return {**state, **own, **self.moved(clients, state, answers, graph)}
        models = mixed(
            state["models"], answers.positions, answers.models, lambda rows: self.mixed(graph, rows, answers)
        )
        return {**state, **own, "models": models}

    def ask(self, clients: Clients, state: State) -> Ask:
        """Send all clients' personalised models, and the read-out if clients start from it or keep near it."""
        if not self.settings.lambda_global and self.settings.start == "personalised":
            return Ask({"parameters": state["models"]})
        return Ask({"parameters": state["models"]}, {"global": self.readout(clients, state)}, models=("global",))

    def relations(
        self, clients: Clients, state: State, answers: Answers, number: int
    ) -> tuple[ClientGraph, Mapping[str, object]]:
        """Return the client graph of this round among the clients present, here the given one, and what to remember."""
        assert answers.graph is not None
        return answers.graph, {}

    def starts(self, clients: Clients, state: State, positions: Tensor) -> Tensor:
        """Return the personalised models, or the read-out for all, as ``start`` says."""
        if self.settings.start == "personalised":
            return super().starts(clients, state, positions)
        return self.readout(clients, state).expand(len(positions), -1)

    def readout(self, clients: Clients, state: State) -> Tensor:
        """Return the read-out w, ``[parameters]``: the mean of the personalised models, weighted by examples if set."""
        if self.settings.weighting == "examples":
            return combined(state["models"], lambda rows: weighted_mean(rows, clients.num_examples))
        return combined(state["models"], lambda rows: rows.mean(dim=0))

    def mixed(self, graph: ClientGraph, rows: Tensor, answers: Answers) -> Tensor:
        """Return rows ``[present, columns]`` after aggregation over ``graph``."""
        settings, counts = self.settings, answers.num_examples
        counts = counts if settings.weighting == "examples" else torch.ones_like(counts)
        if answers.robust is not None:
            weights = graph_mean_weights(
                graph, counts, settings.alpha, settings.hops, settings.everybody, self_loops=self.self_loops
            )
            return answers.robust(rows, weights)
        if settings.weighting == "none" and not settings.everybody:
            spread = graph.propagate(rows, settings.hops, settings.normalisation, self.self_loops)
            return spread if settings.alpha == 1 else torch.lerp(rows, spread, settings.alpha)
        return graph_mean(
            graph, rows, counts, settings.alpha, settings.hops, settings.everybody, self_loops=self.self_loops
        )

    def moved(self, clients: Clients, state: State, answers: Answers, graph: ClientGraph) -> State:
        """Return models moved along the updates of their neighbourhood: U = Theta + server-learning-rate V."""
        settings, trainable, positions = self.settings, clients.layout.num_trainable, answers.positions
        # Momentum could make a running variance negative.
        theta, statistics = answers.parameters.tensor_split([trainable], dim=1)
        updates, kept = theta - self.starts(clients, state, positions)[:, :trainable], state["updates"]
        if len(kept):
            kept = kept.index_copy(0, positions[answers.fresh], updates[answers.fresh])
            updates = kept[positions]
        moved = state["velocity"][positions].mul_(settings.server_momentum).add_(self.mixed(graph, updates, answers))
        models = torch.cat([theta + settings.server_learning_rate * moved, statistics], dim=1)
        return {
            "models": written(state["models"], positions, models),
            "velocity": state["velocity"].index_copy(0, positions, moved),
            "updates": kept,
        }


class SFLPerSettings(SFLSettings):
    """``[sfl-per]``: SFL+PER, every client has its own last layer; otherwise as SFL."""

    personal_layers: tuple[str, ...] = ("head.*",)


class SFLLGSettings(SFLSettings):
    """``[sfl-lg]``: SFL+LG, every client has its own representation; otherwise as SFL."""

    personal_layers: tuple[str, ...] = ("!head.*",)


class SFLFineTuningSettings(SFLSettings, FineTuningSettings):
    """``[sfl-ft]``: the keys of ``[sfl]``, and how a copy of each personalised model is fine-tuned for evaluation.

    Attributes
    ----------
    local_epochs, local_steps : passes over a client's examples, or minibatches; by default those of ``[train]``.
    learning_rate : constant over rounds; by default that of ``[train]`` in the next round.
    """


class SFLPer(SFL[SFLPerSettings]):
    """SFL of the representation; every client has its own last layer (table 4)."""

    name = "sfl-per"
    title = "SFL with a personal last layer (SFL+PER)"


class SFLLG(SFL[SFLLGSettings]):
    """SFL of the last layer; every client has its own representation (table 4)."""

    name = "sfl-lg"
    title = "SFL of the last layer, with personal representations (SFL+LG)"


class SFLFineTuning(SFL[SFLFineTuningSettings]):
    """SFL with fine-tuning; fine-tuned copies are only evaluated, and the run folder contains SFL's models."""

    name = "sfl-ft"
    title = "SFL, measured after each client has fine-tuned its personalised model"
    paper = ""
    default_client = "fedgraph.clients.sfl:SFLFineTuningClient"

    def check(self, clients: Clients) -> None:
        """See :class:`Algorithm`."""
        super().check(clients)
        if clients.facts.train is not None:
            self.settings.training(clients.facts.train, "[sfl-ft]")
