"""Simple forecasters, each client by itself: what a method has to beat."""

from __future__ import annotations

from fedgraph.algorithms import simple_forecast
from fedgraph.strategies.engine.phased_method import PhasedMethod


class SimpleForecast(PhasedMethod):
    """See :class:`fedgraph.algorithms.simple_forecast.SimpleForecast`."""

    algorithm_class = simple_forecast.SimpleForecast
    default_client = "fedgraph.clients.simple_forecast:SimpleForecastClient"
