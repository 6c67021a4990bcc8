"""The client class of simple forecasters: fits one for each client, and measures it."""

from __future__ import annotations

from typing import ClassVar

from clients.engine.base import CohortClient
from fedgraph.messages import WorkReply
from fedgraph.methods.baselines import SimpleForecastSettings
from fedgraph.training.forecasting import forecast_errors, simple_forecasts


class SimpleForecastClient(CohortClient[SimpleForecastSettings]):
    """Sends errors and nothing else."""

    sends: ClassVar[tuple[str, ...]] = ("errors of each client's forecasts",)
    keeps: ClassVar[tuple[str, ...]] = ("readings", "each client's forecaster")

    def reply(self) -> WorkReply:
        """Fit, and measure the splits asked for."""
        cohort, splits = self.uniform_cohort, self.request.evaluate
        horizons = self.assignment.horizons_of(cohort.data.task)
        found = simple_forecasts(self.settings.forecaster, cohort, splits)
        metrics = {
            f"{split}/{name}": values
            for split in splits
            for name, values in forecast_errors(
                cohort, found[split], split, horizons, self.assignment.missing_as
            ).items()
        }
        return WorkReply(self.request.clients, {}, metrics)
