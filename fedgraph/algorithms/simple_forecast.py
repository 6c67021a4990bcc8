"""Simple forecasters, each client by itself: baselines for other methods."""

from __future__ import annotations

from fedgraph.algorithms.forecasts import ForecastAlgorithm, build_outcome, exchanged
from fedgraph.algorithms.phases import Outcome, Phase, PhaseRun
from fedgraph.support.settings import Settings
from fedgraph.training.forecasting import SimpleForecaster


class SimpleForecastSettings(Settings):
    """``[simple-forecast]``.

    Attributes
    ----------
    forecaster : ``last-reading``; ``weekly-profile``: the mean reading at that time of the week; ``ridge``: linear
                 regression; ``trees``: gradient-boosted trees. Ridge and trees also use the [data] covariates.
    """

    forecaster: SimpleForecaster = "ridge"


class SimpleForecast(ForecastAlgorithm[SimpleForecastSettings]):
    """Asks the clients to fit and evaluate forecasters; they only return errors."""

    name = "simple-forecast"
    title = "Last reading, weekly profile, ridge regression or boosted trees, each client by itself"
    no_predictions = (
        'simple forecasters are fitted for comparison and not kept; [evaluation] forecasts = "csv" writes their '
        "forecasts of "
        "the test windows"
    )
    default_client = "fedgraph.clients.simple_forecast:SimpleForecastClient"

    def phases(self, run: PhaseRun) -> Phase[Outcome]:
        """See :class:`PhasedAlgorithm`."""
        clients = yield from self.identified()
        replies = yield from exchanged(run)
        measured_on = f"{len(replies.names)} clients, each forecast by itself: {self.settings.forecaster}"
        return build_outcome(clients, replies, measured_on, replies.metrics, rounds=0)
