"""Forecasts of later windows by the encoders and the network that a run of F3 for forecasts has left.

Ma, Hoang, Chen (UAI 2023), lines 8 to 11 of algorithm 1, for time series.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from torch import Tensor

from fedgraph.experiment import load_experiment
from fedgraph.federation import Federation, OrderedGrid
from fedgraph.fusion.forecasting import FittedForecasts, OwnerWindows, forecasts
from fedgraph.messages import to_record
from fedgraph.methods.f3_forecast import LATEST_READINGS, EncoderSettings, F3ForecastInferenceSettings
from fedgraph.models import flattened
from fedgraph.runs import RunFolder
from fedgraph.strategies.engine.forecasts import ForecastStrategy
from fedgraph.strategies.engine.phases import Outcome
from fedgraph.strategies.engine.replies import Replies
from fedgraph.support.errors import DataError, ExperimentError, quoted
from fedgraph.support.settings import part_of


class F3ForecastInference(ForecastStrategy[F3ForecastInferenceSettings]):
    """Embeddings of the latest windows come up, and what the network makes of them goes back: an exchange each.

    Clients that are absent, and windows that a client lacks, are masked; with ``[experiment] on-missing = "skip"`` a
    run continues without them.
    """

    name = "f3-forecast-inference"
    title = "Forecasts of later windows by what a run of f3-forecast has left"
    needs = "[f3-forecast-inference] run, the folder of that run; `fedgraph predict` sees to it"
    default_client = "fedgraph.clients.f3_forecast:LaterWindowsClient"

    def check(self) -> None:
        """See :class:`ForecastStrategy`."""
        if not self._trained.fusion.is_file():
            raise ExperimentError(
                f"{self.settings.run} has no network for forecasts: it is no finished run of f3-forecast"
            )
        before = load_experiment(self._trained.path / "experiment.toml").method_table
        # Another file may have the readings of training and later ones behind them, which its nodes check.
        self._trained.check_same_data(self.plan.data, f"[{self.name}] run", but=("path",))
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
        lost = self._left_out(federation, fitted.owners)
        sent = self._embeddings(nodes, federation, fitted.sizes[0])
        self._note_empty(sent)
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
            {**lost, **sent.absent, **measured.absent}, {"windows": len(windows)},
        )  # fmt: skip
        return outcome, to_record(state)

    def _left_out(self, federation: Federation, owners: Sequence[str]) -> dict[str, str]:
        """Clients of the run that are not there now, and why; for those that are expected, or if none are, an error.

        Others listen to them, so that forecasts without them are worse: whoever reads the results is told.
        """
        expect = self.plan.roll_call.expect
        missing = [name for name in owners if name not in federation.names]
        lost = dict.fromkeys(
            (name for name in missing if expect is None or name in expect),
            "it took part in the run, and no node has data of it now, as when its column is gone from the file",
        )
        self.check_present(lost, len(federation.names))
        if missing:
            self.plan.folder.notes.append(
                f"forecast without {quoted(missing, 8)}, of the {len(owners)} clients of the run: there are no "
                "forecasts of theirs, and those of others, who listened to them, may be worse"
            )
        return lost

    def _note_empty(self, sent: Replies) -> None:
        """Note whose latest window has no reading: its forecasts look like any other."""
        seen = sent.metrics.get(LATEST_READINGS)
        if seen is None:  # nodes may not say so
            return
        empty = [name for name, number in zip(sent.names, seen.tolist(), strict=True) if number == 0]
        if empty:
            self.plan.folder.notes.append(
                f"the latest window of {quoted(empty, 8)} has no reading: what is forecast from it rests on the "
                "embeddings of others and on what was usual in training (column readings_in_window of the files)"
            )

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
