"""The features of a table with columns of many kinds: definition, inference, and agreement between clients."""

from fedgraph.data.schema.agreement import Agreement, agree, disagreeing, with_private_features
from fedgraph.data.schema.inference import ExclusionReason, SchemaSettings, check_used, excluded_columns, infer_schema
from fedgraph.data.schema.json import check_length, schema_as_json, schema_from_json
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.data.schema.text import as_text

__all__ = [
    "Agreement",
    "ExclusionReason",
    "Feature",
    "Schema",
    "SchemaSettings",
    "agree",
    "as_text",
    "check_length",
    "check_used",
    "disagreeing",
    "excluded_columns",
    "infer_schema",
    "schema_as_json",
    "schema_from_json",
    "with_private_features",
]
