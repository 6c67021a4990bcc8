"""Forecasts of a cohort of time series: embeddings and errors of windows in order, and forecasters without a network.

>>> from fedgraph.training.forecasting import SIMPLE
>>> SIMPLE
('last-reading', 'weekly-profile', 'ridge', 'trees')
"""

from fedgraph.training.forecasting.examples import (
    FileForm,
    batches,
    cohort_of_embeddings,
    embeddings_of,
    forecast_errors,
    in_unit,
    targets_of,
    write_forecasts,
)
from fedgraph.training.forecasting.simple import SIMPLE, SimpleForecaster, simple_forecasts

__all__ = [
    "SIMPLE",
    "FileForm",
    "SimpleForecaster",
    "batches",
    "cohort_of_embeddings",
    "embeddings_of",
    "forecast_errors",
    "in_unit",
    "simple_forecasts",
    "targets_of",
    "write_forecasts",
]
