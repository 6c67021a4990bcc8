from __future__ import annotations

import re

import pyarrow as pa

from fedgraph.data.columns.table import Table
from fedgraph.data.schema.inference import SchemaSettings, infer_schema
from fedgraph.data.schema.text import as_text

TABLE = Table(
    {
        "age": pa.array(["20", "31", "99", "99"]),
        "count": pa.array([1, 98, 99, 2]),
        "sick": pa.array(["y", None, "n", "y"]),
        "town": pa.array([f"{'long name ' * 4}{n}" for n in range(4)]),
        "paid": pa.array(["yes", "NA", "no", "no"]),
        "empty": pa.array([None, None, None, None], pa.string()),
    },
    "t.csv",
)


def test_with_its_table():
    text = as_text(infer_schema(TABLE), TABLE, SchemaSettings())
    assert text.splitlines()[0] == "5 features, 10 units"
    assert text.splitlines()[1].startswith("age    integer      20 to 99")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[1] == "age integer 20 to 99, 3 values 0.0% missing 99 may mean missing: missing-codes?"
    assert lines[2] == "count integer 1 to 99, 4 values 0.0% missing"
    assert lines[3] == "sick binary n, y 25.0% missing"
    assert re.fullmatch(r"town categorical (long name )+.* \.\.\. 0\.0% missing", lines[4])
    assert lines[5] == "paid categorical NA, no, yes 0.0% missing NA may mean missing: missing-codes?"
    assert lines[6] == "not features: empty"


def test_codes_that_mean_missing_are_missing_here_too():
    whole = {"age": {"kind": "integer"}}
    keys = SchemaSettings(missing_codes={"age": (99,)}, kinds=whole, drop=("town",), least_rows=1)
    lines = [" ".join(line.split()) for line in as_text(infer_schema(TABLE, keys), TABLE, keys).splitlines()]
    assert lines[1] == "age integer 20 to 31, 2 values 50.0% missing"
    assert lines[-1] == "not features: town, empty"


def test_values_that_are_missing_because_they_are_rare():
    held = Table({"ward": pa.array(["medical"] * 5 + ["burns"] * 3 + ["surgery"] * 6 + [None] * 6)}, "t.csv")
    text = as_text(infer_schema(held, SchemaSettings()), held, SchemaSettings())
    assert " ".join(text.splitlines()[1].split()) == (
        "ward binary medical, surgery 45.0% missing 'burns' in fewer than 5 rows (least-rows): "
        "missing unless another client has more"
    )
