import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from fedgraph.data.columns.embeddings import read_embedding, with_embeddings
from fedgraph.data.columns.table_files import Table, read_table
from fedgraph.support.errors import DataError


def table(**columns):
    return Table({name.replace("_", "."): pa.array(values) for name, values in columns.items()}, "t.csv")


def test_columns_with_numbers_behind_their_name_are_one_embedding():
    found = table(
        age=[1, 2, 3], scan_1=["4", "5", None], scan_0=["1", "2", "3"], scan_2=[7.0, 8.0, 9.0], plan_0=[1, 1, 1]
    )
    values = read_embedding(found, "scan")
    np.testing.assert_array_equal(values, [[1, 4, 7], [2, 5, 8], [np.nan] * 3])
    assert with_embeddings(found.names, {"scan"}) == ["age", "scan", "plan.0"]
    assert np.isnan(read_embedding(found, "scan", [5])[1]).all()


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.int64(), 2)])
def test_a_column_of_lists_is_an_embedding(kind):
    found = Table({"scan": pa.array([[1, 2], None, [3, 4]], kind)}, "t.parquet")
    np.testing.assert_array_equal(read_embedding(found, "scan"), [[1, 2], [np.nan] * 2, [3, 4]])
    assert with_embeddings(found.names, {"scan"}) == ["scan"]


def test_lists_in_a_parquet_file_and_columns_in_a_csv_file(tmp_path):
    pa.parquet.write_table(pa.table({"scan": [[1.5, 2.5], None]}), tmp_path / "t.parquet")
    table(scan_0=[1.5, None], scan_1=[2.5, None]).to_pandas().to_csv(tmp_path / "t.csv", index=False)
    for name in ("t.parquet", "t.csv"):
        values = read_embedding(read_table(tmp_path / name), "scan")
        np.testing.assert_array_equal(values, [[1.5, 2.5], [np.nan] * 2])


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (table(age=[1]), r"t\.csv .*'scan': .*scan\.0"),
        (table(scan_0=[1], scan_2=[1]), "'scan', .*scan.1"),
        (table(scan_0=["a"]), r"'scan\.0' .*'a'"),
        (table(scan=[1.0]), "'scan' .*of type double"),
        (table(scan=[["a"]]), "lists of numbers., .*type list"),
        (table(scan=[[1.0], [1.0, 2.0]]), "equally many .*1, 2"),
        (table(scan=pa.array([None], pa.list_(pa.float64()))), "found no list"),
    ],
)
def test_what_is_no_embedding(found, message):
    with pytest.raises(DataError, match=message):
        read_embedding(found, "scan")
