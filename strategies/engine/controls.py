"""Control variates of SCAFFOLD and FedDC as the server keeps them."""

from __future__ import annotations

import torch
from torch import Tensor

from fedgraph.federation import Federation
from fedgraph.graph import weighted_mean
from fedgraph.runs import RunPlan
from fedgraph.support.errors import ExperimentError
from strategies.engine.replies import Replies


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
