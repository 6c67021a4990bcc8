"""Forecasts from embeddings: joined windows of all owners, and a network over a learned graph.

>>> from fedgraph.fusion.forecasting import ForecastFusionSettings
>>> ForecastFusionSettings(graph="none").mixes
2
"""

from fedgraph.fusion.forecasting.fitting import FitSettings, ForecastFit, Look, fit_network, forecasts
from fedgraph.fusion.forecasting.fusion import (
    FittedForecasts,
    ForecastFusion,
    ForecastFusionSettings,
    OwnerGraph,
    fit_forecasts,
    graph_weights,
)
from fedgraph.fusion.forecasting.windows import NO_WINDOW, OwnerWindows, shared_windows

__all__ = [
    "NO_WINDOW",
    "FitSettings",
    "FittedForecasts",
    "ForecastFit",
    "ForecastFusion",
    "ForecastFusionSettings",
    "Look",
    "OwnerGraph",
    "OwnerWindows",
    "fit_forecasts",
    "fit_network",
    "forecasts",
    "graph_weights",
    "shared_windows",
]
