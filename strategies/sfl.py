"""SFL, structured federated learning: aggregate models over the client graph (Chen et al. 2022, algorithm 1)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedgraph.client_graph import ClientGraph
from fedgraph.federation import Federation
from fedgraph.personal_layers import PersonalLayersSettings
from fedgraph.plan import RunPlan
from fedgraph.settings import Settings
from fedgraph.state_file import State
from strategies.base import CohortStrategy, Replies
from strategies.global_model import weighted_mean


class SFLSettings(PersonalLayersSettings):
    """``[sfl]``, ``[sfl-per]`` and ``[sfl-lg]``.

    alpha           : share of the graph in the aggregation; 0 leaves every client its own model.
    hops            : K, how often the normalised adjacency is applied.
    normalisation   : ``random-walk``: rows sum to one, so that equal models stay as they are; ``symmetric`` (GCN): also
                      rescales the models of clients with few or many neighbours. Self loops are added where missing.
    mixes           : what goes over the graph: the clients' ``models``, or the ``updates`` that training made to them.
                      A client then keeps its trained model and moves on in the direction in which its neighbourhood
                      moved: V = server-momentum V + mix of updates, U = Theta + server-learning-rate V.
    server_learning_rate, server_momentum : of ``updates``.
    weighting       : ``examples``: clients count by their training examples, so that those with few listen to others
                      and are hardly listened to; ``none``: all count alike.
    everybody       : weight of the mean over all clients, beside 1 for the client and its graph; for graphs with
                      clients that stand alone.
    lambda_global   : weight of the distance to the read-out w in the local objective.
    lambda_personal : weight of the distance to the personalised model u_i.
    distance        : ``euclidean`` norm, or half of it ``squared``.
    lambda_scale    : whether the lambdas are read against the loss summed over a batch, or its mean.
    start           : clients train from their ``personalised`` model, or all from the ``read-out``.
    released        : behave like the authors' released program, whose distance terms have no gradient and whose
                      clients start from the read-out.
    """

    alpha: float = Field(default=1.0, ge=0, le=1)
    hops: int = Field(default=3, ge=0)
    normalisation: Literal["random-walk", "symmetric"] = "random-walk"
    mixes: Literal["models", "updates"] = "models"
    server_learning_rate: float = Field(default=0.1, gt=0)
    server_momentum: float = Field(default=0.9, ge=0, lt=1)
    weighting: Literal["none", "examples"] = "none"
    everybody: float = Field(default=0.0, ge=0)
    lambda_global: float = Field(default=0.3, ge=0)
    lambda_personal: float = Field(default=0.3, ge=0)
    distance: Literal["euclidean", "squared"] = "euclidean"
    lambda_scale: Literal["batch-sum", "batch-mean"] = "batch-sum"
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


class SFL(CohortStrategy):
    """U = (1 - alpha) Theta + alpha A_hat^K Theta; row i is client i's next model, the mean of rows the read-out."""

    settings_type: ClassVar[type[Settings]] = SFLSettings
    needs_graph: ClassVar[bool] = True

    def __init__(self, settings: Settings, federation: Federation, plan: RunPlan) -> None:
        super().__init__(settings, federation, plan)
        self._velocity = torch.zeros_like(self.models) if self.settings.mixes == "updates" else torch.zeros(0)

    def relations(self, server_round: int, replies: Replies) -> ClientGraph:
        """The client graph of this round among those present: the given one."""
        assert replies.graph is not None
        return replies.graph

    def outgoing(self, server_round: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Every client's personalised model, and the read-out for all."""
        return {"parameters": self.models}, {"global": self.global_model()}

    def global_model(self) -> Tensor:
        """The read-out w, ``[parameters]``: the mean of the personalised models, by examples where they count."""
        if self.settings.weighting == "examples":
            return weighted_mean(self.models, self.federation.num_examples["train"])
        return self.models.mean(dim=0)

    def aggregate(self, server_round: int, replies: Replies) -> Tensor:
        """One propagation over the graph among those present."""
        graph, settings = self.relations(server_round, replies), self.settings
        if settings.mixes == "models":
            return self.mixed(graph, replies.parameters, replies.num_examples)
        start = self.models[replies.positions] if settings.start == "personalised" else self.global_model()
        mixed = self.mixed(graph, replies.parameters - start, replies.num_examples)
        velocity = self._velocity[replies.positions].mul_(settings.server_momentum).add_(mixed)
        self._velocity[replies.positions] = velocity
        return replies.parameters + settings.server_learning_rate * velocity

    def mixed(self, graph: ClientGraph, rows: Tensor, num_examples: Tensor) -> Tensor:
        """Rows ``[present, parameters]`` after aggregation over ``graph``."""
        settings = self.settings
        if settings.weighting == "none" and not settings.everybody:
            spread = graph.propagate(rows, hops=settings.hops, normalisation=settings.normalisation)
            return spread if settings.alpha == 1 else torch.lerp(rows, spread, settings.alpha)
        counts = num_examples if settings.weighting == "examples" else torch.ones_like(num_examples)
        return graph_mean(graph, rows, counts, settings.alpha, settings.hops, settings.everybody)

    def state(self) -> State:
        """Models, and the velocity of their updates."""
        return {**super().state(), "velocity": self._velocity}

    def load_state(self, state: State) -> None:
        """Take back what ``state`` gave."""
        super().load_state(state)
        self._velocity = state["velocity"].clone()


def graph_mean(
    graph: ClientGraph, rows: Tensor, counts: Tensor, alpha: float, hops: int, everybody: float = 0.0
) -> Tensor:
    """``sum_j S_ij n_j row_j / sum_j S_ij n_j`` with ``S = (1 - alpha) I + alpha A_hat^K + everybody / N``.

    A_hat is the random walk with self loops. Over a complete graph with alpha 1 this is FedAvg. A row that hears
    nobody who counts is the mean by examples over all.

    rows : ``[clients, ...]``; counts : n, ``[clients]``, not negative. Returns ``[clients, ...]``.
    """
    return mean_by(listening(graph, counts, alpha, hops, everybody), rows)


def listening(graph: ClientGraph, counts: Tensor, alpha: float, hops: int, everybody: float = 0.0) -> Tensor:
    """The weights of ``graph_mean``, ``[clients, clients]``; rows sum to one."""
    shares = counts.double() / counts.double().max().clamp(min=1)
    one = torch.eye(len(shares))
    spread = torch.lerp(one, graph.propagate(one, hops=hops, normalisation="random-walk"), alpha).double()
    weights = (spread + everybody / len(shares)) * (shares if bool(shares.any()) else torch.ones_like(shares))
    silent = weights.sum(dim=1, keepdim=True) <= 0
    weights = torch.where(silent, shares, weights)
    return weights / weights.sum(dim=1, keepdim=True)


def mean_by(weights: Tensor, rows: Tensor) -> Tensor:
    """``weights @ rows`` in the type of ``rows``."""
    return weights.to(rows) @ rows


class SFLPerSettings(SFLSettings):
    """``[sfl-per]``: SFL+PER, every client has a last layer of its own; otherwise as SFL."""

    personal_layers: tuple[str, ...] = ("head.*",)


class SFLLGSettings(SFLSettings):
    """``[sfl-lg]``: SFL+LG, every client has a representation of its own; otherwise as SFL."""

    personal_layers: tuple[str, ...] = ("!head.*",)


class SFLPer(SFL):
    """The representation goes over the graph, the last layer does not (table 4)."""

    settings_type: ClassVar[type[Settings]] = SFLPerSettings


class SFLLG(SFL):
    """The last layer goes over the graph, the representation does not (table 4)."""

    settings_type: ClassVar[type[Settings]] = SFLLGSettings
