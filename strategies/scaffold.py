"""SCAFFOLD: control variates take out of each client's gradient what makes it differ from everybody's.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning (ICML 2020), algorithm 1.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedgraph.federation import Federation
from fedgraph.graph import weighted_mean
from fedgraph.runs import RunPlan
from fedgraph.support.files import State
from fedgraph.support.settings import Settings
from strategies.engine.base import Replies
from strategies.engine.controls import ControlVariates
from strategies.engine.global_model import GlobalModelStrategy


class ScaffoldSettings(Settings):
    """``[scaffold]``; ``[train] optimizer`` must be sgd, without momentum that is kept from round to round.

    Control variates are a round old. Where clients differ much and train long, the corrected steps can diverge at a
    rate that FedAvg takes; a smaller ``learning-rate`` keeps them together.

    server_learning_rate : eta_g, how far the global model goes towards the mean of the clients' models.
    """

    server_learning_rate: float = Field(default=1.0, gt=0)


class Scaffold(GlobalModelStrategy):
    """x <- x + eta_g mean_i (y_i - x) over those present, c <- mean_i c_i over all, clients counting alike.

    Clients without training examples count in neither mean.
    """

    settings_type: ClassVar[type[Settings]] = ScaffoldSettings

    def __init__(self, settings: Settings, federation: Federation, plan: RunPlan) -> None:
        super().__init__(settings, federation, plan)
        self.controls = ControlVariates(federation, plan, self.layout.num_trainable, "scaffold")

    def outgoing(self, server_round: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """x and c for everybody."""
        return {}, {"parameters": self.global_model(), "control": self.controls.mean()}

    def reply_shapes(self) -> dict[str, tuple[int, ...]]:
        """y_i and c_i."""
        return {**super().reply_shapes(), "control": (self.layout.num_trainable,)}

    def update(self, server_round: int, replies: Replies) -> Tensor:
        """The next x ``[parameters]``; buffers are averaged, since they are no directions to go further in."""
        self.controls.take(replies)
        mean = weighted_mean(replies.parameters, replies.num_examples > 0)
        trainable = self.layout.num_trainable
        x = torch.lerp(self.global_model(), mean, self.settings.server_learning_rate)
        return torch.cat([x[:trainable], mean[trainable:]])

    def state(self) -> State:
        """Also every client's control variate."""
        return {**super().state(), "controls": self.controls.rows}

    def load_state(self, state: State) -> None:
        """Take back what ``state`` gave."""
        super().load_state(state)
        self.controls.rows = state["controls"]
