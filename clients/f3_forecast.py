"""The client class of F3 for forecasts: a client's frozen encoder, and what it makes of the client's windows.

After Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023),
lines 2, 3 and 9 of algorithm 1. Encoders, profiles, means and deviations stay here, and so do readings, but for those
that are forecast in training and validation windows.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from clients.engine.base import CohortClient, evaluate_splits
from clients.engine.node import Node
from fedgraph.data import SPLITS, SplitName
from fedgraph.data.series import shares_scales, starts_of
from fedgraph.experiment import Experiment
from fedgraph.messages import WorkReply
from fedgraph.methods.f3_forecast import FITTED_ON, EncoderSettings
from fedgraph.models import initial_model
from fedgraph.support.errors import ExperimentError, ReplyError
from fedgraph.training.forecasting import embeddings_of, forecast_errors, targets_of


class F3ForecastClient(CohortClient[EncoderSettings]):
    """A request to train asks for embeddings, any other brings forecasts, which are measured here."""

    keeps: ClassVar[tuple[str, ...]] = (
        "each client's encoder",
        "the mean and deviation of its readings, and its weekly profile",
        "the readings of test windows",
    )

    @classmethod
    def sends_as(cls, experiment: Experiment, node: Node) -> list[str]:
        """What the node sends, as text; see ``clients.engine.disclosure``."""
        return [
            "an embedding of each window: the input of the last linear layer of the client's own encoder",
            "the readings to be forecast in training and validation windows, scaled by the client's own mean and "
            "deviation, and when each window starts",
        ]

    def reply(self) -> WorkReply:
        """Send embeddings, or measure forecasts."""
        if shares_scales(self.assignment.data):
            raise ExperimentError(
                '[data] scaling = "pooled" and cold-scale are for methods of rounds: f3-forecast scales each client by '
                "its own readings"
            )
        return self._embedded() if self.request.train else self._measured()

    def _embedded(self) -> WorkReply:
        """Train the encoders, and embed the windows of all splits."""
        cohort, room = self.uniform_cohort, self._room()
        encoders = self._encoders()
        arrays: dict[str, Tensor] = {}
        for split in SPLITS:
            embeddings = embeddings_of(cohort, encoders, split).to(self.settings.dtype)
            starts = starts_of(cohort.data.splits[split])
            more = room[split] - starts.shape[1]
            arrays[f"starts/{split}"] = pad(starts, (0, more), value=-1)
            arrays[f"embeddings/{split}"] = pad(embeddings, (0, 0, 0, more))
            if split in FITTED_ON:
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
        encoders = initial_model(cohort.model, self.assignment.seed).expand(len(self.request.clients), -1).contiguous()
        best, lowest = encoders, torch.full((len(encoders),), torch.inf, dtype=torch.float64)
        for number in range(1, self.settings.local_rounds + 1):
            encoders = cohort.train(encoders, number).parameters
            error = cohort.evaluate(encoders, "validation")["mae"].double()
            # A client without validation windows keeps its last encoder.
            better = (error < lowest) | error.isnan()
            best, lowest = torch.where(better[:, None], encoders, best), torch.where(better, error, lowest)
        return best

    def _measured(self) -> WorkReply:
        """Measure the forecasts that came, ``[clients, examples, steps]`` by split and what their names end with."""
        cohort = self.uniform_cohort
        horizons = self.assignment.horizons_of(cohort.data.task)
        suffixes = {
            name.partition("/")[0].removeprefix("forecasts")
            for name in self.request.stacked
            if name.startswith("forecasts")
        }
        metrics = {
            f"{split}/{name}{suffix}": values
            for suffix in sorted(suffixes)
            for split in self.request.evaluate
            for name, values in forecast_errors(cohort, self._forecasts(suffix, split), split, horizons).items()
        }
        return WorkReply(self.request.clients, {}, metrics)

    def _forecasts(self, suffix: str, split: SplitName) -> Tensor:
        try:
            return self.request.stacked[f"forecasts{suffix}/{split}"]
        except KeyError:
            raise ReplyError(f"the request to measure the split '{split}' lacks its forecasts") from None

    def _room(self) -> dict[str, int]:
        """Examples of each split that the arrays have room for."""
        try:
            return dict(zip(SPLITS, self.request.shared["examples"].tolist(), strict=True))
        except (KeyError, ValueError):
            raise ReplyError("the request for embeddings does not say how many examples there are") from None
