"""FedPer: FedAvg of the first layers; the last ones are personal and stay with the clients.

Arivazhagan et al., Federated Learning with Personalization Layers (2019), algorithm 1.
"""

from __future__ import annotations

from fedgraph.methods.baselines import FedPerSettings
from fedgraph.strategies.engine.global_model import GlobalModelStrategy


class FedPer(GlobalModelStrategy[FedPerSettings]):
    """FedAvg of the representation; every client has its own last layer."""

    name = "fedper"
    title = "FedAvg with a personal last layer (FedPer)"
    paper = "https://arxiv.org/abs/1912.00818"
    default_client = "fedgraph.clients.fedper:PersonalLayersClient"
