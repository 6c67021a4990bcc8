from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.data.schema.agreement import agree, private_features, with_private_features
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.support.errors import DataError


def schema(*features):
    return Schema(tuple(feature if isinstance(feature, Feature) else Feature(feature, "real") for feature in features))


def listed(kind, *categories):
    return Feature("x", kind, categories)


def merged(*features):
    """What the first feature becomes, with another one beside it that is there anyway."""
    schemas = {f"client-{n}": schema(feature, "anyway") for n, feature in enumerate(features)}
    return agree(schemas, "private").common


def test_common_features_in_the_order_of_the_first_client():
    agreement = agree({"south": schema("a", "b", "z"), "east": schema("y", "b", "a"), "north": schema("b", "a")})
    assert agreement.common == schema("b", "a")
    assert agreement.private == {"east": ("y",), "north": (), "south": ("z",)}


REAL, INTEGER, ORDINAL = Feature("x", "real"), Feature("x", "integer"), Feature("x", "ordinal")


@pytest.mark.parametrize(
    ("features", "common"),
    [
        ([REAL, REAL], REAL),
        ([REAL, INTEGER], REAL),
        ([ORDINAL, ORDINAL], ORDINAL),
        ([ORDINAL, INTEGER], None),
        ([ORDINAL, listed("ordinal", "1", "2")], None),
        ([listed("ordinal", "a", "c"), listed("ordinal", "a", "b", "c")], listed("ordinal", "a", "b", "c")),
        ([listed("ordinal", "low", "mid"), listed("ordinal", "low", "high")], None),
        ([listed("ordinal", "low", "high"), listed("binary", "low", "high")], None),
        ([listed("binary", "n", "y"), listed("binary", "n", "y")], listed("binary", "n", "y")),
        ([listed("binary", "y", "n"), listed("binary", "y", "n")], listed("binary", "y", "n")),
        ([listed("binary", "y", "n"), listed("binary", "n", "y")], listed("binary", "n", "y")),
        ([listed("binary", "n", "y"), listed("categorical", "y")], listed("binary", "n", "y")),
        ([listed("categorical", "n"), listed("categorical", "y")], listed("binary", "n", "y")),
        ([listed("binary", "a", "b"), listed("binary", "b", "c")], listed("categorical", "a", "b", "c")),
        ([listed("categorical", "a", "b"), listed("binary", "a", "b")], listed("categorical", "a", "b")),
        ([listed("categorical", "1", "10", "9")] * 2, listed("categorical", "1", "10", "9")),
        ([listed("categorical", "1", "9", "2"), listed("binary", "10", "2")], listed("categorical", *"129", "10")),
        ([listed("categorical", "c", "b", "a"), listed("binary", "c", "a")], listed("categorical", "c", "b", "a")),
        ([listed("binary", "0", "1"), INTEGER], INTEGER),
        ([listed("categorical", "0"), INTEGER], INTEGER),
        ([listed("binary", "0", "2.5"), INTEGER], REAL),
        ([listed("categorical", "0"), INTEGER, REAL], REAL),
        ([listed("categorical", "1", "2", "3"), INTEGER], None),
        ([listed("binary", "n", "y"), INTEGER], None),
    ],
)  # fmt: skip
def test_what_clients_see_of_one_feature(features, common):
    for order in itertools.permutations(features):
        found = merged(*order)
        assert found == (schema("anyway") if common is None else schema(common, "anyway"))


def test_disputes_are_told_by_client():
    schemas = {
        "south": schema(listed("binary", "f", "m"), Feature("age", "ordinal"), "b"),
        "north": schema("b", INTEGER, Feature("age", "integer")),
        "east": schema("b", INTEGER, Feature("age", "integer")),
    }
    with pytest.raises(DataError) as caught:
        agree(schemas)
    lines = str(caught.value).splitlines()
    assert lines[1:3] == [
        "  'x' is integer at 'east', 'north', binary (f, m) at 'south'",
        "  'age' is integer at 'east', 'north', ordinal at 'south'",
    ]
    assert lines[3] == "give their kinds, or leave them out (drop)"
    agreement = agree(schemas, "private")
    assert agreement.common == schema("b")
    assert agreement.disputed == ("x", "age")
    assert agreement.private["south"] == ("x", "age")


def test_what_is_the_same_everywhere_is_left_out():
    only = listed("categorical", "n")
    agreement = agree({"a": schema(only, "b"), "c": schema("b", only, Feature("d", "categorical", ("k",)))})
    assert agreement.common == schema("b")
    assert agreement.constant == ("x",)
    # Neither is it worth a private unit.
    assert agreement.private == {"a": (), "c": ()}


def test_a_category_that_one_client_never_saw_has_a_unit():
    agreement = agree(
        {"a": schema(listed("categorical", "1", "2", "3")), "b": schema(listed("categorical", "4", "5", "6"))}
    )
    assert agreement.common["x"].categories == ("1", "2", "3", "4", "5", "6")
    assert agreement.unseen == {"x": {"a": ("4", "5", "6"), "b": ("1", "2", "3")}}


def test_a_client_models_the_common_features_first():
    common = schema(listed("categorical", "a", "b", "c"), "y")
    own = schema("p", "y", listed("binary", "a", "b"), Feature("q", "integer"))
    assert private_features(common, own) == schema("p", Feature("q", "integer"))
    whole = with_private_features(common, own)
    assert whole == schema(listed("categorical", "a", "b", "c"), "y", "p", Feature("q", "integer"))
    assert whole.slices["y"] == common.slices["y"]


def test_it_can_be_read():
    only = Feature("c", "categorical", ("k",))
    agreement = agree(
        {
            "west": schema("a", listed("binary", "n", "y"), only, Feature("d", "ordinal")),
            "east": schema(Feature("a", "integer"), listed("categorical", "n"), only, Feature("d", "real"), "e"),
        },
        "private",
    )
    assert agreement.describe().splitlines() == [
        "2 common features of 2 clients",
        "  'a' is real: integer at 'east'",
        "  'x' is binary: categorical (n) at 'east'",
        "  'x' has values that not all have seen: no y at 'east'",
        "  'c' is constant, and left out",
        "  'd' is disputed, and private: real at 'east', ordinal at 'west'",
        "  private to 'east': d, e",
        "  private to 'west': d",
    ]


def test_no_agreement():
    with pytest.raises(DataError, match="'a' has p; 'b' has q"):
        agree({"a": schema("p"), "b": schema("q")})
    with pytest.raises(DataError, match="no clients"):
        agree({})
    many = {
        f"c{n}": schema(Feature("x", "categorical", tuple(f"{n}-{m}" for m in range(600)))) for n in range(2)
    }  # fmt: skip
    with pytest.raises(DataError, match="'x' .*1,200 .*1,000"):
        agree(many)


@settings(max_examples=100)
@given(st.data())
def test_the_order_of_clients_does_not_matter(data):
    feature = st.one_of(
        st.sampled_from([REAL, INTEGER, ORDINAL]),
        st.lists(st.sampled_from("abc123"), min_size=2, max_size=2, unique=True).map(lambda c: listed("binary", *c)),
        st.lists(st.sampled_from("abc123"), min_size=1, unique=True).map(lambda c: listed("categorical", *c)),
    )
    clients = {name: schema(data.draw(feature), "y") for name in "abcd"}
    shuffled = dict(data.draw(st.permutations(list(clients.items()))))
    agreement = agree(clients, "private")
    assert agree(shuffled, "private") == agreement
    if "x" in agreement.common.names and agreement.common["x"].categories:
        seen = set().union(*(clients[name]["x"].categories for name in clients))
        assert set(agreement.common["x"].categories) == seen
