import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fedgraph.data.columns.table import Table
from fedgraph.data.encoding.rows import to_values
from fedgraph.support.errors import DataError

NAN = np.nan


def test_tables_dicts_and_values_say_the_same(mixed):
    schema, _ = mixed(1)
    wanted = [[0.5, 1, 2, NAN], [NAN, 0, NAN, 41]]
    dicts = [{"size": 0.5, "ill": "yes", "place": "c"}, {"ill": "no", "age": 41, "place": None, "size": NAN}]
    columns = {"place": pa.array(["c", None]), "age": pa.array([None, 41]), "other": pa.array([1, 2])}
    table = Table({**columns, "size": pa.array([0.5, None]), "ill": pa.array(["yes", "no"])}, "it")
    frame = pd.DataFrame({"other": [1, 2], "place": pd.Categorical(["c", None]), "age": pd.array([None, 41], "Int64"),
                          "size": [0.5, NAN], "ill": ["yes", "no"]}, index=["x", "y"])  # fmt: skip
    for rows in (dicts, table, np.array(wanted), frame, pa.table(table.columns)):
        np.testing.assert_array_equal(to_values(rows, schema), wanted)
    np.testing.assert_array_equal(to_values(dicts[0], schema), wanted[:1])
    np.testing.assert_array_equal(to_values({}, schema), [[NAN] * 4])
    np.testing.assert_array_equal(to_values(table, schema, ["ill"]), [[0.5, NAN, 2, NAN], [NAN, NAN, NAN, 41]])


def test_missing_values_of_pandas_are_missing_in_dicts_too(mixed):
    schema, _ = mixed(1)
    for missing in (pd.NA, pd.NaT, float("nan"), np.float32("nan"), None):
        np.testing.assert_array_equal(to_values({"size": missing, "ill": missing}, schema), [[NAN] * 4])
    assert to_values({"size": np.array(0.5)}, schema)[0, 0] == 0.5


def test_what_is_ignored_is_not_even_read(mixed):
    schema, _ = mixed(1)
    rows = [{"ill": "perhaps", "age": 3}]
    np.testing.assert_array_equal(to_values(rows, schema, ["ill"]), [[NAN, NAN, NAN, 3]])
    np.testing.assert_array_equal(to_values(pd.DataFrame(rows), schema, ["ill"]), [[NAN, NAN, NAN, 3]])
    np.testing.assert_array_equal(to_values(pd.DataFrame(rows)[["ill"]], schema, ["ill"]), [[NAN] * 4])


def test_mistakes_are_named(mixed):
    schema, _ = mixed(1)
    for rows, message in (
        ({"agee": 3}, "no feature 'agee'"),
        ({"ill": "perhaps"}, "'perhaps'"),
        ({"size": pd.Series([1.0, 2.0])}, r"'size' of a row has 2 values \(Series\): a dict is one row"),
        ({"ill": np.array(["yes", "no", "no"])}, "'ill' of a row has 3 values"),
        ({"age": "old"}, "'age' is integer and cannot be"),
        (Table({"x": pa.array([1])}, "it"), "it has none of the features size, ill"),
        (np.zeros((2, 3)), r"\[rows, 4\]"),
        (pd.DataFrame({"x": [1]}), "the DataFrame has none of the features size, ill"),
        (pd.DataFrame({"age": [3, "old"]}), "this DataFrame cannot be read .*Could not convert 'old'.*column age"),
        (pd.Series({"age": 3}), "rows are a data frame .*; this Series cannot be read"),
        ("age", "rows are a data frame .*; this str cannot be read"),
        ([["age", 3]], "rows are a data frame .*; this list cannot be read"),
        (3, "this int cannot be read"),
    ):
        with pytest.raises(DataError, match=message):
            to_values(rows, schema)
