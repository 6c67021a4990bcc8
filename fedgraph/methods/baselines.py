"""Settings of the trivial forecasters."""

from __future__ import annotations

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
