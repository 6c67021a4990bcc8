"""FedDyn: regularise each client's loss so that local optima agree with the global one.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic Regularization (ICLR
2021), algorithm 1.
"""

from __future__ import annotations

from fedgraph.methods.baselines import FedDynSettings
from fedgraph.strategies.engine.client_drift import DriftStrategy


class FedDyn(DriftStrategy[FedDynSettings]):
    """Clients minimise ``L_k(v) - <g_k, v> + alpha/2 ||v - theta||^2``, where g_k is ``-alpha`` times their drift.

    The paper's h, the server's state, is ``-alpha`` times the mean drift.
    """

    name = "feddyn"
    title = "Federated learning with dynamic regularisation (FedDyn)"
    paper = "https://arxiv.org/abs/2111.04263"
    default_client = "fedgraph.clients.feddyn:DriftClient"
