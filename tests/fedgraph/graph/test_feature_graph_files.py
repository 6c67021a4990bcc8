import gzip
import json

import pytest

from fedgraph.graph.feature_graph import FeatureGraph
from fedgraph.graph.feature_graph_files import read_feature_graph, write_feature_graph
from fedgraph.support.errors import GraphError

TETRAD = "Graph Nodes:\na;b;c;alone\n\nGraph Edges:\n1. a --> c\n2. b --> c\n"


def test_what_is_written_is_read_back(tmp_path):
    graph = FeatureGraph(("c", "a", "ä b"), (("a", "c"), ("ä b", "a")))
    write_feature_graph(graph, tmp_path / "new" / "graph.json")
    assert read_feature_graph(tmp_path / "new" / "graph.json") == graph
    with pytest.raises(GraphError, match=r"is written as \.json"):
        write_feature_graph(graph, tmp_path / "graph.csv")


@pytest.mark.parametrize("name", ["graph.csv", "graph.CSV.gz", "graph.txt"])
def test_a_list_of_edges_is_read_as_it_is_or_as_a_bayesian_network(tmp_path, name):
    path = tmp_path / name
    text = TETRAD if name.endswith("txt") else "from, to\na,c\nb,c\nalone,\n"
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    plain, moral = read_feature_graph(path), read_feature_graph(path, moral=True)
    assert set(plain.names) == {"a", "b", "c", "alone"}
    assert set(map(frozenset, plain.edges)) == {frozenset("ac"), frozenset("bc")}
    assert set(map(frozenset, moral.edges)) == {frozenset("ac"), frozenset("bc"), frozenset("ab")}


@pytest.mark.parametrize(
    ("name", "text", "moral", "problem"),
    [
        ("graph.dot", "a", False, "unknown kind; known formats"),
        ("graph.json", "{", False, "cannot be read"),
        ("graph.json", "[" * 100_000, False, "cannot be read"),
        ("graph.json", json.dumps({"names": [], "edges": []}), False, "JSON of an unknown kind"),
        ("graph.json", json.dumps({"format": "fedgraph client graph", "names": []}), False, "JSON of an unknown kind"),
        ("graph.json", json.dumps({"format": "fedgraph feature graph", "names": ["a"]}), False, "`names` and `edges`"),
        ("graph.json", json.dumps({"format": "fedgraph feature graph", "names": [], "edges": []}), True, "directions"),
        ("graph.csv", "from,to\na,a\n", False, "'a' to itself"),
        ("graph.csv", "from,to,weight\na,b,0\n", False, "no other column"),
        ("graph.csv.gz", "from,to\na,b\n", False, "cannot be read"),
        ("graph.txt", "a --> b", False, "the first lines are"),
        ("graph.txt", TETRAD + "3. a o-> b\n", False, "'3. a o-> b' is not like"),
        ("graph.txt", TETRAD + "3. a --- b\n", True, "'3. a --- b' is not like"),
        ("graph.txt", TETRAD + "3. a --> z\n", False, "no feature 'z'"),
    ],
)
def test_a_message_names_the_file(tmp_path, name, text, moral, problem):
    (tmp_path / name).write_text(text)
    with pytest.raises(GraphError, match=f"{name}: .*{problem}"):
        read_feature_graph(tmp_path / name, moral)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(GraphError, match=r"graph\.json: cannot be read \(No such file"):
        read_feature_graph(tmp_path / "graph.json")


def test_the_truth_about_proteins(data_dir):
    path = data_dir / "graph-truth" / "sachs.ground.truth.graph.txt"
    if not path.exists():
        pytest.skip(f"{path} is not there: real data is looked for under FEDGRAPH_DATA")
    graph = read_feature_graph(path)
    assert graph.names[:3] == ("raf", "mek", "plc")
    assert (len(graph.names), len(graph.edges)) == (11, 20)
    # pip3 -> akt <- pka, erk and raf -> mek <- pka, pkc marry two pairs that were apart.
    added = set(read_feature_graph(path, moral=True).edges) - set(graph.edges)
    assert added == {("pip3", "erk"), ("pip3", "pka")}
