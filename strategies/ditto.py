"""Ditto: FedAvg, and a personal model per client, regularised towards the global one.

Li et al., Ditto: Fair and Robust Federated Learning Through Personalization (ICML 2021), algorithm 1.
"""

from __future__ import annotations

from fedgraph.federation import Federation
from fedgraph.methods.baselines import DittoSettings
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.global_model import GlobalModelStrategy


class Ditto(GlobalModelStrategy[DittoSettings]):
    """FedAvg at the server; the clients' own models, which are evaluated, stay with them."""

    name = "ditto"
    title = "FedAvg, and a personal model per client, regularised towards the global one (Ditto)"
    paper = "https://arxiv.org/abs/2012.04221"
    default_client = "fedgraph.clients.ditto:DittoClient"

    def __init__(self, settings: DittoSettings, federation: Federation, plan: RunPlan) -> None:
        super().__init__(settings, federation, plan)
        settings.training(plan.train)

    @property
    def restorable(self) -> bool:
        """False: the clients' own models are not at the server."""
        return False
