"""FedProx: FedAvg with a proximal term towards the global model; Flower's own strategy.

Li et al., Federated Optimization in Heterogeneous Networks (MLSys 2020), algorithm 2.
"""

from __future__ import annotations

from typing import Any

from flwr.serverapp import strategy


class FedProx(strategy.FedProx):
    """Flower's strategy with mu = 0.1 by default; with Flower's default of 0 it is FedAvg."""

    name = "fedprox"
    title = "FedAvg with a proximal term, Flower's own strategy"
    needs = "nothing; [fedprox] proximal-mu is 0.1 unless given (0.001 to 1 in the paper; with 0 it is FedAvg)"
    paper = "https://arxiv.org/abs/1812.06127"

    def __init__(self, *, proximal_mu: float = 0.1, **others: Any) -> None:
        super().__init__(proximal_mu=proximal_mu, **others)
