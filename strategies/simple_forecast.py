"""Simple forecasters, each client by itself: what a method has to beat."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from fedgraph.methods.baselines import SimpleForecastSettings
from fedgraph.strategies.engine.forecasts import ForecastStrategy
from fedgraph.strategies.engine.phases import Outcome


class SimpleForecast(ForecastStrategy[SimpleForecastSettings]):
    """Asks the clients to fit and measure their forecasters; nothing but errors comes back."""

    name = "simple-forecast"
    title = "Last reading, weekly profile, ridge regression or boosted trees, each client by itself"
    default_client = "fedgraph.clients.simple_forecast:SimpleForecastClient"

    def execute(self, grid: Grid) -> tuple[Outcome, ArrayRecord]:
        """See :class:`ForecastStrategy`."""
        federation, nodes = self.identified(grid)
        requests = {
            node: self.request(federation.clients_of(node), {}, {}, train=False) for node in nodes.get_node_ids()
        }

        replies = self.exchanged(nodes, federation, federation.hosts, requests)
        told = f"{len(replies.names)} clients, each forecast by itself: {self.settings.forecaster}"
        outcome = self.outcome_of(federation, replies.names, told, replies.metrics, torch.zeros(0), 0, replies.absent)
        return outcome, ArrayRecord()
