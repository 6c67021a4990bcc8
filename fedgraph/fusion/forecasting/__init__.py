"""Forecasts from embeddings: the windows of all owners side by side, and a network over a learned graph.

>>> from fedgraph.fusion.forecasting import ForecastFusionSettings
>>> ForecastFusionSettings(graph="none").mixes
2
"""

from fedgraph.fusion.forecasting.fusion import (
    ForecastFit,
    ForecastFusion,
    ForecastFusionSettings,
    OwnerGraph,
    fit_forecasts,
    forecasts,
    graph_weights,
)
from fedgraph.fusion.forecasting.graph_network import GraphNetwork
from fedgraph.fusion.forecasting.windows import OwnerWindows

__all__ = [
    "ForecastFit",
    "ForecastFusion",
    "ForecastFusionSettings",
    "GraphNetwork",
    "OwnerGraph",
    "OwnerWindows",
    "fit_forecasts",
    "forecasts",
    "graph_weights",
]
