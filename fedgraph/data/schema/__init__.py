"""The features of a table with columns of many kinds: what they are, how they are found, what clients agree on."""

from fedgraph.data.schema.agreement import Agreement, agree, with_own_features
from fedgraph.data.schema.inference import SchemaSettings, infer_schema, refuse_unused
from fedgraph.data.schema.json import refuse_long, schema_as_json, schema_from_json
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.data.schema.text import as_text

__all__ = [
    "Agreement",
    "Feature",
    "Schema",
    "SchemaSettings",
    "agree",
    "as_text",
    "infer_schema",
    "refuse_long",
    "refuse_unused",
    "schema_as_json",
    "schema_from_json",
    "with_own_features",
]
