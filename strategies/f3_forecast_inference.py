"""Forecasts of later windows by what a run of F3 for forecasts has left."""

from __future__ import annotations

from fedgraph.algorithms import f3_forecast_inference
from fedgraph.strategies.engine.phased_method import PhasedMethod


class F3ForecastInference(PhasedMethod):
    """See :class:`fedgraph.algorithms.f3_forecast_inference.F3ForecastInference`; ``fedgraph predict`` runs it."""

    algorithm_class = f3_forecast_inference.F3ForecastInference
    default_client = "fedgraph.clients.f3_forecast:LaterWindowsClient"
