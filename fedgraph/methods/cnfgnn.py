"""CNFGNN, what both sides agree on: its settings, and the names of what is exchanged (Meng, Rambhatla, Liu; KDD 2021).

A request whose tensors are ``windows/<split>`` alone asks for hidden states of these windows; with ``graph/<split>``,
what the server made of them, it is for training or evaluation, or, without a model, for gradients.
"""

from __future__ import annotations

from pydantic import Field

from fedgraph.support.settings import Settings


class CNFGNNSettings(Settings):
    """``[cnfgnn]``: what the server trains in a round after the clients have trained.

    Attributes
    ----------
    windows              : training windows of a round, drawn anew in each and the same for all clients; clients and
                           server train on these.
    server_steps         : training steps of the graph network in a round, each an exchange: embeddings go out, and
                           their gradients come back.
    server_batch_size    : windows of such a step.
    server_learning_rate : of Adam, whose moments are kept.
    layers               : of the graph network.
    hidden               : width of its hidden layers and of its updates.
    """

    windows: int = Field(default=2560, ge=1)
    server_steps: int = Field(default=40, ge=1)
    server_batch_size: int = Field(default=48, ge=1)
    server_learning_rate: float = Field(default=0.001, gt=0)
    layers: int = Field(default=2, ge=1)
    hidden: int = Field(default=64, ge=1)
