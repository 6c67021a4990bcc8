from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.data.schema.json import LONGEST_JSON, LONGEST_NAME, schema_as_json, schema_from_json
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.support.errors import DataError, ReplyError

TEXT = st.text(st.characters(categories=("L", "N", "P", "S"), include_characters=" "), min_size=1).filter(str.strip)


@st.composite
def schemas(draw):
    features = []
    for name in draw(st.lists(TEXT, min_size=1, max_size=5, unique=True)):
        kind = draw(st.sampled_from(["real", "integer", "ordinal", "binary", "categorical"]))
        fewest, most = {"ordinal": (2, 4), "binary": (2, 2), "categorical": (1, 4)}.get(kind, (0, 0))
        if kind == "ordinal" and draw(st.booleans()):
            most = fewest = 0
        categories = draw(st.lists(TEXT, min_size=fewest, max_size=most, unique=True))
        features.append(Feature(name, kind, tuple(categories)))
    return Schema(tuple(features))


@settings(max_examples=100)
@given(schemas())
def test_there_and_back(schema):
    assert schema_from_json(schema_as_json(schema)) == schema


def one(**changes):
    return json.dumps([{"name": "a", "kind": "real", "categories": [], **changes}])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is malformed"),
        ("{}", "is malformed"),
        ("[" * 5000, "is malformed"),
        ("[]", "2,000 .*0$"),
        (one(name=1), "malformed: 0.name Input should be a valid string"),
        (one(name=None), "0.name"),
        (one(kind="number"), "0.kind"),
        (one(categories="abc"), "0.categories"),
        (one(categories=[1, 2]), "0.categories.0"),
        (one(extra=1), "0.extra Extra inputs are not permitted"),
        ('[{"name": "a", "kind": "real"}]', "0.categories Field required"),
        (one(kind="binary"), "is binary and cannot have 0 categories"),
        (one(categories=["x"]), "is real and cannot have 1 categories"),
        (one(kind="categorical", categories=["x", "x"]), "lists a category twice"),
        (json.dumps([json.loads(one())[0]] * 2), "duplicate feature 'a'"),
        (one(name=""), "the name of a feature is empty"),
        (one(kind="categorical", categories=["x", " "]), "a category of feature 'a' is empty"),
        (one(name="a" * (LONGEST_NAME + 1)), "201 characters"),
        (one(name="a\nb"), "line breaks or control characters"),
        (one(name="a\u202eb"), "line breaks or control characters"),
        (one(name="a\x1b[31m"), r"'a\\\\x1b\[31m', holds line breaks"),
        (one(name="\ud800"), "is malformed"),
        (one(kind="categorical", categories=list(map(str, range(1001)))), "0.categories .*at most 1000 items"),
        (json.dumps([{"name": str(n), "kind": "real", "categories": []} for n in range(2001)]), "at most 2000 items"),
        (
            json.dumps(
                [{"name": str(n), "kind": "categorical", "categories": list(map(str, range(1000)))} for n in range(21)]
            ),
            "20,000 .*21,000",
        ),
    ],
)
def test_what_is_no_schema(text, message):
    with pytest.raises(ReplyError, match=message) as caught:
        schema_from_json(text, "the schema of client 'north'")
    assert str(caught.value).startswith("the schema of client 'north' ")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_what_is_too_long_is_not_even_read():
    with pytest.raises(ReplyError, match="has 5,000,001 characters"):
        schema_from_json(" " * (LONGEST_JSON + 1))


def test_the_owner_learns_what_would_not_be_let_in():
    with pytest.raises(DataError, match="'note', .*line breaks"):
        schema_as_json(Schema((Feature("note", "categorical", ("two\nlines",)),)))
