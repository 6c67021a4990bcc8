"""Forecasters without a network, what both sides agree on."""

from __future__ import annotations

from fedgraph.support.settings import Settings
from fedgraph.training.forecasting import SimpleForecaster


class SimpleForecastSettings(Settings):
    """``[simple-forecast]``.

    forecaster : ``last-reading``; ``weekly-profile``: the mean reading at that time of the week; ``ridge``: linear
                 regression; ``trees``: gradient-boosted trees. Ridge and trees see what [data] covariates name too.
    """

    forecaster: SimpleForecaster = "ridge"
