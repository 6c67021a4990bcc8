"""Against client drift, at the server: how far clients have gone from the global model, and control variates.

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
from fedgraph.support.errors import ExperimentError
from fedgraph.support.files import State
from strategies.engine.base import Replies
from strategies.engine.global_model import GlobalModelStrategy

SomeDriftSettings = TypeVar("SomeDriftSettings", bound=DriftSettings, default=DriftSettings)


class DriftStrategy(GlobalModelStrategy[SomeDriftSettings]):
    """theta <- mean of theta_k over those present, plus the mean over all clients of their drifts.

    A client's drift is the sum of ``theta_k - theta`` over the rounds of which its reply has come; the server keeps
    their mean alone, and tells each client which round that was last, so that both mean the same after a lost reply.
    Clients without training examples count in neither mean; an earlier reply that stands in for a missing one
    (on-missing = "keep-last") counts in the first alone.
    """

    def __init__(self, settings: SomeDriftSettings, federation: Federation, plan: RunPlan) -> None:
        super().__init__(settings, federation, plan)
        self.drift = torch.zeros(self.layout.num_trainable)
        self.heard = torch.zeros(len(federation.names), 1)
        self._trains = federation.num_examples["train"] > 0

    def outgoing(self, server_round: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """theta for everybody, and to each client the last round that it has been heard of, 0 for none."""
        stacked, shared = super().outgoing(server_round)
        return {**stacked, "heard": self.heard}, shared

    def update(self, server_round: int, replies: Replies) -> Tensor:
        """The next theta ``[parameters]``; buffers are averaged, since they have no drift."""
        trainable, trained = self.layout.num_trainable, replies.num_examples > 0
        way = (replies.parameters - self.global_model())[replies.fresh & trained, :trainable]
        self.drift = self.drift + way.sum(0) / self._trains.sum().clamp(min=1)
        now = torch.full((int(replies.fresh.sum()), 1), float(server_round))
        self.heard = self.heard.index_copy(0, replies.positions[replies.fresh], now)
        mean = weighted_mean(replies.parameters, trained)
        return torch.cat([mean[:trainable] + self.drift, mean[trainable:]])

    def state(self) -> State:
        """Also the mean drift, and of which rounds clients were heard."""
        return {**super().state(), "drift": self.drift, "heard": self.heard}

    def load_state(self, state: State) -> None:
        """Take back what ``state`` gave."""
        super().load_state(state)
        self.drift, self.heard = state["drift"], state["heard"]


class ControlVariates:
    """c_i of every client, and c, their mean (Karimireddy et al. 2020, algorithm 1).

    A client sends its c_i in whole. That is the paper's c <- c + |S|/N mean (c_i+ - c_i), and stays it when a reply
    was lost after its client had moved on. Clients without training examples do not count.

    rows : ``[clients, trainable]``; zero until a client has been heard.

    Raises
    ------
    ExperimentError
        For a way of training that gradients cannot be read off.
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
        """c, ``[trainable]``."""
        return weighted_mean(self.rows, self._trains)

    def take(self, replies: Replies) -> None:
        """Keep what clients have sent as ``control``."""
        self.rows = self.rows.index_copy(0, replies.positions, replies.tensors["control"])
