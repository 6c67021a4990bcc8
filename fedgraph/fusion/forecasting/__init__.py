"""Forecasts from embeddings: what clients compute of their windows, and what the server learns of all clients' windows.

>>> from fedgraph.fusion.forecasting import ForecastFusionSettings
>>> ForecastFusionSettings(graph="none").mixes
2
"""

from fedgraph.fusion.forecasting.encoders import embeddings_of, forecast_errors, targets_of
from fedgraph.fusion.forecasting.fusion import ForecastFusion, ForecastFusionSettings, fit_forecasts, forecasts
from fedgraph.fusion.forecasting.windows import OwnerWindows

__all__ = [
    "ForecastFusion",
    "ForecastFusionSettings",
    "OwnerWindows",
    "embeddings_of",
    "fit_forecasts",
    "forecast_errors",
    "forecasts",
    "targets_of",
]
