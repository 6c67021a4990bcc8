"""SFL, structured federated learning: aggregate models over the client graph (Chen et al. 2022, algorithm 1)."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import TypeVar

from fedgraph.federation import Federation
from fedgraph.graph import ClientGraph, graph_mean, graph_mean_weights, weighted_mean
from fedgraph.methods.sfl import SFLFineTuningSettings, SFLLGSettings, SFLPerSettings, SFLSettings
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.base import CohortStrategy, Replies
from fedgraph.support.errors import ExperimentError
from fedgraph.support.files import State

SomeSFLSettings = TypeVar("SomeSFLSettings", bound=SFLSettings, default=SFLSettings)


class SFL(CohortStrategy[SomeSFLSettings]):
    """U = (1 - alpha) Theta + alpha A_hat^K Theta; row i is client i's next model, the mean of rows the read-out.

    Raises
    ------
    ExperimentError
        When the experiment gives no client graph, or one with negative weights where they are shares of a mean.
    """

    name = "sfl"
    title = "Structured federated learning with a given client graph"
    needs = "a client graph ([graph])"
    paper = "https://arxiv.org/abs/2203.00829"
    default_client = "fedgraph.clients.sfl:SFLClient"
    needs_graph = True
    defences = (*CohortStrategy.defences, "average", "trim")

    def __init__(self, settings: SomeSFLSettings, federation: Federation, plan: RunPlan) -> None:
        super().__init__(settings, federation, plan)
        if self.takes_means and federation.graph is not None and bool((federation.graph.weights < 0).any()):
            raise ExperimentError(
                f"[graph] has weights below zero, which cannot be shares of a mean as {type(self).__name__} takes "
                'them here: leave such edges out, or use the method sfl with weighting = "none" and everybody = 0'
            )
        if plan.defence.average != "mean" and settings.normalisation != "random-walk":
            raise ExperimentError(
                f'[defence] average = "{plan.defence.average}" takes the shares of a mean as its weights: it needs '
                f'[{type(self).name}] normalisation = "random-walk"'
            )
        trained = torch.zeros(len(federation.names), self.layout.num_trainable)
        updates = self.settings.mixes == "updates"
        self._velocity = trained if updates else torch.zeros(0)
        # The update in an absent client's last reply cannot be recovered from its model once the models have changed.
        self._updates = trained.clone() if updates and plan.on_missing == "keep-last" else torch.zeros(0)

    @property
    def takes_means(self) -> bool:
        """Whether weights of the graph are shares of means, and therefore must not be negative."""
        return bool(self.settings.weighting == "examples" or self.settings.everybody)

    @property
    def self_loops(self) -> bool:
        """Whether self loops are added for clients without one in the client graph."""
        return True

    def relations(self, server_round: int, replies: Replies) -> ClientGraph:
        """Return the client graph of this round among the clients present: the given one."""
        assert replies.graph is not None
        return replies.graph

    def outgoing(self, server_round: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return all clients' personalised models, and the read-out as shared tensor."""
        return {"parameters": self.models}, {"global": self.global_model()}

    def starts(self, positions: Tensor) -> Tensor:
        """Return the personalised models, or the read-out for all, as ``start`` says."""
        if self.settings.start == "personalised":
            return super().starts(positions)
        return self.global_model().expand(len(positions), -1)

    def global_model(self) -> Tensor:
        """Return the read-out w, ``[parameters]``: the mean of the personalised models, weighted by examples if set."""
        if self.settings.weighting == "examples":
            return weighted_mean(self.models, self.federation.num_examples["train"])
        return self.models.mean(dim=0)

    def aggregate(self, server_round: int, replies: Replies) -> Tensor:
        """Propagate once over the graph among the clients present."""
        graph, settings = self.relations(server_round, replies), self.settings
        if settings.mixes == "models":
            return self.mixed(graph, replies.parameters, replies.num_examples)
        # Momentum could make a running variance negative.
        theta, statistics = replies.parameters.tensor_split([self.layout.num_trainable], dim=1)
        mixed = self.mixed(graph, self.updates(theta, replies), replies.num_examples)
        velocity = self._velocity[replies.positions].mul_(settings.server_momentum).add_(mixed)
        self._velocity[replies.positions] = velocity
        return torch.cat([theta + settings.server_learning_rate * velocity, statistics], dim=1)

    def updates(self, theta: Tensor, replies: Replies) -> Tensor:
        """Return the change of ``theta`` ``[present, trainable]`` by training; for absent clients the last one."""
        updates = theta - self.starts(replies.positions)[:, : theta.shape[1]]
        if not len(self._updates):
            return updates
        self._updates[replies.positions[replies.fresh]] = updates[replies.fresh]
        return self._updates[replies.positions]

    def mixed(self, graph: ClientGraph, rows: Tensor, num_examples: Tensor) -> Tensor:
        """Return rows ``[present, parameters]`` after aggregation over ``graph``."""
        settings = self.settings
        counts = num_examples if settings.weighting == "examples" else torch.ones_like(num_examples)
        if self.plan.defence.average != "mean":
            weights = graph_mean_weights(
                graph, counts, settings.alpha, settings.hops, settings.everybody, self_loops=self.self_loops
            )
            return self.defence.averages(rows, weights)
        if settings.weighting == "none" and not settings.everybody:
            spread = graph.propagate(rows, settings.hops, settings.normalisation, self.self_loops)
            return spread if settings.alpha == 1 else torch.lerp(rows, spread, settings.alpha)
        return graph_mean(
            graph, rows, counts, settings.alpha, settings.hops, settings.everybody, self_loops=self.self_loops
        )

    def state(self) -> State:
        """Return models, the velocity of their updates, and last updates where absent clients take part with these."""
        return {**super().state(), "velocity": self._velocity, "updates": self._updates}

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned."""
        super().load_state(state)
        self._velocity, self._updates = state["velocity"].clone(), state.get("updates", self._updates).clone()


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

    def __init__(self, settings: SFLFineTuningSettings, federation: Federation, plan: RunPlan) -> None:
        super().__init__(settings, federation, plan)
        settings.training(plan.train, "[sfl-ft]")
