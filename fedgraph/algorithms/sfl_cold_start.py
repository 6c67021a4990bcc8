"""SFL for federations in which some clients have little data, such as new sensors, or none for training.

All clients train from the read-out, as in FedAvg, which transfers best to unknown clients. A cold client then receives
the mean of the trained models of its neighbourhood in the client graph, weighted by their loss on its examples, if any.
Other clients keep their trained models, mixed over the graph.
"""

from __future__ import annotations

import logging
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedgraph.algorithms.algorithm import Algorithm
from fedgraph.algorithms.exchange import Ask, Clients, Round, State
from fedgraph.algorithms.model_rows import Models, matrix, written
from fedgraph.algorithms.sfl import SFL, SFLSettings
from fedgraph.graph import graph_mean_weights, weighted_mean
from fedgraph.support.errors import ExperimentError

log = logging.getLogger("fedgraph")


class SFLColdStartSettings(SFLSettings):
    """``[sfl-cold-start]``: the keys of ``[sfl]`` with other defaults, and how cold clients use the models of others.

    Attributes
    ----------
    everybody   : as for ``[sfl]``, but for cold clients only; warm ones use their neighbourhood only.
    cold_below  : clients with fewer training examples than this share of the median are cold.
    temperature : tolerance for models with a larger loss on a cold client's examples. A loss above the best one by this
                  share (0.06: by 6 %) multiplies the graph's weight by 1 / e; 0 uses the graph's weights only. Models
                  are sent to the client; its losses stay there.
    """

    alpha: float = Field(default=0.3, ge=0, le=1)
    hops: int = Field(default=1, ge=0)
    weighting: Literal["none", "examples"] = "examples"
    everybody: float = Field(default=1.0, ge=0)
    start: Literal["personalised", "read-out"] = "read-out"
    cold_below: float = Field(default=0.1, gt=0, le=1)
    temperature: float = Field(default=0.06, ge=0)


class SFLColdStart(SFL[SFLColdStartSettings]):
    """Cold client i gets ``sum_j g_ij n_j Theta_j / sum_j g_ij n_j`` over warm j, ``g = A_hat^K + everybody / N``."""

    name = "sfl-cold-start"
    title = "SFL for cold clients: those with hardly any data get the models of their neighbourhood"
    paper = ""
    default_client = "fedgraph.clients.sfl_cold_start:SFLColdStartClient"
    defences = Algorithm.defences

    def check(self, clients: Clients) -> None:
        """See :class:`Algorithm`; also warns if no client is cold."""
        super().check(clients)
        if self.settings.mixes != "models" or self.settings.personal_layers:
            raise ExperimentError(
                '[sfl-cold-start] gives cold clients whole models of others: it needs mixes = "models" and no '
                "personal-layers"
            )
        if not bool(self.cold(clients).any()):
            log.warning(
                "sfl-cold-start: no client has fewer training examples than %g of the median (%g), so none is cold; "
                "raise cold-below, or use sfl",
                self.settings.cold_below,
                float(clients.num_examples.double().median()),
            )

    def cold(self, clients: Clients) -> Tensor:
        """Return which clients are cold, bool ``[clients]``."""
        return clients.num_examples < self.settings.cold_below * clients.num_examples.double().median()

    def chooses(self, clients: Clients) -> Tensor:
        """Return which clients weigh the models of others by their loss, bool ``[clients]``."""
        return self.cold(clients) & (clients.num_examples > 0) & (self.settings.temperature > 0)

    @property
    def takes_means(self) -> bool:
        """True."""
        return True

    def init(self, clients: Clients, models: Models) -> State:
        """Return the models, and no candidates yet."""
        nothing = torch.zeros(0)
        return {"models": models, "average": nothing, "candidates": nothing, "prior": nothing}

    def round(self, clients: Clients, state: State, number: int) -> Round:
        """Aggregate warm clients by ``graph_mean``, and cold ones from the warm models of their neighbourhood."""
        answers = yield self.ask(clients, state)
        settings, graph = self.settings, answers.graph
        assert graph is not None
        theta, counts, cold = answers.parameters, answers.num_examples, self.cold(clients)[answers.positions]
        after = {**state, "average": weighted_mean(theta, counts)}
        if bool(cold.all()):
            return {**after, "models": written(state["models"], answers.positions, after["average"].expand_as(theta))}
        weights = graph_mean_weights(graph, counts, settings.alpha, settings.hops)
        from_warm = graph_mean_weights(graph, counts * ~cold, 1.0, settings.hops, settings.everybody)
        weights[cold] = from_warm[cold]
        chooses = self.chooses(clients)
        if bool(chooses.any()):
            after["candidates"] = theta[~cold]
            prior = torch.zeros(len(clients), len(after["candidates"]))
            prior[answers.positions] = weights[:, ~cold].float() * chooses[answers.positions, None]
            after["prior"] = prior
        return {**after, "models": written(state["models"], answers.positions, weights.to(theta) @ theta)}

    def readout(self, clients: Clients, state: State) -> Tensor:
        """Return the read-out, where training starts: the mean of the trained models weighted by examples."""
        return state["average"] if len(state["average"]) else matrix(state["models"])[0]

    def ask(self, clients: Clients, state: State) -> Ask:
        """Send what SFL sends, and to clients that choose the warm models and how much the graph weighs each.

        The models are only sent for evaluation.
        """
        requested, candidates = super().ask(clients, state), state["candidates"]
        if not len(candidates):
            return requested
        chooses = self.chooses(clients)

        def further(positions: Tensor, evaluates: bool) -> dict[str, Tensor]:
            return {"candidates": candidates} if evaluates and bool(chooses[positions].any()) else {}

        return Ask(
            {**requested.stacked, "prior": state["prior"]}, requested.shared, models=requested.models, further=further
        )

    def restorable(self, clients: Clients) -> bool:
        """Return False where cold clients choose: their choice is not known at the server."""
        return not bool(self.chooses(clients).any())
