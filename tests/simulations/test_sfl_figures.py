"""Figure 4 of Chen et al. 2022: adjacency matrices of given and learned client graphs."""

import itertools

import numpy as np
import torch

from fedgraph.graph import ClientGraph, write_graph
from fedgraph.simulations.sfl import figures


def test_adjacency_has_the_given_graph_above_the_learned(drawn, monkeypatch):
    order = ["client-3", "client-0", "client-4", "client-1"]
    monkeypatch.setattr(figures, "shown_clients", lambda graph: order)
    names = [f"client-{number}" for number in range(6)]
    random = torch.Generator().manual_seed(0)
    given, learned = (
        ClientGraph.from_dense(names, torch.rand(6, 6, generator=random).triu(1), directed=True) for _ in range(2)
    )

    def fill(cell):
        write_graph(given, cell.path / "graph.npz")
        if cell.row == "SFL":
            write_graph(learned, cell.path / "learned-graph.npz")

    figure = drawn(figures.adjacency, fill)
    shown = {axis.get_title(): axis.images[0].get_array() for axis in figure.axes if axis.get_title()}
    assert list(shown) == ["Digits\ngiven", "learned: SFL"]
    for image, graph in zip(shown.values(), (given, learned), strict=True):
        np.testing.assert_allclose(image, graph.without_self_loops().subgraph(order).dense())
    assert figure.axes[1].get_xlabel() == "4 of 6 clients"


def test_nothing_is_drawn_without_a_learned_graph(drawn):
    given = ClientGraph.empty(["a", "b"])
    assert drawn(figures.adjacency, lambda cell: write_graph(given, cell.path / "graph.npz")) is None


def test_clients_of_a_community_stand_side_by_side():
    names = [f"{number:02d}" for number in range(40)]
    group = torch.tensor([number % 3 for number in range(40)])
    matrix = (group[:, None] == group[None, :]).float()
    shown = figures.shown_clients(ClientGraph.from_dense(names, matrix, directed=False))
    assert len(shown) == figures.MOST_CLIENTS
    groups = [int(name) % 3 for name in shown]
    assert sum(before != after for before, after in itertools.pairwise(groups)) == 1
    assert figures.shown_clients(ClientGraph.empty(names[:4])) == names[:4]
