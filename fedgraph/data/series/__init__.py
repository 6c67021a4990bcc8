"""Time series, each a client that forecasts its next steps: road traffic, the user's own files, synthetic traffic."""

from fedgraph.data.series.cold_start import INFERRED, cold_scale
from fedgraph.data.series.naive import (
    as_windows,
    covariate_features,
    last_readings,
    profile_forecasts,
    readings_in_windows,
    times_ahead,
)
from fedgraph.data.series.scale_transfer import cold_rows, inferred_scales, neighbourhoods, reference_rows
from fedgraph.data.series.scaling import pooled, usable
from fedgraph.data.series.series import WindowedSource
from fedgraph.data.series.windows import shares_scales, step_seconds

__all__ = [
    "INFERRED",
    "WindowedSource",
    "as_windows",
    "cold_rows",
    "cold_scale",
    "covariate_features",
    "inferred_scales",
    "last_readings",
    "neighbourhoods",
    "pooled",
    "profile_forecasts",
    "readings_in_windows",
    "reference_rows",
    "shares_scales",
    "step_seconds",
    "times_ahead",
    "usable",
]
