"""The features of a table with columns of many kinds: what they are, how they are inferred, what clients agree on."""

from fedgraph.data.schema.agreement import Agreement, agree, disagreeing, with_own_features
from fedgraph.data.schema.inference import SchemaSettings, WhyNone, check_used, infer_schema, without_values
from fedgraph.data.schema.json import check_length, schema_as_json, schema_from_json
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.data.schema.text import as_text

__all__ = [
    "Agreement",
    "Feature",
    "Schema",
    "SchemaSettings",
    "WhyNone",
    "agree",
    "as_text",
    "check_length",
    "check_used",
    "disagreeing",
    "infer_schema",
    "schema_as_json",
    "schema_from_json",
    "with_own_features",
    "without_values",
]
