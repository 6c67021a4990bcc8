"""LG-FedAvg: FedAvg of the last layer; the representation is personal and stays with the clients.

Liang et al., Think Locally, Act Globally (2020), algorithm 1.
"""

from __future__ import annotations

from fedgraph.methods.baselines import LGFedAvgSettings
from fedgraph.strategies.engine.global_model import GlobalModelStrategy


class LGFedAvg(GlobalModelStrategy[LGFedAvgSettings]):
    """FedAvg of the last layer; every client has its own representation."""

    name = "lg-fedavg"
    title = "FedAvg of the last layer, with personal representations (LG-FedAvg)"
    paper = "https://arxiv.org/abs/2001.01523"
    default_client = "fedgraph.clients.fedper:PersonalLayersClient"
