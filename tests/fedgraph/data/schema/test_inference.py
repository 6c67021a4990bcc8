from __future__ import annotations

import pyarrow as pa
import pytest

from fedgraph.data.columns.table import Table
from fedgraph.data.schema.inference import SchemaSettings, check_dropped, check_used, excluded_columns, infer_schema
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.support.errors import DataError, ExperimentError
from fedgraph.support.settings import parse


def table(**columns):
    rows = max(map(len, columns.values()))
    return Table({name: pa.array([*cells, *[None] * (rows - len(cells))]) for name, cells in columns.items()}, "t.csv")


def told(**keys):
    """Settings for tables of few rows, in which every value counts unless said otherwise."""
    keys = {"least_rows": 1, **keys}
    return parse(SchemaSettings, {key.replace("_", "-"): value for key, value in keys.items()}, "[features]")


@pytest.mark.parametrize(
    ("cells", "kind", "categories"),
    [
        (["red", "blue", "red", "green"], "categorical", ("blue", "green", "red")),
        (["y", "n", None], "binary", ("n", "y")),
        (["0", "1", "1"], "binary", ("0", "1")),
        (["1.0", "2", "2.0"], "binary", ("1", "2")),
        ([2, 1, 1], "binary", ("1", "2")),
        ([True, False], "binary", ("false", "true")),
        (["1", "2", "3.0"], "integer", ()),
        ([3, 4, 5, None], "integer", ()),
        (["1", "2", "3.5"], "real", ()),
        (["60.5", "75"], "real", ()),
        ([str(number) for number in range(101)], "real", ()),
        ([str(number) for number in range(100)], "integer", ()),
        (["1", "2", "3", "?"], "categorical", ("1", "2", "3", "?")),
        (["1", "2", "nan"], "binary", ("1", "2")),
        (["n", "n"], "categorical", ("n",)),
        (["0", "0"], "categorical", ("0",)),
        (["0.5", "0.5"], "real", ()),
    ],
)
def test_rules(cells, kind, categories):
    assert infer_schema(table(x=cells)).features == (Feature("x", kind, categories),)


def test_columns_without_values_are_no_features():
    found = infer_schema(table(a=["1", "2"], empty=[None], only=["9"]), told(missing_codes={"only": [9]}))
    assert found.names == ("a",)
    with pytest.raises(DataError, match=r"t\.csv .*columns empty"):
        infer_schema(table(empty=[None]))


def test_columns_are_chosen_and_dropped_by_name():
    held = table(a=["1", "2"], b=["x", "y"], c=["1.5", "2"])
    assert infer_schema(held, told(features=["c", "a"])).names == ("c", "a")
    assert infer_schema(held, told(drop=["b"])).names == ("a", "c")
    with pytest.raises(DataError, match="no column 'd'; its columns: a, b, c"):
        infer_schema(held, told(features=["a", "d"]))


def test_kinds_that_are_told():
    held = table(
        stage=["1", "2", "3"],
        size=["big", "small", "big"],
        pay=["1", "2", "9"],
        dose=["1", "2", "1"],
        sex=["f", "m", "f"],
        one=["a"],
    )
    kinds = {
        "stage": "ordinal",
        "size": {"kind": "ordinal", "categories": ["small", "medium", "big"]},
        "pay": "categorical",
        "dose": "integer",
        "sex": {"kind": "categorical", "categories": ["x", "m", "f"]},
        "one": "binary",
    }
    assert infer_schema(held, told(kinds=kinds)).features == (
        Feature("stage", "ordinal"),
        Feature("size", "ordinal", ("small", "medium", "big")),
        Feature("pay", "categorical", ("1", "2", "9")),
        Feature("dose", "integer"),
        Feature("sex", "categorical", ("x", "m", "f")),
        # The other value is known elsewhere.
        Feature("one", "categorical", ("a",)),
    )


def test_categories_may_be_told_as_numbers():
    kinds = {"x": {"kind": "categorical", "categories": [1, 2.0, "3"]}}
    assert infer_schema(table(x=["1"]), told(kinds=kinds))["x"].categories == ("1", "2", "3")


def test_codes_that_mean_missing_do_not_count():
    held = table(age=["20", "30", "99"], sex=["1", "2", "9"], pay=["cash", "unknown", "card"])
    assert [f.kind for f in infer_schema(held).features] == ["integer", "integer", "categorical"]
    codes = {"age": [99], "sex": [9], "pay": ["unknown"]}
    assert infer_schema(held, told(missing_codes=codes, kinds={"age": "integer"})).features == (
        Feature("age", "integer"),
        Feature("sex", "binary", ("1", "2")),
        Feature("pay", "binary", ("card", "cash")),
    )


def test_rare_categories_can_be_left_out():
    held = table(x=["a"] * 5 + ["b"] * 4 + ["c"] * 2)
    assert infer_schema(held, told(least_rows=3, unknown="missing")).features == (Feature("x", "binary", ("a", "b")),)
    assert infer_schema(table(x=["a", "b"], y=["1", "1"]), told(least_rows=2, unknown="missing")).names == ("y",)


def test_what_hardly_anybody_has_is_not_told_unless_the_experiment_lists_it():
    cells = ["a"] * 9 + ["b"] * 5 + ["c"] * 4
    held = table(x=cells, y=["0"] * 14 + ["1"] * 4, name=[f"id{n}" for n in range(18)])
    found = infer_schema(held, SchemaSettings())
    assert found.features == (Feature("x", "binary", ("a", "b")), Feature("y", "categorical", ("0",)))
    excluded = {"x": "partly", "y": "partly", "name": "rare"}
    assert excluded_columns(held, SchemaSettings(), found) == excluded
    listed = parse(SchemaSettings, {"kinds": {"x": {"kind": "categorical", "categories": ["a", "b", "c"]}}}, "[s]")
    assert infer_schema(held, listed)["x"].categories == ("a", "b", "c")
    assert "x" not in excluded_columns(held, listed, infer_schema(held, listed))
    with pytest.raises(DataError, match="'<5' .*row 151"):
        infer_schema(table(x=[*map(str, range(150)), "<5"]), SchemaSettings())


@pytest.mark.parametrize(
    ("cells", "keys", "message"),
    [
        ([f"id{n}" for n in range(101)], {}, "'x' .*101 .*leave it out"),
        ([f"id{n}" for n in range(4)], {"max_categories": 3}, "4 .*3 categories"),
        ([*map(str, range(150)), "<5"], {}, "'<5' .*list marks"),
        (["1.5", "2", "?"], {}, r"'\?' .*row 3"),
        (["a", "b", "c"], {"kinds": {"x": "binary"}}, "2 categories: .*categorical"),
        (["a", "b"], {"kinds": {"x": "real"}}, "must be numeric, but holds 'a', 'b'"),
        (["a", "b"], {"kinds": {"x": "ordinal"}}, r"kinds.x = \{ kind ="),
    ],
)
def test_columns_that_cannot_be(cells, keys, message):
    with pytest.raises(DataError, match=message):
        infer_schema(table(x=cells), told(**keys))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"features": ["a"], "drop": ["a"]}, "'a' is among features and drop"),
        ({"features": ["a", "a"]}, "features names a column twice"),
        ({"kinds": {"a": "number"}}, "kinds.a.kind"),
        ({"kinds": {"a": {"kind": "binary", "categories": 5}}}, "kinds.a.categories: Input should be a valid tuple"),
        ({"kinds": {"a": {"kind": "binary", "categories": "no"}}}, "kinds.a.categories: Input should be a valid tuple"),
        ({"kinds": {"a": {"kind": "binary", "categories": ["x"]}}}, "is binary and cannot have 1 categories"),
        ({"kinds": {"a": {"kind": "ordinal", "categories": ["2", 2.0]}}}, "lists a category twice"),
        ({"colour": 1}, "no key 'colour'; known keys: drop, features"),
    ],
)
def test_settings_that_cannot_be(keys, message):
    with pytest.raises(ExperimentError, match=message):
        told(**keys)


def test_a_misspelled_column_to_drop_is_no_feature():
    held = table(**{"patient_number": ["1", "2"], "age": ["30", "40"]})
    settings = told(drop=["patient_numbr"])
    message = "drop of .data.table-schema. names 'patient_numbr', and t.csv has no .*did you mean 'patient_number'"
    for check in (lambda: check_dropped(held, settings), lambda: infer_schema(held, settings, partial=True)):
        with pytest.raises(DataError, match=message):
            check()
    with pytest.raises(DataError, match=r"'ward', .*t\.csv .*patient_number"):
        check_dropped(held, told(drop=["ward"]))
    # Other clients may have it, or another number of it.
    assert infer_schema(held, told(drop=["ward"]), partial=True).names == ("patient_number", "age")
    assert infer_schema(table(scan_2=["1", "2"]), told(drop=["scan_1"]), partial=True).names == ("scan_2",)


def test_settings_for_tables_of_several_clients():
    keys = told(features=["a", "b"], kinds={"b": "real"}, missing_codes={"c": [9]}, drop=["c"])
    left, right = table(a=["1", "2"], z=["1"]), table(b=["1", "2"])
    with pytest.raises(DataError, match="no column 'b'"):
        infer_schema(left, keys)
    schemas = [infer_schema(held, keys, partial=True) for held in (left, right)]
    assert [schema.names for schema in schemas] == [("a",), ("b",)]
    check_used(keys, schemas)
    with pytest.raises(ExperimentError, match="names b, .*are a"):
        check_used(keys, schemas[:1])
    with pytest.raises(ExperimentError, match="missing-codes names agee"):
        check_used(told(missing_codes={"agee": [9]}), [Schema((Feature("age", "real"),))])
