"""Data frames as tables."""

import pandas as pd
import pyarrow as pa
import pytest

from fedgraph.data.columns import from_frame
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
    assert from_frame(pa.table({"a": [1.0, None]})).numbers("a")[0] == 1


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        ("words", "a str, .*data frame"),
        (pd.DataFrame({"a": []}), "the table has no rows"),
        (pd.DataFrame([[1, 2]], columns=["a ", "a"]), "two columns named a"),
        (pd.DataFrame({"a": [1, "b"]}), "DataFrame, .*column a"),
    ],
)
def test_what_is_no_table(frame, problem):
    with pytest.raises(DataError, match=problem):
        from_frame(frame, "the table")
