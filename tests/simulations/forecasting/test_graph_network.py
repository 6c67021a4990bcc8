"""The graph network: who hears whom, and what absent owners leave out."""

import pytest
import torch

from fedgraph.graph import ClientGraph
from fedgraph.simulations.forecasting.graph_network import GraphNetwork

OWNERS, WINDOWS, SIZE = 5, 3, 4
NAMES = tuple("abcde")


def network(graph, layers=2):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = GraphNetwork(SIZE, 6, layers, graph)
        torch.nn.init.normal_(made.read_out.weight)
    return made


def graph_of(*edges):
    """An edge ``(i, j)``: owner i hears owner j."""
    dense = torch.zeros(OWNERS, OWNERS)
    for place, (row, column) in enumerate(edges):
        dense[row, column] = 0.5 + 0.1 * place
    return ClientGraph.from_dense(NAMES, dense, directed=True)


@pytest.fixture
def states():
    return torch.randn(OWNERS, WINDOWS, SIZE, generator=torch.Generator().manual_seed(1))


EVERYBODY = torch.ones(OWNERS, WINDOWS, dtype=torch.bool)


def changed(made, states, owner, present=EVERYBODY):
    """Whose embeddings change with the state of one owner."""
    other = states.clone()
    other[owner] += 1
    with torch.no_grad():
        return ((made(states, present) - made(other, present)).abs() > 1e-6).flatten(1).any(1).tolist()


def test_it_starts_at_nothing(states):
    assert GraphNetwork(SIZE, 6, 2, graph_of((0, 1)))(states, EVERYBODY).abs().max() == 0


def test_a_layer_brings_what_neighbours_say_and_the_next_what_is_common(states):
    line = graph_of((0, 1), (1, 2))
    assert changed(network(line, layers=1), states, 2) == [False, True, True, False, False]
    assert changed(network(line, layers=2), states, 2) == [True] * 5


def test_without_a_graph_owners_are_alone(states):
    for owner in range(OWNERS):
        expected = [place == owner for place in range(OWNERS)]
        assert changed(network(None), states, owner) == expected


def test_who_lacks_a_window_is_not_heard(states):
    present = EVERYBODY.clone()
    present[2, 1] = False
    made = network(graph_of((0, 1), (1, 2), (3, 2)))
    other = states.clone()
    other[2, 1] += 1
    with torch.no_grad():
        assert torch.equal(made(states, present)[[0, 1, 3, 4]], made(other, present)[[0, 1, 3, 4]])
        # Where somebody is absent, means are of the others: as if the graph were of these alone.
        rest = graph_of((0, 1)).subgraph(tuple("abde"))
        alone = network(rest)(states[[0, 1, 3, 4], 1:2], EVERYBODY[:4, :1])
        torch.testing.assert_close(made(states, present)[[0, 1, 3, 4], 1:2], alone)


def test_owners_may_come_in_any_order(states):
    edges = [(0, 1), (1, 2), (2, 0), (3, 1)]
    order = [3, 0, 4, 1, 2]
    place = {owner: row for row, owner in enumerate(order)}
    dense = graph_of(*edges).dense()[order][:, order]
    again = network(ClientGraph.from_dense(tuple(NAMES[owner] for owner in order), dense, directed=True))
    with torch.no_grad():
        first, second = network(graph_of(*edges))(states, EVERYBODY), again(states[order], EVERYBODY)
    torch.testing.assert_close(first, second[[place[owner] for owner in range(OWNERS)]])
