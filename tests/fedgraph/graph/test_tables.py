from __future__ import annotations

import gzip

import numpy as np
import pytest

from fedgraph.graph.tables import EdgeTable, MatrixTable, read_pairs, read_relations
from fedgraph.support.errors import GraphError


def table(tmp_path, text: str):
    path = tmp_path / "graph.csv"
    path.write_text(text)
    return read_relations(path)


@pytest.mark.parametrize(
    ("text", "distances"),
    [
        ("from,to,cost\n1,2,5\n2,3,inf\n", True),
        ("\ufeffFrom, To ,Distance\n1,2,5\n\n2,3,inf\n", True),
        ("source,target,weight\n1,2,5\n2,3,inf\n", False),
        ("id,weight,to,from\n0,5,2,1\n1,inf,3,2\n", False),
        ("1,2,5\n2,3,inf\n", True),
    ],
)
def test_edge_lists(tmp_path, text, distances):
    result = table(tmp_path, text)
    assert isinstance(result, EdgeTable)
    assert result.sources == ["1", "2"]
    assert result.targets == ["2", "3"]
    np.testing.assert_array_equal(result.values, [5, np.inf])
    assert result.are_distances == distances


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a,b,c\n0,1,2\n3,4,5\n6,7,8\n", ["a", "b", "c"]),
        (",a,b,c\na,0,1,2\nb,3,4,5\nc,6,7,8\n", ["a", "b", "c"]),
        ("id,1,2,3\n1,0,1,2\n2,3,4,5\n3,6,7,8\n", ["1", "2", "3"]),
    ],
)
def test_matrices_with_names(tmp_path, text, names):
    result = table(tmp_path, text)
    assert isinstance(result, MatrixTable)
    assert result.names == names
    np.testing.assert_array_equal(result.matrix, np.arange(9).reshape(3, 3))


def test_small_or_numeric_matrices(tmp_path):
    assert table(tmp_path, ",1,2\n1,0,5\n2,5,0\n").names == ["1", "2"]
    assert table(tmp_path, "773869,767541\n0,5\n5,0\n").names == ["773869", "767541"]
    bare = table(tmp_path, "0,1,2,3\n1,0,0,0\n2,0,0,0\n3,0,0,0\n")
    assert bare.names is None
    assert bare.matrix.shape == (4, 4)


def test_lists_without_a_value_column_have_weights_of_one(tmp_path):
    result = table(tmp_path, "from,to\na,b\nb,c\n")
    assert isinstance(result, EdgeTable)
    assert (result.sources, result.targets, result.are_distances) == (["a", "b"], ["b", "c"], False)
    assert result.values.tolist() == [1, 1]


def test_other_separators_and_decimal_commas(tmp_path):
    for text in ("from;to;cost\n1;2;5,5\n2;3;inf\n", "from\tto\tcost\n1\t2\t5.5\n2\t3\tinf\n"):
        result = table(tmp_path, text)
        assert isinstance(result, EdgeTable)
        assert result.sources == ["1", "2"]
        np.testing.assert_array_equal(result.values, [5.5, np.inf])
    with pytest.raises(GraphError, match="line 2 holds '5,5' where a number belongs"):
        table(tmp_path, 'from,to,cost\n1,2,"5,5"\n')
    assert table(tmp_path, ";a;b\na;0;0,5\nb;0,5;0\n").matrix.tolist() == [[0, 0.5], [0.5, 0]]


def test_compressed(tmp_path):
    path = tmp_path / "graph.csv.gz"
    path.write_bytes(gzip.compress(b"a,b,1.5\n"))
    assert read_relations(path).values.tolist() == [1.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "table is empty"),
        ("\n,,\n", "table is empty"),
        ("from,to,cost\n1,2\n", "line 2 has 2 .*3"),
        ("from,to,cost\n1,2,3\n1,2,far\n", "line 3 .*'far'"),
        ("from,to,length\n1,2,3\n", "cost or distance .*from,to,length"),
        ("from,to,cost,weight\n1,2,3,4\n", "one value column"),
        ("1,2,3\n4,5,6\n7,8,9\n", "list or a matrix.*from,to,cost"),
        ("10,11,12\n0,1,2\n1,0,1\n2,1,0\n", "may be a list or a matrix"),
        (",a,b,c\na,0,1,2\nx,3,4,5\nc,6,7,8\n", "line 3 .*'x' .*'b'"),
        ("a;b\ns0;s1\n", "headings from,to.*a,b"),
        ("a,b,w\ns0,s1,1\ns1,s2,1\n", "headings .*from,to,weight"),
        ("from,to\n", "the list has no edges"),
        ("a,b,c,d\n0,1,2,3\n", "2 rows and 4 columns is neither"),
    ],
)
def test_errors_say_what_is_wrong(tmp_path, text, message):
    with pytest.raises(GraphError, match=message):
        table(tmp_path, text)


def test_pairs_of_names(tmp_path):
    path = tmp_path / "graph.csv"
    path.write_text("\ufeffTarget, Source\nb ,a\n\n,c\n")
    assert read_pairs(path) == [("a", "b"), ("c", "")]
    for text, problem in (
        ("a,b\nc,d\n", "header from,to and no other column; got a,b"),
        ("from,to,weight\na,b,1\n", "no other column; got from,to,weight"),
        ("from,to\na\n", "line 2 has 1 columns"),
        ("", "the table is empty"),
    ):
        path.write_text(text)
        with pytest.raises(GraphError, match=problem):
            read_pairs(path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_encodings_are_those_of_other_tables(tmp_path, encoding):
    content = "from,to,weight\nZürich,Genève,0.5\nGenève,Zürich,0.5\nChur,Orbé,1".encode(encoding)
    for name, data in (("graph.csv", content), ("graph.csv.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(data)
        result = read_relations(tmp_path / name)
        assert result.sources == ["Zürich", "Genève", "Chur"]
        assert [note.split()[-1] for note in result.notes] == ["Windows-1252"] * (encoding == "cp1252")
    (tmp_path / "pairs.csv").write_bytes("from,to\nZürich,Orbé".encode(encoding))
    assert read_pairs(tmp_path / "pairs.csv") == [("Zürich", "Orbé")]
