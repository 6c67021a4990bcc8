"""Probabilistic models of mixed tables over a graph of their features: recovery, training, merging and inference.

Neural graphical models (NGM) and neural graph revealers (NGR). Chajewska, Shrivastava: Federated Learning with Neural
Graphical Models::

    from fedgraph.graphical import GraphicalModel

    model = GraphicalModel.load(Path("runs/asia/global.safetensors"))
    model.predict_proba([{"xray": "yes"}], "lung")
    model.conditional([{"xray": "yes"}], ["lung", "bronc"])

Without a federation, and in scikit-learn's manner, :class:`NeuralGraphicalModel`::

    from fedgraph import NeuralGraphicalModel

    model = NeuralGraphicalModel().fit(data_frame)
    model.predict(data_frame, "lung"), model.sample(100), model.graph_
"""

from typing import TYPE_CHECKING, Any

from fedgraph.graphical.model import GraphicalModel
from fedgraph.graphical.statistics import SharedStatistics, StatisticsSettings, shared_statistics

if TYPE_CHECKING:
    from fedgraph.graphical.estimator import NeuralGraphicalModel

__all__ = [
    "GraphicalModel",
    "NeuralGraphicalModel",
    "SharedStatistics",
    "StatisticsSettings",
    "shared_statistics",
]


def __getattr__(name: str) -> Any:
    """Import the estimator lazily: scikit-learn takes a second, and runs do not need it."""
    if name != "NeuralGraphicalModel":
        raise AttributeError(f"module 'fedgraph.graphical' has no attribute '{name}'")
    from fedgraph.graphical.estimator import NeuralGraphicalModel

    return NeuralGraphicalModel
