"""Correction of client drift at the server: mean drift from the global model, and control variates.

FedDyn (Acar et al., ICLR 2021), FedDC (Gao et al., CVPR 2022) and SCAFFOLD (Karimireddy et al., ICML 2020).
"""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import TypeVar

from fedgraph.federation import Federation
from fedgraph.graph import weighted_mean
from fedgraph.methods.baselines import DriftSettings
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.base import CohortStrategy, Replies
from fedgraph.strategies.engine.global_model import GlobalModelStrategy
from fedgraph.support.errors import ExperimentError
from fedgraph.support.files import State

SomeDriftSettings = TypeVar("SomeDriftSettings", bound=DriftSettings, default=DriftSettings)


class DriftStrategy(GlobalModelStrategy[SomeDriftSettings]):
    """theta <- mean of theta_k over clients present, plus the mean over all clients of their drifts.

    A client's drift is the sum of ``theta_k - theta`` over the rounds in which its reply arrived. The server keeps only
    the mean drift, and sends each client the last such round, so that both agree after a lost reply. Clients without
    training examples count in neither mean; an earlier reply that stands in for a missing one (on-missing =
    "keep-last") counts only in the first.
    """

    defences = CohortStrategy.defences

    def __init__(self, settings: SomeDriftSettings, federation: Federation, plan: RunPlan) -> None:
        super().__init__(settings, federation, plan)
        self.drift = torch.zeros(self.layout.num_trainable)
        self.heard = torch.zeros(len(federation.names), 1)
        self._trains = federation.num_examples["train"] > 0

    def outgoing(self, server_round: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return theta for all clients, and for each client the last round in which its reply arrived, 0 for none."""
        stacked, shared = super().outgoing(server_round)
        return {**stacked, "heard": self.heard}, shared

    def update(self, server_round: int, replies: Replies) -> Tensor:
        """Return the next theta ``[parameters]``; buffers are averaged, since they have no drift."""
        trainable, trained = self.layout.num_trainable, replies.num_examples > 0
        way = (replies.parameters - self.global_model())[replies.fresh & trained, :trainable]
        self.drift = self.drift + way.sum(0) / self._trains.sum().clamp(min=1)
        now = torch.full((int(replies.fresh.sum()), 1), float(server_round))
        self.heard = self.heard.index_copy(0, replies.positions[replies.fresh], now)
        mean = weighted_mean(replies.parameters, trained)
        return torch.cat([mean[:trainable] + self.drift, mean[trainable:]])

    def state(self) -> State:
        """Return what a resumed run needs, with the mean drift and the last round of each client."""
        return {**super().state(), "drift": self.drift, "heard": self.heard}

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned."""
        super().load_state(state)
        self.drift, self.heard = state["drift"], state["heard"]


class ControlVariates:
    """Control variates c_i of all clients, and their mean c (Karimireddy et al. 2020, algorithm 1).

    A client sends its whole c_i. This equals the paper's c <- c + |S|/N mean (c_i+ - c_i), even when a reply was lost
    after its client had updated c_i. Clients without training examples do not count.

    Attributes
    ----------
    rows : Tensor
        ``[clients, trainable]``; zero until the first reply of a client.

    Raises
    ------
    ExperimentError
        When the training does not allow to derive gradients from the change of the parameters.
    """

    def __init__(self, federation: Federation, plan: RunPlan, trainable: int, method: str) -> None:
        train = plan.train
        if train.optimizer != "sgd":
            raise ExperimentError(
                f"[train] optimizer: {method} reads a client's gradient off the way it went, which '{train.optimizer}' "
                "does not allow; use sgd"
            )
        if train.keep_optimizer and train.momentum:
            raise ExperimentError(
                "[train] keep-optimizer: with momentum from earlier rounds a client's way is not that of this round's "
                f"gradients, from which {method} takes its control variates; set keep-optimizer = false"
            )
        self.rows = torch.zeros(len(federation.names), trainable)
        self._trains = federation.num_examples["train"] > 0

    def mean(self) -> Tensor:
        """Return c, ``[trainable]``."""
        return weighted_mean(self.rows, self._trains)

    def take(self, replies: Replies) -> None:
        """Store what clients have sent as ``control``."""
        self.rows = self.rows.index_copy(0, replies.positions, replies.tensors["control"])
