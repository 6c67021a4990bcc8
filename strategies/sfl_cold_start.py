"""SFL for federations in which some clients have hardly any data, such as new sensors, or take no part in training.

All clients train from the read-out, as in FedAvg, because one model that has seen all data transfers best to an unknown
client. A cold client then receives the mean of the trained models of its neighbourhood in the client graph; where it
has examples, models with a smaller loss on them get more weight. Clients with data keep the model they trained, mixed
over the graph.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from fedgraph.federation import Federation
from fedgraph.graph import graph_mean_weights, weighted_mean
from fedgraph.methods.sfl import SFLColdStartSettings
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.base import CohortStrategy, Replies
from fedgraph.strategies.sfl import SFL
from fedgraph.support.errors import ExperimentError
from fedgraph.support.files import State

log = logging.getLogger("fedgraph")


class SFLColdStart(SFL[SFLColdStartSettings]):
    """Cold client i gets ``sum_j g_ij n_j Theta_j / sum_j g_ij n_j`` over warm j, ``g = A_hat^K + everybody / N``."""

    name = "sfl-cold-start"
    title = "SFL for cold clients: those with hardly any data get the models of their neighbourhood"
    paper = ""
    default_client = "fedgraph.clients.sfl_cold_start:SFLColdStartClient"
    defences = CohortStrategy.defences

    def __init__(self, settings: SFLColdStartSettings, federation: Federation, plan: RunPlan) -> None:
        super().__init__(settings, federation, plan)
        if self.settings.mixes != "models" or self.settings.personal_layers:
            raise ExperimentError(
                '[sfl-cold-start] gives cold clients whole models of others: it takes mixes = "models" and no '
                "personal-layers"
            )
        counts = federation.num_examples["train"]
        self.cold = counts < self.settings.cold_below * counts.double().median()
        if not bool(self.cold.any()):
            log.warning(
                "sfl-cold-start: no client has fewer training examples than %g of the median (%g), so nobody is cold; "
                "raise cold-below, or use sfl",
                self.settings.cold_below,
                float(counts.double().median()),
            )
        self.chooses = self.cold & (counts > 0) & (self.settings.temperature > 0)
        self._average = self._candidates = self._prior = torch.zeros(0)

    @property
    def takes_means(self) -> bool:
        """True."""
        return True

    def aggregate(self, server_round: int, replies: Replies) -> Tensor:
        """Aggregate warm clients by ``graph_mean``, and cold ones from the warm models of their neighbourhood."""
        graph, settings = self.relations(server_round, replies), self.settings
        theta, counts, cold = replies.parameters, replies.num_examples, self.cold[replies.positions]
        self._average = weighted_mean(theta, counts)
        if bool(cold.all()):
            return self._average.expand_as(theta)
        weights = graph_mean_weights(graph, counts, settings.alpha, settings.hops)
        from_warm = graph_mean_weights(graph, counts * ~cold, 1.0, settings.hops, settings.everybody)
        weights[cold] = from_warm[cold]
        if bool(self.chooses.any()):
            self._candidates = theta[~cold]
            self._prior = torch.zeros(len(self.models), len(self._candidates))
            self._prior[replies.positions] = weights[:, ~cold].float() * self.chooses[replies.positions, None]
        return weights.to(theta) @ theta

    def global_model(self) -> Tensor:
        """Return the read-out, from which all clients train: the mean of the trained models weighted by examples."""
        return self._average if len(self._average) else self.models[0]

    def outgoing(self, server_round: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the tensors of SFL, and the graph weights of all candidates for the clients that choose."""
        stacked, shared = super().outgoing(server_round)
        return ({**stacked, "prior": self._prior}, shared) if len(self._candidates) else (stacked, shared)

    def shared_with(self, positions: Tensor, measures: bool) -> dict[str, Tensor]:
        """Return the warm models, for nodes with clients that choose and are about to be evaluated."""
        chooses = measures and len(self._candidates) > 0 and bool(self.chooses[positions].any())
        return {"candidates": self._candidates} if chooses else {}

    @property
    def restorable(self) -> bool:
        """False where cold clients choose: their choice is not known at the server."""
        return not bool(self.chooses.any())

    def state(self) -> State:
        """Return what a resumed run needs, with the read-out and the candidates of cold clients."""
        own = {"average": self._average, "candidates": self._candidates, "prior": self._prior}
        return {**super().state(), **own}

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned."""
        super().load_state(state)
        self._average, self._candidates, self._prior = (state[key] for key in ("average", "candidates", "prior"))
