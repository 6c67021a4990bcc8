"""The client class of simple forecasters: fits and evaluates one per client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fedgraph.algorithms.simple_forecast import SimpleForecastSettings
from fedgraph.clients.engine.base import CohortClient, evaluate_forecasts, examples_of
from fedgraph.messages import WorkReply
from fedgraph.training.forecasting import in_unit, simple_forecasts


class SimpleForecastClient(CohortClient[SimpleForecastSettings]):
    """Sends only errors."""

    @classmethod
    def refuses_function(cls, method: Mapping[str, Any]) -> str:
        """See :class:`CohortClient`."""
        return "it fits its own forecasters"

    sends: ClassVar[tuple[str, ...]] = ("errors of each client's forecasts",)
    keeps: ClassVar[tuple[str, ...]] = ("readings", "each client's forecaster")

    def reply(self) -> WorkReply:
        """Fit, and evaluate the requested splits."""
        cohort, splits = self.cohort, self.request.evaluate
        found = simple_forecasts(self.settings.forecaster, cohort, splits)
        if self.leaves_forecasts:
            self.leave_forecasts(in_unit(cohort, found["test"]))
        self.node.done.append(f"forecast and evaluated {examples_of(cohort, splits)}")
        return WorkReply(self.request.clients, {}, evaluate_forecasts(self.assignment, cohort, found))
