"""SCAFFOLD: correct client drift with control variates.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning (ICML 2020), algorithm 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedgraph.federation import Federation
from fedgraph.graph import weighted_mean
from fedgraph.methods.baselines import ScaffoldSettings
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.base import CohortStrategy, Replies
from fedgraph.strategies.engine.client_drift import ControlVariates
from fedgraph.strategies.engine.global_model import GlobalModelStrategy
from fedgraph.support.files import State


class Scaffold(GlobalModelStrategy[ScaffoldSettings]):
    """x <- x + eta_g mean_i (y_i - x) over clients present, c <- mean_i c_i over all, with equal weights.

    Clients without training examples count in neither mean.
    """

    name = "scaffold"
    title = "FedAvg with control variates against client drift (SCAFFOLD)"
    needs = 'SGD ([train] optimizer = "sgd")'
    paper = "https://arxiv.org/abs/1910.06378"
    default_client = "fedgraph.clients.scaffold:ScaffoldClient"
    defences = CohortStrategy.defences

    def __init__(self, settings: ScaffoldSettings, federation: Federation, plan: RunPlan) -> None:
        super().__init__(settings, federation, plan)
        self.controls = ControlVariates(federation, plan, self.layout.num_trainable, "scaffold")

    def outgoing(self, server_round: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return x and c for all clients."""
        return {}, {"parameters": self.global_model(), "control": self.controls.mean()}

    def reply_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of y_i and c_i."""
        return {**super().reply_shapes(), "control": (self.layout.num_trainable,)}

    def update(self, server_round: int, replies: Replies) -> Tensor:
        """Return the next x ``[parameters]``; buffers are averaged, since ``eta_g`` only applies to directions."""
        self.controls.take(replies)
        mean = weighted_mean(replies.parameters, replies.num_examples > 0)
        trainable = self.layout.num_trainable
        x = torch.lerp(self.global_model(), mean, self.settings.server_learning_rate)
        return torch.cat([x[:trainable], mean[trainable:]])

    def state(self) -> State:
        """Return what a resumed run needs, with all clients' control variates."""
        return {**super().state(), "controls": self.controls.rows}

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned."""
        super().load_state(state)
        self.controls.rows = state["controls"]
