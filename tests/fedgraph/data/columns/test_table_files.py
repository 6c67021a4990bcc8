"""Data frames as tables."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fedgraph.data.columns import from_frame, read_table
from fedgraph.support.errors import DataError


def test_columns_of_all_kinds_and_no_index():
    frame = pd.DataFrame(
        {"word": [" a ", None, ""], "kind": pd.Categorical(["x", "y", "x"]), "yes": [True, False, True], 7: [1, 2, 3]},
        index=["first", "second", "third"],
    )
    table = from_frame(frame)
    assert {name: column.to_pylist() for name, column in table.columns.items()} == {
        "word": ["a", None, None],
        "kind": ["x", "y", "x"],
        "yes": ["True", "False", "True"],
        "7": [1, 2, 3],
    }
    assert from_frame(table) is table
    rows = from_frame([{"a": 1, "b": "x"}, {"b": "y", "c": 2.5}])
    assert {name: column.to_pylist() for name, column in rows.columns.items()} == {
        "a": [1, None], "b": ["x", "y"], "c": [None, 2.5],
    }  # fmt: skip
    assert from_frame(pa.table({"a": [1.0, None]})).numbers("a")[0] == 1


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        ("words", "the table is of type str, .*data frame"),
        (pd.Series([1, 2]), "the table is a Series, .*data frame"),
        ([[1, 2]], "the table is of type list, .*a list of dicts"),
        ({"a": 1}, "the table is of type dict, .*a dict of columns"),
        (pd.DataFrame({"a": []}), "the table has no rows"),
        (pd.DataFrame([[1, 2]], columns=["a ", "a"]), "two columns named a"),
        (pd.DataFrame({"a": [1, "b"]}), "the table cannot be read: .*column a"),
    ],
)
def test_what_is_no_table(frame, problem):
    with pytest.raises(DataError, match=problem):
        from_frame(frame, "the table")


def test_an_array_needs_the_names_of_its_columns(tmp_path):
    file = tmp_path / "rows.npz"
    np.savez(file, images=np.array([["1", "x"], ["-9", "y"]]))
    table = read_table(file, ("age", "ward"), missing=("-9",))
    assert table.numbers("age")[0] == 1
    assert table.column("age").null_count == 1
    assert table.column("ward").to_pylist() == ["x", "y"]
    with pytest.raises(DataError, match=r"whose columns have no names: list them, \[data\] columns"):
        read_table(file)
    with pytest.raises(DataError, match=r"shape \[2, 2\]: it needs \[rows, 1\], with the columns age in this order"):
        read_table(file, ("age",))
    np.savez(tmp_path / "two.npz", rows=np.zeros((2, 1)), labels=np.zeros(2))
    with pytest.raises(DataError, match="has the arrays 'rows', 'labels': save the one with the rows alone"):
        read_table(tmp_path / "two.npz", ("age",))
    (tmp_path / "broken.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match="cannot be read as an .npz file"):
        read_table(tmp_path / "broken.npz", ("age",))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_long_durations_are_seconds(unit):
    stays = np.array([1, 200, 40_000], "timedelta64[D]").astype(f"timedelta64[{unit}]")
    assert from_frame(pd.DataFrame({"stay": stays})).numbers("stay").tolist() == [86_400, 17_280_000, 3_456_000_000]
