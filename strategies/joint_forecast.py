"""One network that sees the windows of all clients: what sharing everything reaches, as a reference."""

from __future__ import annotations

from fedgraph.algorithms import joint_forecast
from fedgraph.strategies.engine.phased_method import PhasedMethod


class JointForecast(PhasedMethod):
    """See :class:`fedgraph.algorithms.joint_forecast.JointForecast`."""

    algorithm_class = joint_forecast.JointForecast
    default_client = "fedgraph.clients.joint_forecast:JointForecastClient"
