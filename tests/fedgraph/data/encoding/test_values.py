from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.data.columns.table_files import Table, read_table
from fedgraph.data.encoding.values import as_table, read_values
from fedgraph.data.schema.inference import KindSettings, SchemaSettings
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.support.errors import DataError

SCHEMA = Schema(
    (
        Feature("weight", "real"),
        Feature("age", "integer"),
        Feature("size", "ordinal", ("small", "medium", "big")),
        Feature("sick", "binary", ("no", "yes")),
        Feature("colour", "categorical", ("blue", "red, or \"so\"", "7")),
    )
)  # fmt: skip
NAN = np.nan


def test_columns_become_numbers():
    table = Table(
        {
            "colour": pa.array(["7.0", "blue", None]),
            "weight": pa.array([1.25, None, 3]),
            "age": pa.array(["99", "30", "31"]),
            "size": pa.array(["big", "small", "medium"]),
            "sick": pa.array(["no", "yes", "?"]),
            "other": pa.array([1, 2, 3]),
        },
        "t.csv",
    )
    keys = SchemaSettings(missing_codes={"age": (99,), "sick": ("?",)}, least_rows=1)
    values = read_values(table, SCHEMA, keys)
    assert values.dtype == np.float64
    np.testing.assert_array_equal(values, [[1.25, NAN, 2, 0, 2], [NAN, 30, 0, 1, 0], [3, 31, 1, NAN, NAN]])
    with pytest.raises(DataError, match=r"'sick' .*t\.csv .*'\?'"):
        read_values(table, SCHEMA)
    unknown = read_values(table, SCHEMA, SchemaSettings(unknown="missing"))
    assert unknown[0, 1] == 99
    assert np.isnan(unknown[2, 3])
    assert np.isnan(read_values(table, SCHEMA, SchemaSettings())[2, 3]), "too rare to be told, so that nobody knows it"
    often = Table({"sick": pa.array(["no", "yes", *["?"] * 5])}, "t.csv")
    with pytest.raises(DataError, match=r"holds unknown categories: '\?'"):
        read_values(often, SCHEMA.select(["sick"]), SchemaSettings())
    listed = SchemaSettings(kinds={"sick": KindSettings(kind="binary", categories=("no", "yes"))})
    with pytest.raises(DataError, match=r"holds unknown categories: '\?'"):
        read_values(table, SCHEMA.select(["sick"]), listed)


def test_tables_that_do_not_fit():
    table = Table({"weight": pa.array(["1", "heavy"])}, "t.csv")
    with pytest.raises(DataError, match=r"'weight' .*t\.csv .*'heavy'"):
        read_values(table, Schema((Feature("weight", "real"),)))
    with pytest.raises(DataError, match="t.csv has no column 'age'"):
        read_values(table, Schema((Feature("age", "real"),)))
    with pytest.raises(DataError, match=r"\[2, 3\] .*\[rows, 5\]"):
        as_table(np.zeros((2, 3)), SCHEMA)


def test_numbers_become_columns():
    table = as_table(np.array([[0.5, 2.6, 1, 1, 2], [NAN, -1, NAN, NAN, 0], [np.inf, 1e300, 9, 0, NAN]]), SCHEMA)
    assert {name: column.to_pylist() for name, column in table.columns.items()} == {
        "weight": [0.5, None, None],
        "age": [3, -1, 2**53],
        "size": ["medium", None, "big"],
        "sick": ["yes", None, "no"],
        "colour": ["7", "blue", None],
    }
    assert [str(column.type) for column in table.columns.values()] == ["double", "int64", *["string"] * 3]


def maybe(numbers):
    return st.one_of(st.just(NAN), numbers)


ROWS = st.lists(
    st.tuples(
        maybe(st.floats(-1e9, 1e9)),
        maybe(st.integers(-(10**9), 10**9).map(float)),
        maybe(st.sampled_from([0.0, 1.0, 2.0])),
        maybe(st.sampled_from([0.0, 1.0])),
        maybe(st.sampled_from([0.0, 1.0, 2.0])),
    ),
    min_size=1,
    max_size=20,
)


def test_a_table_and_a_file_hold_the_values(tmp_path):
    @settings(max_examples=60)
    @given(ROWS)
    def check(rows):
        values = np.array(rows)
        table = as_table(values, SCHEMA)
        np.testing.assert_array_equal(read_values(table, SCHEMA), values)
        table.to_pandas().to_csv(tmp_path / "t.csv", index=False)
        np.testing.assert_array_equal(read_values(read_table(tmp_path / "t.csv"), SCHEMA), values)

    check()
