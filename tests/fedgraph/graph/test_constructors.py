from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch

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
