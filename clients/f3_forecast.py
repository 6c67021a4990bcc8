"""The client class of F3 for forecasts: a client's frozen encoder, and its embeddings of the client's windows.

After Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023),
lines 2, 3 and 9 of algorithm 1. Encoders and profiles stay here. With shared targets the server receives nearly all
readings of the training and validation parts, scaled; their scale follows from errors in the unit of readings.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedgraph.algorithms.f3_forecast_settings import (
    FITTED_ON,
    LATEST_READINGS,
    EncoderSettings,
    F3ForecastSettings,
    LaterWindowsSettings,
)
from fedgraph.clients.engine.base import CohortClient, evaluate_forecasts, evaluate_splits, examples_of
from fedgraph.clients.engine.node import Node
from fedgraph.data import SPLITS, CohortData, Preprocessing, SplitName
from fedgraph.data.preprocessing import latest, stacked
from fedgraph.data.series import WindowedSource, as_windows, readings_in_windows
from fedgraph.experiment import Experiment
from fedgraph.fusion.forecasting import NO_WINDOW
from fedgraph.messages import WorkReply
from fedgraph.models import ModelChoice, build, finite_rows, initial_model
from fedgraph.support.errors import DataError, ReplyError, quoted
from fedgraph.support.files import run_state
from fedgraph.training import ClientState, Cohort
from fedgraph.training.forecasting import (
    compute_embeddings,
    embedding_cohort,
    in_unit,
    read_targets,
)


def _preprocessing_of(node: Node, run: str) -> Path:
    """Return the file of the preprocessing of data, next to the encoders of a run."""
    return run_state(node.model_dir / "forecasting", run) / Preprocessing.FOLDER


_ROUND = 1
"""The only one of these runs."""

Kept = TypeVar("Kept", bound=EncoderSettings)


class _ForecastClient(CohortClient[Kept]):
    """Clients that store their trained networks with their frozen models, for windows after the run."""

    @classmethod
    def refuses_function(cls, method: Mapping[str, Any]) -> str:
        """See :class:`CohortClient`."""
        return "its clients train further models besides that of [model]"

    def keep(self, purpose: str, stacked: Mapping[str, Tensor]) -> None:
        """Keep tensors ``[clients, ...]`` of this run, such as those of the ``encoder``."""
        self._kept(purpose).save(self.request.clients, _ROUND, stacked, _ROUND)

    def kept(self, purpose: str, empty: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the stored tensors of these clients; ``empty`` gives shapes without clients, and NaN for missing ones.

        Raises ReplyError when a client has stored nothing.
        """
        found = self._kept(purpose).load(self.request.clients, _ROUND + 1, empty)
        for name, lost in zip(self.request.clients, ~finite_rows(next(iter(found.values()))), strict=True):
            if lost:
                raise ReplyError(
                    f"this node lacks the {purpose} of {name} from the run; it was in the folder model-dir of the node "
                    "config"
                )
        return found

    def kept_parameters(self, purpose: str, cohort: Cohort) -> Tensor:
        """Return the stored models of ``cohort``, ``[clients, parameters]``."""
        empty = {"parameters": torch.full((cohort.model.layout.num_parameters,), torch.nan)}
        return self.kept(purpose, empty)["parameters"]

    def _kept(self, purpose: str) -> ClientState:
        return ClientState(self.node.model_dir / "forecasting", self.request.run, purpose)

    def forecasters(self, embeddings: Mapping[SplitName, Tensor], suffix: str) -> Cohort:
        """Return the clients with forecasters from a window's own embedding and the received one of a later window."""
        sent = {split: self.request.stacked[f"embeddings{suffix}/{split}"].float() for split in embeddings}
        if any(sent[split].shape[:2] != own.shape[:2] or sent[split].dim() != 3 for split, own in embeddings.items()):
            raise ReplyError("the request needs an embedding of each window")
        inputs = {split: torch.cat([own, sent[split]], 2) for split, own in embeddings.items()}
        return embedding_cohort(self.cohort, inputs, self.settings.hidden)


class F3ForecastClient(_ForecastClient[EncoderSettings]):
    """Answers training requests with embeddings; other requests contain forecasts, which are evaluated here."""

    keeps: ClassVar[tuple[str, ...]] = (
        "each client's encoder",
        "its weekly profile",
        "the readings of test windows",
    )

    @classmethod
    def sends_as(cls, experiment: Experiment, node: Node) -> list[str]:
        """The data that the node sends, as text; see ``fedgraph.clients.engine.disclosure``."""
        embeddings = "an embedding of each window: the input of the last linear layer of the client's own encoder"
        if experiment.method_table.get("targets") == "private":
            return [f"{embeddings}, and its start"]
        return [
            embeddings,
            "the targets of training and validation windows, nearly all readings of these parts, and the start of each "
            "window; scaled, but the scale follows from errors in the unit of readings",
        ]

    def reply(self) -> WorkReply:
        """Send embeddings, or evaluate forecasts."""
        return self._embedded() if self.request.train else self._evaluate()

    def _embedded(self) -> WorkReply:
        """Train the encoders and embed the windows of all splits."""
        cohort, room = self.cohort, self.room()
        encoders = self._encoders()
        data = cohort.data
        whole = as_windows(data.splits["train"]).series.shape[1]
        steps = torch.full((len(encoders),), float(whole), dtype=torch.float64)
        self.keep("encoder", {"parameters": encoders})
        if data.preprocessing is not None:
            data.preprocessing.write(_preprocessing_of(self.node, self.request.run))
        self.keep("scale", {"steps": steps, "mean": data.mean.double(), "std": data.std.double()})
        arrays: dict[str, Tensor] = {}
        for split in SPLITS:
            embeddings = compute_embeddings(cohort, encoders, split).to(self.settings.dtype)
            starts = as_windows(cohort.data.splits[split]).starts()
            more = room[split] - starts.shape[1]
            arrays[f"starts/{split}"] = pad(starts, (0, more), value=NO_WINDOW)
            arrays[f"embeddings/{split}"] = pad(embeddings, (0, 0, 0, more))
            if split in FITTED_ON and self.settings.targets == "shared":
                targets, known = read_targets(cohort, split)
                arrays[f"targets/{split}"] = pad(targets, (0, 0, 0, more))
                arrays[f"known/{split}"] = pad(known.to(torch.uint8), (0, 0, 0, more))
        metrics = evaluate_splits(self.assignment, cohort, encoders, self.request.evaluate)
        self.node.done.append(f"sent embeddings of {examples_of(cohort, SPLITS)}")
        return WorkReply(self.request.clients, arrays, {f"{name}-local": values for name, values in metrics.items()})

    def _encoders(self) -> Tensor:
        """Each client's encoder, ``[clients, parameters]``: received, or its own after its best round."""
        cohort = self.cohort
        if self.assignment.method.get("encoders") is not None:
            return self.request.stacked["encoders"]
        return self._trained(cohort)

    def _trained(self, cohort: Cohort) -> Tensor:
        """Models trained for ``local_rounds``, each after its best round on validation windows."""
        models = initial_model(cohort.model, self.assignment.seed).expand(len(self.request.clients), -1).contiguous()
        best, lowest = models, torch.full((len(models),), torch.inf, dtype=torch.float64)
        moments: dict[str, Tensor] | None = None
        for number in range(1, self.settings.local_rounds + 1):
            result = cohort.train(models, number, None, moments)
            models, moments = result.parameters, result.optimizer_state if cohort.settings.keep_optimizer else None
            error = cohort.evaluate(models, "validation")["mae"].double()
            # A client without validation windows keeps its last model; one whose training diverges its previous model.
            better = (error < lowest) | (error.isnan() & lowest.isinf())
            better &= finite_rows(models)
            best, lowest = torch.where(better[:, None], models, best), torch.where(better, error, lowest)
        return best

    @cached_property
    def _own_embeddings(self) -> dict[SplitName, Tensor]:
        """Embeddings of the windows by the stored encoders, ``[clients, examples, size]`` by split."""
        cohort = self.cohort
        encoders = self.kept_parameters("encoder", cohort)
        return {split: compute_embeddings(cohort, encoders, split) for split in SPLITS}

    def _forecast(self, suffix: str) -> dict[str, Tensor]:
        """Errors of the clients' own forecasters."""
        forecasters = self.forecasters(self._own_embeddings, suffix)
        models = self._trained(forecasters)
        if not suffix:
            self.keep("forecaster", {"parameters": models})
        # Networks over control graphs have suffixes; a run's forecasts are from the one without.
        if self.leaves_forecasts and not suffix:
            self.leave_forecasts(forecasters.predict(models, "test"))
        metrics = evaluate_splits(self.assignment, forecasters, models, self.request.evaluate)
        return {f"{name}{suffix}": values for name, values in metrics.items()}

    def _evaluate(self) -> WorkReply:
        """Evaluate forecasts, received or computed from received embeddings, for each suffix of their names."""
        cohort, (kind, _) = self.cohort, self.settings.returned
        suffixes = {name.partition("/")[0].removeprefix(kind) for name in self.request.stacked if name.startswith(kind)}
        if others := sorted(suffixes - self.assignment.method_as(F3ForecastSettings).graphs.keys()):
            raise ReplyError(f"the request has {kind} over graphs for which the method does not ask: {quoted(others)}")
        metrics: dict[str, Tensor] = {}
        for suffix in sorted(suffixes):
            if self.settings.targets == "private":
                metrics |= self._forecast(suffix)
                continue
            sent = {split: self.request.stacked[f"{kind}{suffix}/{split}"] for split in self.request.evaluate}
            if self.leaves_forecasts and not suffix:
                self.leave_forecasts(in_unit(cohort, sent["test"]))
            found = evaluate_forecasts(self.assignment, cohort, sent)
            metrics |= {f"{name}{suffix}": values for name, values in found.items()}
        self.node.done.append(f"evaluated forecasts of {examples_of(cohort, self.request.evaluate)}")
        return WorkReply(self.request.clients, {}, metrics)


class LaterWindowsClient(_ForecastClient[LaterWindowsSettings]):
    """Embeds later windows by the encoders of a finished run, named by the request; receives and evaluates forecasts.

    Forecasts are written to ``<state-dir>/forecasts/<run>/<client>.csv``: the time of each step, the forecast and the
    reading in their unit, and the number of readings of the input window.
    """

    keeps: ClassVar[tuple[str, ...]] = (*F3ForecastClient.keeps, "readings")
    divides: ClassVar[bool] = False

    @classmethod
    def sends_as(cls, experiment: Experiment, node: Node) -> list[str]:
        """The data that the node sends, as text; see ``fedgraph.clients.engine.disclosure``."""
        return [
            "an embedding of each later window, and its start; errors of its forecasts",
            "the number of readings of the latest window",
        ]

    @cached_property
    def cohort(self) -> Cohort:
        """The clients that have a series, with their latest windows as the split ``test``.

        Raises DataError if none has.
        """
        assignment = self.assignment
        data = self._behind_training() if self.settings.data is None else self._new(self.settings.data)
        model = build(ModelChoice.of(assignment.model).tables[0], data.task)
        return Cohort(model, data, assignment.train, assignment.seed)

    @cached_property
    def _rows(self) -> Tensor:
        """Positions in the request of the clients that have a series."""
        return torch.tensor([self.request.clients.index(name) for name in self.cohort.data.names])

    def _of_all(self, values: Tensor, nothing: float) -> Tensor:
        """Return rows of the clients that have a series as rows of all that were asked."""
        whole = torch.full((len(self.request.clients), *values.shape[1:]), nothing, dtype=values.dtype)
        whole[self._rows] = values
        return whole

    def _new(self, path: str) -> CohortData:
        """Read a file of new readings, on the scales of the run."""
        kept = Preprocessing.by_client(_preprocessing_of(self.node, self.request.run))
        clients = self.request.clients
        lost = [name for name in clients if name not in kept]
        if lost:
            raise ReplyError(f"this node lacks the scale of {lost[0]} in training, in the folder model-dir")
        new = kept[clients[0]].form.read(self.node.data_dir / Path(path).expanduser(), None)
        present = [name for name in clients if name in new.names]
        if not present:
            raise DataError(f"{path} has no series of {', '.join(clients[:8])}, which took part in the run")
        data = new.in_order(present).cohort(stacked([kept[name].of(name) for name in present]))
        return latest(data, self.settings.windows)

    def _behind_training(self) -> CohortData:
        """Read the windows after those of training, which must be unchanged."""
        known = self.kept("scale", {name: torch.tensor(torch.nan).double() for name in ("steps", "mean", "std")})
        steps = known["steps"].unique()
        if len(steps) > 1:
            raise ReplyError(
                "the clients of this node had series of different lengths in training: host them separately"
            )
        source = self.node.source(self.assignment)
        if not isinstance(source, WindowedSource):
            raise ReplyError("this data has no windows of time series")
        clients = self.request.clients
        data = source.load_later(clients, int(steps), self.settings.windows)
        others = [
            name
            for row, name in enumerate(clients)
            if (float(data.mean[row]), float(data.std[row])) != (float(known["mean"][row]), float(known["std"][row]))
        ]
        if others:
            # The message about all clients is the same on every node, and reported once.
            whose = f" of {', '.join(others[:8])}" if len(others) < len(clients) else ""
            raise DataError(
                f"the first {int(steps)} time steps{whose} are not those of training: keep those in the file, and "
                "append new ones"
            )
        return data

    def reply(self) -> WorkReply:
        """Send embeddings, or receive forecasts."""
        if not self.request.train:
            return self._forecast()
        windows = self.cohort.data.splits["test"]
        starts, seen = as_windows(windows).starts(), readings_in_windows(windows)
        more = self.settings.windows - starts.shape[1]
        arrays = {
            "starts": self._of_all(pad(starts, (0, more), value=NO_WINDOW), NO_WINDOW),
            "embeddings": self._of_all(pad(self._embeddings().to(self.settings.dtype), (0, 0, 0, more)), 0),
        }
        self.node.done.append(f"sent embeddings of {examples_of(self.cohort, ['test'])}")
        return WorkReply(self.request.clients, arrays, {LATEST_READINGS: self._of_all(seen[:, -1].double(), 0)})

    def _embeddings(self) -> Tensor:
        cohort = self.cohort
        return compute_embeddings(cohort, self.kept_parameters("encoder", cohort)[self._rows], "test")

    def _forecast(self) -> WorkReply:
        """Write forecasts of the windows, and evaluate those with readings."""
        cohort = self.cohort
        if self.settings.targets == "shared":
            found = self.request.stacked["forecasts/test"]
        else:
            forecasters = self.forecasters({"test": self._embeddings()}, "")
            mean, std = (values[:, None, None] for values in (cohort.data.mean, cohort.data.std))
            found = (forecasters.predict(self.kept_parameters("forecaster", forecasters), "test") - mean) / std
        self.leave_forecasts(in_unit(cohort, found))
        errors = evaluate_forecasts(self.assignment, cohort, {"test": found})
        metrics = {name.replace("test/", "later/", 1): values for name, values in errors.items()}
        self.node.done.append(f"received and evaluated forecasts of {examples_of(cohort, ['test'])}")
        return WorkReply(self.request.clients, {}, metrics)
