"""F3 for forecasts: frozen encoders, embeddings of all, a learned graph (after Ma, Hoang, Chen 2023)."""

from __future__ import annotations

from fedgraph.algorithms import f3_forecast
from fedgraph.strategies.engine.phased_method import PhasedMethod


class F3Forecast(PhasedMethod):
    """See :class:`fedgraph.algorithms.f3_forecast.F3Forecast`."""

    algorithm_class = f3_forecast.F3Forecast
    default_client = "fedgraph.clients.f3_forecast:F3ForecastClient"
