from __future__ import annotations

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix
from torch_geometric.data import Data

from fedgraph.graph import ClientGraph
from fedgraph.support.errors import GraphError


def directed() -> ClientGraph:
    return ClientGraph.from_lists("abc", ["a", "b", "c"], ["b", "c", "c"], [0.5, 2, 0.25], directed=True)


def undirected() -> ClientGraph:
    return ClientGraph.from_lists("abcd", ["a", "b"], ["b", "c"], [0.5, 2], directed=False)


@pytest.mark.parametrize("graph", [directed(), undirected(), ClientGraph.empty("ab"), ClientGraph.complete("abc")])
def test_round_trips(graph):
    assert ClientGraph.from_pyg(graph.to_pyg()) == graph
    assert ClientGraph.from_networkx(graph.to_networkx()) == graph
    np.testing.assert_array_equal(nx.to_numpy_array(graph.to_networkx()), graph.dense().numpy())


def test_networkx_default_weight_other_attribute_and_node_names():
    graph = nx.Graph()
    graph.add_edge(400001, 400017, distance=3.0)
    graph.add_edge(400017, 400030)
    assert ClientGraph.from_networkx(graph).weights.tolist() == [1, 1, 1, 1]
    result = ClientGraph.from_networkx(graph, weight="distance")
    assert result.names == ("400001", "400017", "400030")
    assert result.dense().tolist() == [[0, 3, 0], [3, 0, 1], [0, 1, 0]]


def test_an_attribute_that_no_edge_has_is_warned_of(caplog):
    graph = nx.Graph([("a", "b", {"distance": 3.0})])
    assert ClientGraph.from_networkx(graph, weight="distnace").weights.tolist() == [1, 1]
    assert "no edge has the attribute 'distnace'" in caplog.text
    assert "'distance'" in caplog.text
    caplog.clear()
    ClientGraph.from_networkx(graph)
    assert not caplog.records


def test_a_graph_convolution_over_to_pyg_computes_the_row_sums():
    from torch_geometric.nn import SimpleConv

    data = directed().to_pyg()
    x = torch.tensor([[1.0], [10.0], [100.0]])
    torch.testing.assert_close(SimpleConv(aggr="sum")(x, data.edge_index, data.edge_weight), directed().dense() @ x)
    assert data.num_nodes == 3


def test_pyg_without_names_or_weights():
    from torch_geometric.data import Data

    data = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=3)
    assert ClientGraph.from_pyg(data) == ClientGraph.from_lists("012", ["0"], ["1"], [1], directed=False)
    assert ClientGraph.from_pyg(data, names="xyz").neighbours("x") == ("y",)
    data.edge_attr = torch.tensor([[2.0], [3.0]])
    assert ClientGraph.from_pyg(data).directed
    assert ClientGraph.from_pyg(data).dense().tolist() == [[0, 3, 0], [2, 0, 0], [0, 0, 0]]
    with pytest.raises(GraphError, match="3 nodes but 2 client names"):
        ClientGraph.from_pyg(data, names="xy")
    data.edge_attr = torch.ones(2, 4)
    with pytest.raises(GraphError, match=r"shape \[2, 4\] for 2 edges"):
        ClientGraph.from_pyg(data)


def test_what_people_have_their_edges_in():
    matrix = np.array([[0, 1.0], [1.0, 0]])
    graph = ClientGraph.from_edges([("a", "b")])
    assert ClientGraph.from_edges(np.array([["a", "b", "1.0"]])) == graph
    assert ClientGraph.from_adjacency(pd.DataFrame(matrix, columns=["a", "b"])) == graph
    assert ClientGraph.from_adjacency(csr_matrix(matrix), "ab") == graph
    assert graph.propagate([[1.0], [3.0]]).tolist() == graph.propagate(np.array([[1.0], [3.0]])).tolist()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClientGraph.from_edges([("a", "b", "x")]), r"an edge must be .*; got \('a', 'b', 'x'\)"),
        (lambda: ClientGraph.from_edges([("a", "b")], names={"a", "b"}), "names must be in order, and a set has none"),
        (lambda: ClientGraph.from_edges(None), "edges must be a list of .*; got None"),
        (lambda: ClientGraph.from_adjacency([["a", "b"]]), r"an adjacency matrix must be numbers \[N, N\]"),
        (lambda: ClientGraph.from_networkx([("a", "b")]), "NetworkX .*from_edges"),
        (lambda: ClientGraph.from_pyg(Data(num_nodes=2)), "the data has no edge_index"),
        (lambda: ClientGraph.nearest(np.eye(3), "abc", 1.5), "k must be between 1 and 2"),
        (lambda: undirected().propagate(torch.ones(4, 1), hops=1.5), "hops is the number of propagation steps"),
    ],
)
def test_what_is_none_of_it_is_said_in_words(make, message):
    with pytest.raises(GraphError, match=message):
        make()


def test_distances_of_which_no_edge_is_left_are_warned_of(caplog):
    assert ClientGraph.from_distances([[0, 3], [3, 0]], "ab").without_self_loops().num_edges == 0
    assert "none of 2 distances gives an edge: all weights are below cut = 0.1" in caplog.text


# Data frames

LISTENING = pd.DataFrame([[0, 1, 0], [0.5, 0, 0], [0, 0, 0]], index=list("abc"), columns=list("abc"))


def edges_of(graph: ClientGraph) -> set[tuple[str, str, float]]:
    return {
        (graph.names[i], graph.names[j], w)
        for (i, j), w in zip(graph.edge_index.T.tolist(), graph.weights.tolist(), strict=True)
    }


@pytest.mark.parametrize(
    ("frame", "names", "order"),
    [
        (LISTENING, None, "abc"),
        (LISTENING, ["c", "b", "a"], "cba"),
        (LISTENING[["c", "b", "a"]], None, "abc"),
        (LISTENING.loc[["c", "b", "a"]], None, "cba"),
        (LISTENING.loc[["c", "b", "a"], ["b", "a", "c"]], "bca", "bca"),
        (LISTENING.reset_index(drop=True), None, "abc"),
        (LISTENING.reset_index(drop=True), ["c", "b", "a"], "cba"),
        (LISTENING.set_axis(range(3), axis=1), None, "abc"),
    ],
)
def test_rows_and_columns_of_a_data_frame_go_by_label(frame, names, order):
    graph = ClientGraph.from_adjacency(frame, names)
    assert graph.names == tuple(order)
    assert edges_of(graph) == {("a", "b", 1.0), ("b", "a", 0.5)}


def test_a_data_frame_that_is_only_numbered_goes_by_position():
    frame = pd.DataFrame(LISTENING.to_numpy())
    assert edges_of(ClientGraph.from_adjacency(frame, "xyz")) == {("x", "y", 1.0), ("y", "x", 0.5)}
    numbered = ClientGraph.from_adjacency(frame)
    assert ClientGraph.from_adjacency(frame.loc[[2, 1, 0]]).reindex(numbered.names) == numbered
    assert ClientGraph.from_adjacency(frame[[2, 1, 0]]) == numbered


@pytest.mark.parametrize(
    ("frame", "names", "message"),
    [
        (
            LISTENING,
            ["c", "b", "x"],
            "labels .* and the names .*only the labels have 'a', only the names have 'x'.*to_num",
        ),
        (LISTENING, ["a", "b"], "only the labels have 'c'; "),
        (LISTENING.rename(columns={"a": "x"}), None, "only the columns have 'x', only the rows have 'a'"),
        (LISTENING.set_axis(list("aab")).set_axis(list("aab"), axis=1), "ab", "unique; given more than once: 'a'"),
        (LISTENING.set_axis(["a", None, "c"]), None, "rows of the data frame: the name of a client is missing"),
    ],
)
def test_labels_of_other_clients_are_refused(frame, names, message):
    with pytest.raises(GraphError, match=message):
        ClientGraph.from_adjacency(frame, names)


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"weight": [0.5, 2.0], "To": ["b", "c"], "from": ["a", "b"]}),
        pd.DataFrame({"source": ["a", "b"], "target": ["b", "c"], "weight": [0.5, 2.0], "note": ["x", "y"]}),
    ],
)
def test_a_data_frame_of_edges(frame):
    graph = ClientGraph.from_edges(frame, directed=True)
    assert edges_of(graph) == {("a", "b", 0.5), ("b", "c", 2.0)}
    assert ClientGraph.from_edges(graph.to_pandas(), directed=True) == graph
    unweighted = ClientGraph.from_edges(frame.drop(columns=["weight", "note"], errors="ignore"), directed=True)
    assert unweighted == graph.binarised()


@pytest.mark.parametrize("columns", [["from", "weight"], ["from", "to", "distance"]])
def test_a_data_frame_of_other_columns_is_no_list_of_edges(columns):
    with pytest.raises(GraphError, match=f"columns from and to .*'{columns[-1]}'.*from_distance_list"):
        ClientGraph.from_edges(pd.DataFrame([range(len(columns))], columns=columns))


# Names and numbers


def test_arrays_and_tensors_of_numbered_clients():
    expected = ClientGraph.from_edges([("0", "1"), ("1", "2")])
    pairs = torch.tensor([[0, 1], [1, 2]])
    for edges in (pairs, pairs.numpy(), pairs.double(), pairs.double().numpy()):
        assert ClientGraph.from_edges(edges) == expected
    assert ClientGraph.from_edges(pairs, torch.arange(3)) == ClientGraph.from_edges(pairs, np.arange(3.0)) == expected
    assert ClientGraph.from_edges([(0.5, 1)]).names == ("0.5", "1")


@pytest.mark.parametrize("missing", [None, np.nan, np.float32("nan"), pd.NA, pd.NaT])
def test_missing_names_are_refused(missing):
    for make in (
        lambda: ClientGraph.from_edges([("a", missing)]),
        lambda: ClientGraph.from_edges([("a", "b")], ["a", "b", missing]),
        lambda: ClientGraph.from_adjacency(np.eye(2), ["a", missing]),
        lambda: ClientGraph.nearest(np.eye(2), ["a", missing], 1),
    ):
        with pytest.raises(GraphError, match="the name of a client is missing"):
            make()
    with pytest.raises(GraphError, match=r"the edge \('a', nan\): "):
        ClientGraph.from_edges([("a", np.nan)])


def test_complex_weights_are_refused():
    matrix = np.array([[0, 1j], [1j, 0]])
    for make in (
        lambda: ClientGraph.from_adjacency(matrix),
        lambda: ClientGraph.from_dense("ab", torch.from_numpy(matrix), directed=False),
        lambda: ClientGraph.from_lists("ab", "a", "b", [1j], directed=False),
        lambda: ClientGraph.from_distances(matrix, "ab"),
    ):
        with pytest.raises(GraphError, match="must be real numbers"):
            make()


def test_weights_that_vanish_in_float32_are_warned_of(caplog):
    graph = ClientGraph.from_edges([("a", "b", 1e-60), ("b", "c", 1.0)])
    assert graph.num_edges == 1
    assert "too small for float32 is no edge, such as 1e-60 from 'a' to 'b'" in caplog.text
    caplog.clear()
    ClientGraph.from_distances([[0, 30], [30, 0]], "ab", sigma=2, cut=0).symmetrised()
    assert "float32" not in caplog.text, "the kernel is meant to do that"


def test_an_edge_of_networkx_without_a_number_is_named():
    graph = nx.Graph()
    graph.add_edge("a", "b", weight=None)
    with pytest.raises(GraphError, match="from 'a' to 'b' has weight = None, .*remove the attribute"):
        ClientGraph.from_networkx(graph)


def test_arrays_with_negative_strides():
    matrix = np.array([[0, 1.0, 0], [0.5, 0, 0], [0, 0, 2]])[::-1, ::-1]
    expected = ClientGraph.from_dense("abc", matrix.copy(), directed=True)
    assert ClientGraph.from_dense("abc", matrix, directed=True) == expected
    assert ClientGraph.from_lists("abc", "ab", "bc", np.array([1.0, 2.0])[::-1], directed=False) == (
        ClientGraph.from_lists("abc", "ab", "bc", [2.0, 1.0], directed=False)
    )
