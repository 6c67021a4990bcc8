"""Federated averaging: Flower's own strategy.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data (AISTATS 2017).
"""

from __future__ import annotations

from flwr.serverapp import strategy


class FedAvg(strategy.FedAvg):
    """Flower's strategy, unchanged."""

    name = "fedavg"
    title = "Federated averaging, Flower's own strategy"
    needs = "nothing"
    paper = "https://arxiv.org/abs/1602.05629"
