"""Values of a table with columns of many kinds as numbers, as the units of a network, and back."""

from fedgraph.data.encoding.encoding import Encoding
from fedgraph.data.encoding.rows import Rows, as_dicts, is_missing, to_values
from fedgraph.data.encoding.scaling import (
    Bounds,
    Range,
    Ranges,
    Scaling,
    ScalingSettings,
    agreed_scaling,
    may_be_skewed,
    needs_range,
    quantile_range,
    skewed_range,
)
from fedgraph.data.encoding.values import as_table, check_shape, read_values

__all__ = [
    "Bounds",
    "Encoding",
    "Range",
    "Ranges",
    "Rows",
    "Scaling",
    "ScalingSettings",
    "agreed_scaling",
    "as_dicts",
    "as_table",
    "check_shape",
    "is_missing",
    "may_be_skewed",
    "needs_range",
    "quantile_range",
    "read_values",
    "skewed_range",
    "to_values",
]
