"""Forecasts of later windows by the encoders and the network that a run of F3 for forecasts has left.

Ma, Hoang, Chen (UAI 2023), lines 8 to 11 of algorithm 1, for time series.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from torch import Tensor

from fedgraph.experiment import load_experiment
from fedgraph.federation import Federation, OrderedGrid
from fedgraph.fusion.forecasting import FittedForecasts, OwnerWindows, forecasts
from fedgraph.messages import to_record
from fedgraph.methods.f3_forecast import EncoderSettings, F3ForecastInferenceSettings
from fedgraph.models import flattened
from fedgraph.runs import RunFolder
from fedgraph.support.errors import DataError, ExperimentError
from fedgraph.support.settings import part_of
from strategies.engine.forecasts import ForecastStrategy
from strategies.engine.phases import Outcome
from strategies.engine.replies import Replies


class F3ForecastInference(ForecastStrategy[F3ForecastInferenceSettings]):
    """Embeddings of the latest windows come up, and what the network makes of them goes back: an exchange each.

    Clients that are absent, and windows that a client lacks, are masked; with ``[experiment] on-missing = "skip"`` a
    run continues without them.
    """

    name = "f3-forecast-inference"
    title = "Forecasts of later windows by what a run of f3-forecast has left"
    needs = "[f3-forecast-inference] run, the folder of that run; `fedgraph predict` sees to it"
    default_client = "clients.f3_forecast:LaterWindowsClient"

    def check(self) -> None:
        """See :class:`ForecastStrategy`."""
        if not self._trained.fusion.is_file():
            raise ExperimentError(
                f"{self.settings.run} has no network for forecasts: it is no finished run of f3-forecast"
            )
        before = load_experiment(self._trained.path / "experiment.toml").method_table
        self._trained.check_same_data(self.plan.data, f"[{self.name}] run")
        trained = part_of(EncoderSettings, before, "[f3-forecast]").as_table()
        for key, value in part_of(EncoderSettings, self.settings.as_table(), f"[{self.name}]").as_table().items():
            if value != trained[key]:
                raise ExperimentError(
                    f"[{self.name}] {key} = {value!r}, but that run had {trained[key]!r}: leave it so"
                )

    def execute(self, grid: Grid) -> tuple[Outcome, ArrayRecord]:
        """See :class:`ForecastStrategy`.

        Raises
        ------
        FedgraphError
            If clients are missing, were not there in training, or lack what they kept; and if there is no network.
        """
        fitted = FittedForecasts.read(self._trained.fusion)
        federation, nodes = self.identified(grid, tuple(fitted.owners))
        strangers = [name for name in federation.names if name not in fitted.owners]
        if strangers:
            raise DataError(
                f"{', '.join(strangers[:8])} took no part in that run, so that there is no forecaster for them: name "
                "the others in [clients] expect, or train with all"
            )
        sent = self._embeddings(nodes, federation, fitted.sizes[0])
        rows = torch.tensor([fitted.owners.index(name) for name in sent.names])

        def of_owners(values: Tensor, nothing: float) -> Tensor:
            """Rows of clients as rows of the network's owners."""
            whole = torch.full((len(fitted.owners), *values.shape[1:]), nothing, dtype=values.dtype)
            whole[rows] = values
            return whole

        starts, embeddings = of_owners(sent.tensors["starts"], -1), of_owners(sent.tensors["embeddings"], 0)
        empty = torch.zeros(*starts.shape, 0)
        windows = OwnerWindows.of(starts, embeddings, empty, empty > 0)
        found = windows.of_owners(forecasts(fitted.network, windows), starts)[rows]
        measured = self._measured(nodes, federation, sent, found)
        state = fitted.network.state_dict()
        told = f"the latest windows of {len(measured.names)} clients, by network and encoders of {self._trained.name}"
        outcome = self.outcome_of(
            federation, measured.names, told, measured.metrics, flattened(state), 0,
            {**sent.absent, **measured.absent}, {"windows": len(windows)},
        )  # fmt: skip
        return outcome, to_record(state)

    @property
    def _trained(self) -> RunFolder:
        return RunFolder.open(self.settings.run)

    def _embeddings(self, grid: OrderedGrid, federation: Federation, size: int) -> Replies:
        """The embeddings of the clients' latest windows, and when these start."""
        room = self.settings.windows
        shapes = {"starts": (room,), "embeddings": (room, size)}
        types = {"starts": "int64", "embeddings": self.settings.precision}
        requests = {
            node: replace(self.request(federation.clients_of(node), {}, {}, train=True), run=self._trained.name)
            for node in federation.hosts
        }
        return self.exchanged(grid, federation, federation.hosts, requests, shapes, types)

    def _measured(self, grid: OrderedGrid, federation: Federation, sent: Replies, found: Tensor) -> Replies:
        """Send each client what the network makes of its windows; what it measures of its forecasts."""
        kind, dtype = self.settings.returned
        counts = (sent.tensors["starts"] >= 0).sum(1)
        asked, requests = {}, {}
        for node, clients, positions, rows in self.hosts_of(grid, federation, sent.names):
            asked[node] = positions
            own = {f"{kind}/test": found[rows, : int(counts[rows].max())].to(dtype)}
            requests[node] = replace(self.request(clients, own, {}, train=False), run=self._trained.name)
        return self.exchanged(grid, federation, asked, requests)
