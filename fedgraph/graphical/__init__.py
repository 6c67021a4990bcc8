"""Probabilistic models of mixed tables over a graph of their features: recovery, training, merging and inference.

Neural graphical models (NGM) and neural graph revealers (NGR). Chajewska, Shrivastava: Federated Learning with Neural
Graphical Models::

    from fedgraph.graphical import GraphicalModel

    model = GraphicalModel.load(Path("runs/asia/global.safetensors"))
    model.predict_proba([{"xray": "yes"}], "lung")
    model.conditional([{"xray": "yes"}], ["lung", "bronc"])
"""

from fedgraph.graphical.model import GraphicalModel
from fedgraph.graphical.statistics import (
    Consent,
    SharedStatistics,
    StatisticsSettings,
    check_consent,
    shared_statistics,
)

__all__ = ["Consent", "GraphicalModel", "SharedStatistics", "StatisticsSettings", "check_consent", "shared_statistics"]
