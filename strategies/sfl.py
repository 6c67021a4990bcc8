"""SFL, structured federated learning: aggregate models over the client graph (Chen et al. 2022, algorithm 1)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedgraph.federation import Federation
from fedgraph.graph import ClientGraph, graph_mean, weighted_mean
from fedgraph.models import PersonalLayersSettings
from fedgraph.runs import RunPlan
from fedgraph.support.errors import ExperimentError
from fedgraph.support.files import State
from fedgraph.support.settings import Settings
from strategies.engine.base import CohortStrategy, Replies
from strategies.fedavg_ft import FineTuningSettings


class SFLSettings(PersonalLayersSettings):
    """``[sfl]``, ``[sfl-per]`` and ``[sfl-lg]``.

    alpha           : share of the graph in the aggregation; 0 leaves every client its own model.
    hops            : K, how often the normalised adjacency is applied.
    normalisation   : ``random-walk``: rows sum to one, so that equal models stay as they are; ``symmetric`` (GCN): also
                      rescales the models of clients with few or many neighbours. Self loops are added where missing.
    mixes           : what goes over the graph: the clients' ``models``, or the ``updates`` that training made to them.
                      A client then keeps its trained model and moves on in the direction in which its neighbourhood
                      moved: V = server-momentum V + mix of updates, U = Theta + server-learning-rate V. Running
                      statistics stay those of its own model.
    server_learning_rate, server_momentum : used with mixes = ``updates`` alone.
    weighting       : ``examples``: clients count by their training examples, so that those with few listen to others
                      and are hardly listened to; ``none``: all count alike.
    everybody       : weight of all clients together in the mean, beside 1 for a client's own neighbourhood, so that
                      clients whom the graph leaves alone hear somebody too.
    lambda_global   : weight of the distance to the read-out w in the local objective.
    lambda_personal : weight of the distance to the personalised model u_i.
    distance        : ``euclidean`` norm, or half of it ``squared``.
    lambda_scale    : ``batch-sum``: the lambdas weigh against the loss summed over a batch, as lambda / batch size does
                      against its mean; ``batch-mean``: against the mean.
    start           : clients train from their ``personalised`` model, or all from the ``read-out``.
    released        : behave like the authors' released program, whose distance terms have no gradient and whose
                      clients start from the read-out; takes the place of both lambdas and of start.
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
        if self.takes_means and federation.graph is not None and bool((federation.graph.weights < 0).any()):
            raise ExperimentError(
                f"[graph] has weights below zero, which cannot be shares of a mean as {type(self).__name__} takes "
                'them here: leave such edges out, or use the method sfl with weighting = "none" and everybody = 0'
            )
        trained = torch.zeros(len(federation.names), self.layout.num_trainable)
        updates = self.settings.mixes == "updates"
        self._velocity = trained if updates else torch.zeros(0)
        # What an absent client's last reply changed cannot be told from its model once the clients have moved on.
        self._updates = trained.clone() if updates and plan.on_missing == "keep-last" else torch.zeros(0)

    @property
    def takes_means(self) -> bool:
        """Whether weights of the graph are shares of means, which may not be below zero."""
        return bool(self.settings.weighting == "examples" or self.settings.everybody)

    @property
    def self_loops(self) -> bool:
        """Whether clients that do not listen to themselves in the client graph do so nevertheless."""
        return True

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
        # A running variance that moved on in some direction could end below zero.
        theta, statistics = replies.parameters.tensor_split([self.layout.num_trainable], dim=1)
        mixed = self.mixed(graph, self.updates(theta, replies), replies.num_examples)
        velocity = self._velocity[replies.positions].mul_(settings.server_momentum).add_(mixed)
        self._velocity[replies.positions] = velocity
        return torch.cat([theta + settings.server_learning_rate * velocity, statistics], dim=1)

    def updates(self, theta: Tensor, replies: Replies) -> Tensor:
        """What training changed in ``theta`` ``[present, trainable]``; of absent clients, when they last replied."""
        personalised = self.settings.start == "personalised"
        start = self.models[replies.positions] if personalised else self.global_model()
        updates = theta - start[..., : theta.shape[1]]
        if not len(self._updates):
            return updates
        self._updates[replies.positions[replies.fresh]] = updates[replies.fresh]
        return self._updates[replies.positions]

    def mixed(self, graph: ClientGraph, rows: Tensor, num_examples: Tensor) -> Tensor:
        """Rows ``[present, parameters]`` after aggregation over ``graph``."""
        settings = self.settings
        if settings.weighting == "none" and not settings.everybody:
            spread = graph.propagate(rows, settings.hops, settings.normalisation, self.self_loops)
            return spread if settings.alpha == 1 else torch.lerp(rows, spread, settings.alpha)
        counts = num_examples if settings.weighting == "examples" else torch.ones_like(num_examples)
        return graph_mean(
            graph, rows, counts, settings.alpha, settings.hops, settings.everybody, self_loops=self.self_loops
        )

    def state(self) -> State:
        """Models, the velocity of their updates, and the last updates where absent clients take part with them."""
        return {**super().state(), "velocity": self._velocity, "updates": self._updates}

    def load_state(self, state: State) -> None:
        """Take back what ``state`` gave."""
        super().load_state(state)
        self._velocity, self._updates = state["velocity"].clone(), state.get("updates", self._updates).clone()


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


class SFLFineTuningSettings(SFLSettings, FineTuningSettings):
    """``[sfl-ft]``: the keys of ``[sfl]``, and how a copy of each personalised model is fine-tuned to be measured.

    local_epochs, local_steps : passes over a client's examples, or minibatches; by default those of ``[train]``.
    learning_rate : the same after every round; by default that of ``[train]`` in the round to come.
    """


class SFLFineTuning(SFL):
    """SFL beside FedAvg with fine-tuning: fine-tuned copies are only measured; the run folder holds SFL's models."""

    settings_type: ClassVar[type[Settings]] = SFLFineTuningSettings

    def __init__(self, settings: Settings, federation: Federation, plan: RunPlan) -> None:
        super().__init__(settings, federation, plan)
        self.settings.checked_with(plan.train, "[sfl-ft]")
