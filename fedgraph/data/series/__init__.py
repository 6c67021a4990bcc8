"""Time series, each a client that forecasts its own next steps: road traffic, one's own files, made-up traffic."""

from fedgraph.data.series.cold_start import INFERRED, asked_scale
from fedgraph.data.series.scale_transfer import cold_rows, inferred_scales, neighbourhoods, reference_rows
from fedgraph.data.series.scaling import pooled, usable
from fedgraph.data.series.windows import shares_scales, starts_of

__all__ = [
    "INFERRED",
    "asked_scale",
    "cold_rows",
    "inferred_scales",
    "neighbourhoods",
    "pooled",
    "reference_rows",
    "shares_scales",
    "starts_of",
    "usable",
]
