"""One network that sees the windows of all clients: what sharing everything reaches, as a reference."""

from __future__ import annotations

from typing import ClassVar

from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from torch import Tensor, zeros

from fedgraph.fusion.forecasting import JointForecastSettings
from fedgraph.strategies.engine.forecasts import ForecastStrategy
from fedgraph.strategies.engine.phases import Outcome
from fedgraph.support.errors import ExperimentError


class JointForecast(ForecastStrategy[JointForecastSettings]):
    """Asks the one node that has all data to train a network and to measure it for each client."""

    name = "joint-forecast"
    title = "One network that sees the windows of all clients: Graph WaveNet, or a perceptron"
    needs = "time series, such as metr-la, and all clients on one node (--nodes 1)"
    paper = "https://arxiv.org/abs/1906.00121"
    default_client = "fedgraph.clients.joint_forecast:JointForecastClient"
    expected_failures: ClassVar = {"number-of-nodes": "it pools the data of all clients, which one node must have"}

    def execute(self, grid: Grid) -> tuple[Outcome, ArrayRecord]:
        """See :class:`ForecastStrategy`.

        Raises
        ------
        ExperimentError
            When more than one node hosts clients.
        """
        federation, nodes = self.identified(grid)
        if len(federation.hosts) > 1:
            raise ExperimentError(
                f"joint-forecast needs the readings of all clients on one node; here {len(federation.hosts)} nodes "
                "host them: run it with --nodes 1"
            )
        graph = self.plan.graph_of(federation)
        (node,) = federation.hosts
        given: dict[str, Tensor] = {} if graph is None else {"graph": graph.subgraph(federation.names).dense().float()}
        requests = {node: self.request(federation.clients_of(node), {}, given, train=False)}
        replies = self.exchanged(nodes, federation, federation.hosts, requests)
        told = f"{len(replies.names)} clients, forecast by one network that sees all: {self.settings.network}"
        outcome = self.outcome_of(federation, replies.names, told, replies.metrics, zeros(0), 1, replies.absent)
        return outcome, ArrayRecord()
