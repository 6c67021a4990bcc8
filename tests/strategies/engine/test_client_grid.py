"""The grid as a strategy of Flower sees it."""

from types import SimpleNamespace

import torch

from fedgraph.strategies.engine.client_grid import ClientGrid


class Nodes:
    """Two nodes, of which the second leaves after it was looked at ``stays`` times."""

    def __init__(self, stays):
        self.looks, self.stays = 0, stays

    def get_node_ids(self):
        self.looks += 1
        return [7] if self.looks > self.stays else [7, 9]


def seen(nodes):
    federation = SimpleNamespace(names=("a", "b", "c"), hosts={7: torch.tensor([0, 2]), 9: torch.tensor([1])})
    return ClientGrid(nodes, federation, 10, "FedAvg, in round 1")


def test_nodes_are_looked_at_once_before_a_strategy_draws():
    nodes = Nodes(stays=5)
    grid = seen(nodes)
    assert grid.gone == []
    assert grid.get_node_ids() == [1, 2, 3]
    assert nodes.looks == 1
    assert grid.get_node_ids() == [1, 2, 3]
    assert nodes.looks == 2, "a strategy that waits sees who comes and goes"


def test_who_leaves_while_a_strategy_draws_is_gone():
    grid = seen(Nodes(stays=1))
    assert grid.get_node_ids() == [1, 2, 3]
    assert grid.get_node_ids() == [1, 3]
    assert grid.gone == [1]
