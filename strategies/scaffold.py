"""SCAFFOLD: control variates take out of each client's gradient what makes it differ from everybody's.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning (ICML 2020), algorithm 1.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedgraph.errors import ExperimentError
from fedgraph.federation import Federation
from fedgraph.graph_mean import weighted_mean
from fedgraph.plan import RunPlan
from fedgraph.settings import Settings
from fedgraph.state_file import State
from strategies.base import Replies
from strategies.global_model import GlobalModelStrategy


class ScaffoldSettings(Settings):
    """``[scaffold]``; ``[train] optimizer`` must be sgd, without momentum that is kept from round to round.

    Control variates are a round old. Where clients differ much and train long, the corrected steps can diverge at a
    rate that FedAvg takes; a smaller ``learning-rate`` keeps them together.

    server_learning_rate : eta_g, how far the global model goes towards the mean of the clients' models.
    """

    server_learning_rate: float = Field(default=1.0, gt=0)


class Scaffold(GlobalModelStrategy):
    """x <- x + eta_g mean_i (y_i - x) over those present, c <- mean_i c_i over all, clients counting alike.

    A client sends its c_i in whole. That is the paper's c <- c + |S|/N mean (c_i+ - c_i), and stays it when a reply
    was lost after its client had moved on. Clients without training examples count in neither mean.
    """

    settings_type: ClassVar[type[Settings]] = ScaffoldSettings

    def __init__(self, settings: Settings, federation: Federation, plan: RunPlan) -> None:
        super().__init__(settings, federation, plan)
        train = plan.train
        if train.optimizer != "sgd":
            raise ExperimentError(
                f"[train] optimizer: scaffold reads a client's gradient off the way it went, which '{train.optimizer}' "
                "does not allow; use sgd"
            )
        if train.keep_optimizer and train.momentum:
            raise ExperimentError(
                "[train] keep-optimizer: with momentum from earlier rounds a client's way is not that of this round's "
                "gradients, from which scaffold takes its control variates; set keep-optimizer = false"
            )
        self.controls = torch.zeros(len(federation.names), self.layout.num_trainable)
        self._trains = federation.num_examples["train"] > 0

    def control(self) -> Tensor:
        """c, the server's control variate, ``[trainable]``."""
        return weighted_mean(self.controls, self._trains)

    def outgoing(self, server_round: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """x and c for everybody."""
        return {}, {"parameters": self.global_model(), "control": self.control()}

    def reply_shapes(self) -> dict[str, tuple[int, ...]]:
        """y_i and c_i."""
        return {**super().reply_shapes(), "control": (self.layout.num_trainable,)}

    def update(self, server_round: int, replies: Replies) -> Tensor:
        """The next x ``[parameters]``; buffers are averaged, since they are no directions to go further in."""
        self.controls = self.controls.index_copy(0, replies.positions, replies.tensors["control"])
        mean = weighted_mean(replies.parameters, replies.num_examples > 0)
        trainable = self.layout.num_trainable
        x = torch.lerp(self.global_model(), mean, self.settings.server_learning_rate)
        return torch.cat([x[:trainable], mean[trainable:]])

    def state(self) -> State:
        """Also every client's control variate."""
        return {**super().state(), "controls": self.controls}

    def load_state(self, state: State) -> None:
        """Take back what ``state`` gave."""
        super().load_state(state)
        self.controls = state["controls"]
