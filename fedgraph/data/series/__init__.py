"""Time series, each a client that forecasts its own next steps: road traffic, your own files, made-up traffic."""

from fedgraph.data.series.cold_start import INFERRED, asked_scale
from fedgraph.data.series.naive import (
    covariate_features,
    last_readings,
    profile_forecasts,
    readings_in_windows,
    starts_of,
    steps_of,
    times_ahead,
)
from fedgraph.data.series.scale_transfer import cold_rows, inferred_scales, neighbourhoods, reference_rows
from fedgraph.data.series.scaling import pooled, usable
from fedgraph.data.series.series import WindowedSource
from fedgraph.data.series.windows import shares_scales, step_seconds

__all__ = [
    "INFERRED",
    "WindowedSource",
    "asked_scale",
    "cold_rows",
    "covariate_features",
    "inferred_scales",
    "last_readings",
    "neighbourhoods",
    "pooled",
    "profile_forecasts",
    "readings_in_windows",
    "reference_rows",
    "shares_scales",
    "starts_of",
    "step_seconds",
    "steps_of",
    "times_ahead",
    "usable",
]
