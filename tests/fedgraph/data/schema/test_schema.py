import pytest

from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.support.errors import DataError

MIXED = Schema((
    Feature("age", "integer"), Feature("ward", "categorical", ("a", "b", "c")), Feature("sex", "binary", ("f", "m")),
    Feature("pain", "ordinal", ("none", "some", "much", "worst")), Feature("weight", "real"),
))  # fmt: skip


def test_units_of_a_feature_lie_side_by_side():
    assert MIXED.names == ("age", "ward", "sex", "pain", "weight")
    assert MIXED.unit_feature.tolist() == [0, 1, 1, 1, 2, 3, 4]
    assert MIXED.slices["ward"] == slice(1, 4)
    assert [feature.name for feature in MIXED.features if feature.is_number] == ["age", "pain", "weight"]
    assert Schema(()).unit_feature.tolist() == []


def test_features_are_chosen_by_name_in_the_order_given():
    assert MIXED.select(["weight", "age"]).names == ("weight", "age")
    with pytest.raises(DataError, match="'height'; .*age, ward"):
        MIXED.select(["height"])


def test_a_feature_as_json():
    assert MIXED["sex"].as_json() == {"name": "sex", "kind": "binary", "categories": ["f", "m"]}


@pytest.mark.parametrize(
    ("kind", "categories", "message"),
    [
        ("real", ("a",), "is real and cannot have 1 categories"),
        ("integer", ("a", "b"), "is integer and cannot have 2"),
        ("ordinal", ("a",), "is ordinal and cannot have 1"),
        ("binary", ("a", "b", "c"), "is binary and cannot have 3"),
        ("categorical", (), "is categorical and cannot have 0"),
        ("categorical", ("a", "b", "a"), "lists a category twice: a, b, a"),
        ("number", (), "is 'number'; kinds are real, integer, ordinal, binary, categorical"),
    ],
)
def test_what_is_no_feature(kind, categories, message):
    with pytest.raises(DataError, match=f"'x' {message}"):
        Feature("x", kind, categories)


def test_a_name_stands_once():
    with pytest.raises(DataError, match="duplicate feature 'age'"):
        Schema((Feature("age", "real"), Feature("age", "integer")))
