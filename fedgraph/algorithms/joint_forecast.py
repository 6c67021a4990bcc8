"""One network that sees the windows of all clients: what sharing everything reaches, as a reference."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from fedgraph.algorithms.forecasts import ForecastAlgorithm, exchanged, outcome_of
from fedgraph.algorithms.phases import Outcome, Phase, PhaseRun
from fedgraph.fusion.forecasting import JointForecastSettings
from fedgraph.support.errors import ExperimentError


class JointForecast(ForecastAlgorithm[JointForecastSettings]):
    """Asks the one node that has all data to train a network and to measure it for each client."""

    name = "joint-forecast"
    title = "One network that sees the windows of all clients: Graph WaveNet, or a perceptron"
    needs = "time series, such as metr-la, and all clients on one node (--nodes 1)"
    paper = "https://arxiv.org/abs/1906.00121"
    expected_failures: ClassVar = {"number-of-nodes": "it pools the data of all clients, which one node must have"}
    default_client = "fedgraph.clients.joint_forecast:JointForecastClient"

    def phases(self, run: PhaseRun) -> Phase[Outcome]:
        """See :class:`PhasedAlgorithm`. Raises ExperimentError when more than one node hosts clients."""
        clients = yield from self.identified()
        if len(clients.hosts) > 1:
            raise ExperimentError(
                f"joint-forecast needs the readings of all clients on one node; here {len(clients.hosts)} nodes host "
                "them: run it with --nodes 1"
            )
        graph = run.graph_of(clients)
        shared: dict[str, Tensor] = {} if graph is None else {"graph": graph.subgraph(clients.names).dense().float()}
        replies = yield from exchanged(run, shared=shared)
        measured_on = f"{len(replies.names)} clients, forecast by one network that sees all: {self.settings.network}"
        return outcome_of(clients, replies, measured_on, replies.metrics)
