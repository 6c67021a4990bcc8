"""Graphs side by side, against the batches of PyTorch Geometric."""

import pytest
import torch
from torch_geometric.data import Batch, Data

from fedgraph.models.graphs import Graph, GraphTable, table
from fedgraph.support.errors import DataError


def graph(nodes, seed, weighted=False):
    draws = torch.Generator().manual_seed(seed)
    edges = torch.randint(nodes, (2, 3 * nodes), generator=draws)
    weight = torch.rand(3 * nodes, generator=draws) if weighted else None
    return Graph(torch.randn(nodes, 4, generator=draws), edges, weight)


GRAPHS = [graph(5, 0), graph(1, 1), graph(7, 2, weighted=True), graph(3, 3)]


def data(*places):
    return Batch.from_data_list([Data(x=GRAPHS[place].x, edge_index=GRAPHS[place].edge_index) for place in places])


def test_nodes_come_with_the_whole_graphs_that_they_lie_in():
    nodes = GraphTable.of(GRAPHS, "node")
    # Nodes 2 and 0 of the last graph, node 4 of the first.
    found = nodes.around(torch.cat([nodes.numbers(4)[[2, 0]], nodes.numbers(1)[[4]]])[:, None].float())
    whole = data(0, 3)
    assert torch.equal(found.x, whole.x)
    assert torch.equal(found.edge_index, whole.edge_index)
    assert torch.equal(found.batch, whole.batch)
    assert torch.equal(found.x[found.examples], torch.stack([GRAPHS[3].x[2], GRAPHS[3].x[0], GRAPHS[0].x[4]]))
    assert found.edge_weight is None


def test_graphs_come_once_and_examples_refer_to_them():
    graphs = GraphTable.of(GRAPHS, "graph")
    found = graphs.around(torch.tensor([[4.0], [2.0], [4.0]]))
    whole = data(1, 3)
    assert torch.equal(found.x, whole.x)
    assert torch.equal(found.edge_index, whole.edge_index)
    assert found.examples.tolist() == [1, 0, 1]


def test_edges_without_weights_beside_some_with_weights_count_as_one():
    nodes = GraphTable.of(GRAPHS, "node")
    found = nodes.around(torch.cat([nodes.numbers(1)[:1], nodes.numbers(3)[:1]])[:, None])
    assert torch.equal(found.edge_weight, torch.cat([torch.ones(15), GRAPHS[2].edge_weight]))


def test_padding_is_a_node_of_its_own():
    for level in ("node", "graph"):
        found = GraphTable.of(GRAPHS, level).around(torch.zeros(2, 1))
        assert torch.equal(found.x, torch.zeros(1, 4))
        assert found.edge_index.shape == (2, 0)
        assert found.examples.tolist() == [0, 0]


def test_more_nodes_than_numbers_of_a_minibatch_can_tell_apart(monkeypatch):
    monkeypatch.setattr(table, "_MOST", 16)
    with pytest.raises(DataError, match="the graphs of this node have 17 nodes in total, more than 16"):
        GraphTable.of(GRAPHS, "node")
