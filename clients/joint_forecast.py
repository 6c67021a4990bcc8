"""The client class of one network for all: trains and measures it on the one node that has all clients' data."""

from __future__ import annotations

import logging
from typing import ClassVar

import torch
from torch import nn

from clients.engine.base import CohortClient
from fedgraph.data import SplitName
from fedgraph.data.series import starts_of
from fedgraph.fusion.forecasting import JointForecastSettings, OwnerWindows, fit_joint, forecasts
from fedgraph.messages import WorkReply
from fedgraph.training.forecasting import batches, forecast_errors, targets_of

log = logging.getLogger("fedgraph")


class JointForecastClient(CohortClient[JointForecastSettings]):
    """Sends errors and nothing else."""

    sends: ClassVar[tuple[str, ...]] = ("errors of each client's forecasts",)
    keeps: ClassVar[tuple[str, ...]] = ("readings",)

    def reply(self) -> WorkReply:
        """Train, and measure the splits asked for."""
        cohort, splits = self.uniform_cohort, self.request.evaluate
        task, seed = cohort.data.task, self.assignment.seed
        given = self.request.shared.get("graph")
        training, validation = self._windows("train"), self._windows("validation")
        fit = fit_joint(self.settings, task.input_shape[0], training, validation, given, seed, _log_look)
        metrics = {
            f"{split}/{name}": values for split in splits for name, values in self._errors(fit.network, split).items()
        }
        return WorkReply(self.request.clients, {}, metrics)

    def _windows(self, split: SplitName) -> OwnerWindows:
        """The windows of all clients side by side, ``[clients, windows, steps * features]``, and their targets."""
        cohort = self.uniform_cohort
        inputs = torch.cat([batch.inputs.flatten(2).cpu() for batch, _ in batches(cohort, split)], 1)
        return OwnerWindows.of(starts_of(cohort.data.splits[split]), inputs, *targets_of(cohort, split))

    def _errors(self, network: nn.Module, split: SplitName) -> dict[str, torch.Tensor]:
        cohort, windows = self.uniform_cohort, self._windows(split)
        found = windows.of_owners(forecasts(network, windows), starts_of(cohort.data.splits[split]))
        horizons = self.assignment.horizons_of(cohort.data.task)
        return forecast_errors(cohort, found, split, horizons, self.assignment.missing_as)


def _log_look(step: int, training: float, validation: float) -> None:
    log.info("joint network, step %d: training loss %.4f, validation loss %.4f", step, training, validation)
