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
