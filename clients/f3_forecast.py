"""The client class of F3 for forecasts: a client's frozen encoder, and what it makes of the client's windows.

After Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023),
lines 2, 3 and 9 of algorithm 1. Encoders and profiles stay here. With shared targets the server is sent nearly all
readings of the training and the validation part, scaled; their scale follows from errors in the unit of readings.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from clients.engine.base import CohortClient, evaluate_splits
from clients.engine.node import Node
from fedgraph.data import SPLITS, SplitName
from fedgraph.data.series import starts_of
from fedgraph.experiment import Experiment
from fedgraph.messages import WorkReply
from fedgraph.methods.f3_forecast import FITTED_ON, EncoderSettings
from fedgraph.models import finite_rows, initial_model
from fedgraph.support.errors import ReplyError
from fedgraph.training import Cohort
from fedgraph.training.forecasting import cohort_of_embeddings, embeddings_of, forecast_errors, targets_of

_PURPOSE = "encoder"


class F3ForecastClient(CohortClient[EncoderSettings]):
    """A request to train asks for embeddings, any other brings forecasts, which are measured here."""

    keeps: ClassVar[tuple[str, ...]] = (
        "each client's encoder",
        "its weekly profile",
        "the readings of test windows",
    )

    @classmethod
    def sends_as(cls, experiment: Experiment, node: Node) -> list[str]:
        """What the node sends, as text; see ``clients.engine.disclosure``."""
        embeddings = "an embedding of each window: the input of the last linear layer of the client's own encoder"
        if experiment.method_table.get("targets") == "private":
            return [f"{embeddings}, and when it starts"]
        return [
            embeddings,
            "the readings to be forecast in training and validation windows, nearly all of these parts, and when each "
            "window starts; scaled, but the scale follows from errors in the unit of readings",
        ]

    def reply(self) -> WorkReply:
        """Send embeddings, or measure forecasts."""
        return self._embedded() if self.request.train else self._measured()

    def _embedded(self) -> WorkReply:
        """Train the encoders, and embed the windows of all splits."""
        cohort, room = self.uniform_cohort, self._room()
        encoders = self._encoders()
        self.remember(_PURPOSE, {"parameters": encoders})
        arrays: dict[str, Tensor] = {}
        for split in SPLITS:
            embeddings = embeddings_of(cohort, encoders, split).to(self.settings.dtype)
            starts = starts_of(cohort.data.splits[split])
            more = room[split] - starts.shape[1]
            arrays[f"starts/{split}"] = pad(starts, (0, more), value=-1)
            arrays[f"embeddings/{split}"] = pad(embeddings, (0, 0, 0, more))
            if split in FITTED_ON and self.settings.targets == "shared":
                targets, known = targets_of(cohort, split)
                arrays[f"targets/{split}"] = pad(targets, (0, 0, 0, more))
                arrays[f"known/{split}"] = pad(known.to(torch.uint8), (0, 0, 0, more))
        metrics = evaluate_splits(self.assignment, cohort, encoders, self.request.evaluate)
        return WorkReply(self.request.clients, arrays, {f"{name}-local": values for name, values in metrics.items()})

    def _encoders(self) -> Tensor:
        """Each client's encoder, ``[clients, parameters]``: what came, else its own after the round that was best."""
        cohort = self.uniform_cohort
        if "encoders" in self.request.stacked:
            return self.request.stacked["encoders"]
        return self._trained(cohort)

    def _trained(self, cohort: Cohort) -> Tensor:
        """Models trained for ``local_rounds``, after the round that was best for each client's validation windows."""
        models = initial_model(cohort.model, self.assignment.seed).expand(len(self.request.clients), -1).contiguous()
        best, lowest = models, torch.full((len(models),), torch.inf, dtype=torch.float64)
        moments: dict[str, Tensor] | None = None
        for number in range(1, self.settings.local_rounds + 1):
            result = cohort.train(models, number, None, moments)
            models, moments = result.parameters, result.optimizer_state if cohort.settings.keep_optimizer else None
            error = cohort.evaluate(models, "validation")["mae"].double()
            # A client without validation windows keeps its last model; one whose training diverges what it had before.
            better = (error < lowest) | (error.isnan() & lowest.isinf())
            better &= finite_rows(models)
            best, lowest = torch.where(better[:, None], models, best), torch.where(better, error, lowest)
        return best

    @cached_property
    def _own_embeddings(self) -> dict[SplitName, Tensor]:
        """What the encoders that this node has kept make of the windows, ``[clients, examples, size]`` by split."""
        cohort = self.uniform_cohort
        nothing = torch.full((cohort.model.layout.num_parameters,), torch.nan)
        encoders = self.recall(_PURPOSE, {"parameters": nothing})["parameters"]
        if bool(encoders.isnan().any()):
            raise ReplyError("this node does not have the encoders of this run: was its state folder removed?")
        return {split: embeddings_of(cohort, encoders, split) for split in SPLITS}

    def _forecast(self, suffix: str) -> dict[str, Tensor]:
        """Errors of a forecaster from each window's own embedding and that of a later window, which the server sent."""
        inputs = {
            split: torch.cat([own, self._sent("embeddings", suffix, split).float()], 2)
            for split, own in self._own_embeddings.items()
        }
        forecasters = cohort_of_embeddings(self.uniform_cohort, inputs, self.settings.hidden)
        models = self._trained(forecasters)
        metrics = evaluate_splits(self.assignment, forecasters, models, self.request.evaluate)
        return {f"{name}{suffix}": values for name, values in metrics.items()}

    def _measured(self) -> WorkReply:
        """Measure forecasts: those that came, or one's own from the embeddings that came, by what names end with."""
        cohort = self.uniform_cohort
        kind = "forecasts" if self.settings.targets == "shared" else "embeddings"
        suffixes = {name.partition("/")[0].removeprefix(kind) for name in self.request.stacked if name.startswith(kind)}
        metrics: dict[str, Tensor] = {}
        for suffix in sorted(suffixes):
            if self.settings.targets == "private":
                metrics |= self._forecast(suffix)
                continue
            for split in self.request.evaluate:
                sent = self._sent(kind, suffix, split)
                horizons = self.assignment.horizons_of(cohort.data.task)
                found = forecast_errors(cohort, sent, split, horizons, self.assignment.missing_as)
                metrics |= {f"{split}/{name}{suffix}": values for name, values in found.items()}
        return WorkReply(self.request.clients, {}, metrics)

    def _sent(self, kind: str, suffix: str, split: SplitName) -> Tensor:
        try:
            return self.request.stacked[f"{kind}{suffix}/{split}"]
        except KeyError:
            raise ReplyError(f"the request to measure the split '{split}' lacks its {kind}") from None

    def _room(self) -> dict[str, int]:
        """Examples of each split that the arrays have room for."""
        try:
            return dict(zip(SPLITS, self.request.shared["examples"].tolist(), strict=True))
        except (KeyError, ValueError):
            raise ReplyError("the request for embeddings does not say how many examples there are") from None
