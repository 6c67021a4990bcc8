"""FedDC: FedDyn whose clients correct their gradients by control variates as in SCAFFOLD.

Gao, Fu, Li, Chen, Xu, Xu: FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction (CVPR
2022), algorithm 1.
"""

from __future__ import annotations

from torch import Tensor

from fedgraph.federation import Federation
from fedgraph.methods.baselines import FedDCSettings
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.base import Replies
from fedgraph.strategies.engine.client_drift import ControlVariates, DriftStrategy
from fedgraph.support.files import State


class FedDC(DriftStrategy[FedDCSettings]):
    """Clients minimise ``L_i(v) + alpha/2 ||v + h_i - w||^2 + <v, c - c_i>`` with h_i their drift.

    c_i is the mean of a client's gradients in its last round and c the mean of all c_i, as in the released program.
    """

    name = "feddc"
    title = "Drift decoupling and correction: FedDyn with control variates (FedDC)"
    needs = 'SGD ([train] optimizer = "sgd")'
    paper = "https://arxiv.org/abs/2203.11751"
    default_client = "fedgraph.clients.feddc:FedDCClient"

    def __init__(self, settings: FedDCSettings, federation: Federation, plan: RunPlan) -> None:
        super().__init__(settings, federation, plan)
        self.controls = ControlVariates(federation, plan, self.layout.num_trainable, "feddc")

    def outgoing(self, server_round: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return w, the last rounds of the clients, and c."""
        stacked, shared = super().outgoing(server_round)
        return stacked, {**shared, "control": self.controls.mean()}

    def reply_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of model and c_i."""
        return {**super().reply_shapes(), "control": (self.layout.num_trainable,)}

    def update(self, server_round: int, replies: Replies) -> Tensor:
        """Return the next w ``[parameters]``."""
        self.controls.take(replies)
        return super().update(server_round, replies)

    def state(self) -> State:
        """Return what a resumed run needs, with all clients' control variates."""
        return {**super().state(), "controls": self.controls.rows}

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned."""
        super().load_state(state)
        self.controls.rows = state["controls"]
