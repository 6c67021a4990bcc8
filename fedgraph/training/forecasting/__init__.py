"""Forecasts of a cohort of time series: embeddings and errors of windows, and simple forecasters.

>>> from fedgraph.training.forecasting import SIMPLE
>>> SIMPLE
('last-reading', 'weekly-profile', 'ridge', 'trees')
"""

from fedgraph.training.forecasting.examples import (
    FileForm,
    batches,
    compute_embeddings,
    embedding_cohort,
    forecast_errors,
    in_unit,
    read_targets,
    write_forecasts,
)
from fedgraph.training.forecasting.simple import SIMPLE, SimpleForecaster, simple_forecasts

__all__ = [
    "SIMPLE",
    "FileForm",
    "SimpleForecaster",
    "batches",
    "compute_embeddings",
    "embedding_cohort",
    "forecast_errors",
    "in_unit",
    "read_targets",
    "simple_forecasts",
    "write_forecasts",
]
