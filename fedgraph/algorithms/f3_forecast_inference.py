"""Forecasts of later windows by the encoders and the network of a finished run of F3 for forecasts.

Ma, Hoang, Chen (UAI 2023), lines 8 to 11 of algorithm 1, for time series.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedgraph.algorithms.f3_forecast_settings import LATEST_READINGS, EncoderSettings, F3ForecastInferenceSettings
from fedgraph.algorithms.forecasts import ForecastAlgorithm, StackedReplies, build_outcome, exchanged
from fedgraph.algorithms.phases import Outcome, Phase, PhaseRun, Without
from fedgraph.fusion.forecasting import NO_WINDOW, FittedForecasts, OwnerWindows, forecasts
from fedgraph.messages import WorkReply
from fedgraph.models import flattened
from fedgraph.support.errors import DataError, ExperimentError, quoted
from fedgraph.support.settings import select_settings

_NETWORK = "fusion.safetensors"


class F3ForecastInference(ForecastAlgorithm[F3ForecastInferenceSettings]):
    """One exchange collects embeddings of the latest windows, and one returns the network's outputs for them.

    Clients that are absent, and windows that a client lacks, are masked; with ``[experiment] on-missing = "skip"`` a
    run continues without them.
    """

    name = "f3-forecast-inference"
    title = "Forecasts of later windows with the networks of a run of f3-forecast"
    needs = "[f3-forecast-inference] run, the folder of that run; `fedgraph predict` sees to it"
    default_client = "fedgraph.clients.f3_forecast:LaterWindowsClient"

    def check(self, run: PhaseRun) -> None:
        """See :class:`PhasedAlgorithm`."""
        trained = run.other_run(self.settings.run)
        if not (trained.path / _NETWORK).is_file():
            raise ExperimentError(
                f"{self.settings.run} has no network for forecasts: it is not a finished run of f3-forecast"
            )
        # Another file may hold the readings of training followed by later ones; nodes check that.
        trained.check_same_data(run.data, f"[{self.name}] run", but=("path",))
        before = select_settings(EncoderSettings, trained.method_table, "[f3-forecast]").as_table()
        for key, value in (
            select_settings(EncoderSettings, self.settings.as_table(), f"[{self.name}]").as_table().items()
        ):
            if value != before[key]:
                raise ExperimentError(f"[{self.name}] {key} = {value!r}, but that run had {before[key]!r}: keep it")

    def phases(self, run: PhaseRun) -> Phase[Outcome]:
        """Ask for embeddings of the latest windows, and send back the network's outputs for them.

        Raises DataError when clients were not there in training.
        """
        trained = run.other_run(self.settings.run)
        fitted = FittedForecasts.read(trained.path / _NETWORK)
        clients = yield from self.identified(tuple(fitted.owners))
        unknown_names = [name for name in clients.names if name not in fitted.owners]
        if unknown_names:
            raise DataError(
                f"{', '.join(unknown_names[:8])} took no part in that run and have no forecaster: name the others in "
                "[clients] expect, or train with all"
            )
        yield self._without_absent(run, clients.names, fitted.owners)
        sent = yield from self._embeddings(run, trained.run, fitted.sizes[0])
        notes = [*_without(sent, fitted.owners), *_empty(sent)]
        rows = torch.tensor([fitted.owners.index(name) for name in sent.names])

        def of_owners(values: Tensor, nothing: float) -> Tensor:
            """Rows of clients as rows of the network's owners."""
            whole = torch.full((len(fitted.owners), *values.shape[1:]), nothing, dtype=values.dtype)
            whole[rows] = values
            return whole

        starts, embeddings = of_owners(sent.tensors["starts"], NO_WINDOW), of_owners(sent.tensors["embeddings"], 0)
        empty = torch.zeros(*starts.shape, 0)
        windows = OwnerWindows.of(starts, embeddings, empty, empty > 0)
        found = windows.of_owners(forecasts(fitted.network, windows), starts)[rows]
        measured = yield from self._evaluate(run, trained.run, sent, found)
        state = fitted.network.state_dict()
        measured_on = (
            f"the latest windows of {len(measured.names)} clients, by network and encoders of {trained.path.name}"
        )
        facts: dict[str, Any] = {"windows": len(windows), **({"notes": notes} if notes else {})}
        return build_outcome(
            clients, measured, measured_on, measured.metrics, parameters=flattened(state), rounds=0, facts=facts,
            arrays=state,
        )  # fmt: skip

    def _without_absent(self, run: PhaseRun, there: Sequence[str], owners: Sequence[str]) -> Without:
        """Go on without clients of the run that are not there now; may be an error for those that are expected."""
        missing = [name for name in owners if name not in there and (run.expect is None or name in run.expect)]
        return Without(dict.fromkeys(missing, "it took part in the run, and no node has data of it now"))

    def _embeddings(self, run: PhaseRun, trained: str, size: int) -> Phase[StackedReplies]:
        """The embeddings of the clients' latest windows, and when these start."""
        room = self.settings.windows
        shapes = {"starts": (room,), "embeddings": (room, size)}
        types = {"starts": "int64", "embeddings": self.settings.precision}
        lack = partial(_unusable, where=f" in {self.settings.data}" if self.settings.data else "")
        return (yield from exchanged(run, shapes=shapes, types=types, train=True, name=trained, unusable=lack))

    def _evaluate(self, run: PhaseRun, trained: str, sent: StackedReplies, found: Tensor) -> Phase[StackedReplies]:
        """Send each client the network's outputs for its windows, and return what it measures of its forecasts."""
        kind, dtype = self.settings.returned
        counts = (sent.tensors["starts"] != NO_WINDOW).sum(1)

        def own(names: tuple[str, ...]) -> dict[str, Tensor]:
            rows = [sent.names.index(name) for name in names]
            return {f"{kind}/test": found[rows, : int(counts[rows].max())].to(dtype)}

        return (yield from exchanged(run, own, name=trained))


def _unusable(reply: WorkReply, where: str) -> dict[str, str]:
    """Return the clients of a reply without usable embeddings, and why."""
    lacking = (reply.stacked["starts"] == NO_WINDOW).all(1).tolist()
    names = [name for name, lacks in zip(reply.clients, lacking, strict=True) if lacks]
    return dict.fromkeys(names, f"it took part in the run, and there is no series of it{where}") | reply.unusable()


def _without(sent: StackedReplies, owners: Sequence[str]) -> list[str]:
    """Return a note about clients of the run that have no forecasts: others listen to them, and may be worse off."""
    missing = [name for name in owners if name not in sent.names]
    if not missing:
        return []
    return [
        f"forecast without {quoted(missing, 8)}, of the {len(owners)} clients of the run: these have no forecasts, and "
        "those of clients that used their embeddings may be worse"
    ]


def _empty(sent: StackedReplies) -> list[str]:
    """Return a note about clients whose latest window has no reading."""
    seen = sent.metrics.get(LATEST_READINGS)
    if seen is None:  # nodes may not say so
        return []
    empty = [name for name, number in zip(sent.names, seen.tolist(), strict=True) if number == 0]
    if not empty:
        return []
    return [
        f"the latest window of {quoted(empty, 8)} has no reading: its forecasts rest on the embeddings of others and "
        "on training averages (column readings_in_window of the files)"
    ]
