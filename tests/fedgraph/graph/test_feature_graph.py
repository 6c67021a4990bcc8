import gzip
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.graph.feature_graph import (
    FeatureGraph,
    Score,
    client_similarity,
    read_feature_graph,
    write_feature_graph,
)
from fedgraph.support.errors import GraphError

quick = settings(max_examples=50, derandomize=True)


@st.composite
def graphs(draw):
    names = draw(st.lists(st.text(min_size=1, max_size=4), max_size=6, unique=True))
    pairs = [(a, b) for a in names for b in names if a != b]
    return FeatureGraph(tuple(names), tuple(draw(st.lists(st.sampled_from(pairs)))) if pairs else ())


@quick
@given(graphs())
def test_edges_adjacency_and_json_say_the_same(graph):
    adjacency = graph.adjacency
    position = {name: at for at, name in enumerate(graph.names)}
    expected = np.zeros((len(graph.names), len(graph.names)), dtype=bool)
    for first, second in graph.edges:
        assert position[first] < position[second]
        expected[position[first], position[second]] = expected[position[second], position[first]] = True
    np.testing.assert_array_equal(adjacency, expected)
    assert len(graph.edges) == expected.sum() / 2
    assert FeatureGraph.from_adjacency(graph.names, adjacency) == graph
    assert FeatureGraph.from_json(json.loads(json.dumps(graph.as_json()))) == graph


@quick
@given(graphs(), graphs(), st.randoms())
def test_the_order_of_names_changes_no_score(found, other, random):
    truth = FeatureGraph(found.names, tuple(e for e in other.edges if set(e) <= set(found.names)) + found.edges[::2])
    shuffled = list(found.names)
    random.shuffle(shuffled)
    moved = found.subgraph(shuffled)
    assert moved.names == tuple(shuffled)
    assert set(map(frozenset, moved.edges)) == set(map(frozenset, found.edges))
    assert moved.score(truth) == found.score(truth)


def test_it_cannot_be_changed_through_its_adjacency():
    graph = FeatureGraph(("a", "b"), (("b", "a"),))
    graph.adjacency[0, 1] = False
    assert graph.edges == (("a", "b"),)
    assert bool(graph.adjacency[0, 1])
    with pytest.raises(AttributeError):
        graph.names = ("c", "d")


def test_scores_count_edges():
    truth = FeatureGraph(tuple("abcd"), (("a", "b"), ("b", "c"), ("c", "d")))
    found = FeatureGraph(tuple("dcba"), (("b", "a"), ("a", "c")))
    assert found.score(truth) == Score(precision=1 / 2, recall=1 / 3, f1=2 / 5, shd=3)
    empty = FeatureGraph(tuple("abcd"))
    assert empty.score(truth) == Score(0, 0, 0, 3)
    assert truth.score(empty) == Score(0, 1, 0, 3)
    assert empty.score(empty) == Score(1, 1, 1, 0)
    with pytest.raises(GraphError, match=r"different features .* 'e': use the subgraph"):
        found.score(FeatureGraph(tuple("abcde")))


def test_clients_are_as_similar_as_their_graphs():
    features = ("a", "b", "c", "d")
    graphs = {
        "east": FeatureGraph(features, (("a", "b"), ("b", "c"))),
        "north": FeatureGraph(features[::-1], (("c", "b"), ("a", "d"), ("a", "b"), ("c", "d"))),
        "south": FeatureGraph(features, (("b", "a"), ("c", "b"))),
        "west": FeatureGraph(features, (("c", "d"),)),
        "none": FeatureGraph(features),
        "nobody": FeatureGraph(features),
    }
    found = client_similarity(graphs)
    assert found.names == tuple(graphs)
    for i, one in enumerate(graphs.values()):
        for j, other in enumerate(graphs.values()):
            expected = one.score(other).f1 if i != j and one.edges and other.edges else 0.0
            assert found.dense()[i, j].item() == pytest.approx(expected)
    assert found.dense()[0, 2] == 1.0
    with pytest.raises(GraphError, match="over different features"):
        client_similarity({"east": graphs["east"], "west": FeatureGraph(("a", "b"))})


def test_a_moral_graph_links_parents():
    graph = FeatureGraph.moral(
        ("rain", "sprinkler", "wet", "slippery"), {"wet": ["rain", "sprinkler"], "slippery": ["wet"]}
    )
    assert graph.edges == (("rain", "sprinkler"), ("rain", "wet"), ("sprinkler", "wet"), ("wet", "slippery"))


def test_a_subgraph_keeps_edges_among_its_names():
    graph = FeatureGraph(tuple("abcd"), (("a", "b"), ("b", "c"), ("c", "d")))
    assert graph.subgraph(["c", "b", "a"]) == FeatureGraph(tuple("cba"), (("a", "b"), ("b", "c")))
    with pytest.raises(GraphError, match="unknown features: 'x'"):
        graph.subgraph(["a", "x"])


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ([], "table with only `names` and `edges`"),
        ({"names": ["a"]}, "table with only `names` and `edges`"),
        ({"names": ["a"], "edges": [], "more": 1}, "table with only"),
        ({"names": "ab", "edges": []}, "names of a feature graph must be a list"),
        ({"names": ["a", "b"], "edges": {}}, "edges of a feature graph must be a list"),
        ({"names": ["a", 1], "edges": []}, "non-empty text"),
        ({"names": ["a", ""], "edges": []}, "non-empty text"),
        ({"names": ["a", ["b"]], "edges": []}, "non-empty text"),
        ({"names": ["a", "a"], "edges": []}, "duplicate feature names: 'a'"),
        ({"names": ["a", "b"], "edges": ["ab"]}, "a pair of feature names; got 'ab'"),
        ({"names": ["a", "b"], "edges": [["a", "b", "a"]]}, "a pair of feature names"),
        ({"names": ["a", "b"], "edges": [["a", ["b"]]]}, "a pair of feature names"),
        ({"names": ["a", "b"], "edges": [["a", "c"]]}, "no feature 'c'"),
        ({"names": ["a", "b"], "edges": [["a", "a"]]}, "'a' to itself"),
    ],
)
def test_what_is_no_graph_is_refused(table, problem):
    with pytest.raises(GraphError, match=problem):
        FeatureGraph.from_json(table)


def test_what_is_no_adjacency_is_refused():
    for matrix in (torch.ones(2, 2), torch.zeros(2, 3, dtype=torch.bool), torch.zeros(3, 3, dtype=torch.bool)):
        with pytest.raises(GraphError, match="adjacency of 2 features is bool"):
            FeatureGraph.from_adjacency(("a", "b"), matrix)
    for matrix in ([[True, False], [False, False]], [[False, True], [False, False]]):
        with pytest.raises(GraphError, match="symmetric"):
            FeatureGraph.from_adjacency(("a", "b"), torch.tensor(matrix))


TETRAD = "Graph Nodes:\na;b;c;alone\n\nGraph Edges:\n1. a --> c\n2. b --> c\n"


def test_what_is_written_is_read_back(tmp_path):
    graph = FeatureGraph(("c", "a", "ä b"), (("a", "c"), ("ä b", "a")))
    write_feature_graph(graph, tmp_path / "new" / "graph.json")
    assert read_feature_graph(tmp_path / "new" / "graph.json") == graph
    with pytest.raises(GraphError, match=r"the extension must be .json"):
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
        ("graph.dot", "a", False, "unknown kind of graph file; known formats"),
        ("graph.json", "{", False, "cannot be read"),
        ("graph.json", "[" * 100_000, False, "cannot be read"),
        ("graph.json", json.dumps({"names": [], "edges": []}), False, "unknown kind of JSON"),
        ("graph.json", json.dumps({"format": "fedgraph client graph", "names": []}), False, "unknown kind of JSON"),
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
    with pytest.raises(GraphError, match=r"graph\.json: cannot be read"):
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
