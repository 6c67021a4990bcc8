import networkx
import pytest
import torch

from fedgraph.graphical.inference.released_sampling import breadth_first_orders, inferred, released_draw
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.settings import NGMSettings


def test_orders_are_those_of_a_breadth_first_search():
    graph = torch.zeros(7, 7).bool()
    for first, second in ((0, 1), (1, 2), (1, 3), (2, 4), (3, 4)):
        graph[first, second] = graph[second, first] = True
    orders, roots = breadth_first_orders(graph)
    for start in range(5):
        wanted = [start, *(to for _, to in networkx.bfs_edges(networkx.from_numpy_array(graph.numpy()), start))]
        assert orders[start].tolist() == [*wanted, 5, 6]
        assert roots[start].tolist() == [True] + [False] * 4 + [True, True]
    assert orders[6].tolist()[:2] == [6, 0]


def test_a_row_is_what_the_steps_one_after_the_other_give(gaussian):
    """One row at a time: the first uniform, then what is inferred from all before, times noise of 1 %."""
    network, parameters, _ = gaussian(0.8, mean=0.5)
    rows = 6
    found = released_draw(
        network, parameters, torch.full((1, rows, 5), torch.nan), [torch.Generator().manual_seed(0)], 5, 0.1
    )[0]
    random = torch.Generator().manual_seed(0)
    starts = torch.randint(5, (rows,), generator=random)
    uniform = torch.cat([torch.rand(1, rows, generator=random) for _ in range(5)])
    orders, _ = breadth_first_orders(network.adjacency)
    for row in range(rows):
        values = torch.full((5,), torch.nan)
        expected = torch.full((5,), torch.nan)
        for step, feature in enumerate(orders[starts[row]].tolist()):
            noise = 1 + 0.01 * (2 * uniform[step, row] - 1)
            values[feature] = uniform[step, row] if step == 0 else expected[feature] * noise
            expected = inferred(network, parameters, values[None, None], 5, 0.1)[0, 0]
        assert torch.allclose(found[row], values, atol=1e-5)


def test_known_values_stay_and_categories_are_whole(mixed):
    schema, table = mixed(500)
    network = Network(schema, torch.ones(4, 4).bool(), NGMSettings(hidden=4))
    parameters = network.with_moments(network.initial(torch.Generator().manual_seed(0))[None], table[None])
    given = torch.full((1, 400, 6), torch.nan)
    given[..., 0] = 0.3
    found = released_draw(network, parameters, given, [torch.Generator().manual_seed(1)], 2, 0.01)[0]
    assert (found[:, 0] == 0.3).all()
    assert ((found[:, 1:5] == 0) | (found[:, 1:5] == 1)).all()
    assert (found[:, 2:5].sum(1) == 1).all()
    # A first category is drawn by its share in the table.
    assert found[:, 1].mean() == pytest.approx(float(table[:, 1].mean()), abs=0.15)


def test_the_gradient_method_is_adam_on_unknown_inputs(gaussian):
    network, parameters, covariance = gaussian()
    noise = torch.randn(20, len(covariance), generator=torch.Generator().manual_seed(0))
    rows = noise @ torch.linalg.cholesky(covariance).T
    asked = rows.index_fill(1, torch.tensor([1, 2]), torch.nan)
    found = inferred(network, parameters, asked[None], 60, 0.05)[0]
    for row in (0, 7):
        free = torch.zeros(2, requires_grad=True)
        optimiser = torch.optim.Adam([free], 0.05)
        best, least = None, torch.inf
        for _ in range(60):
            values = torch.cat([rows[row, :1], free, rows[row, 3:]])
            error = ((network.forward(parameters, values[None, None])[0, 0] - values)[[0, 3, 4]].square().sum()) / 5
            if error < least:
                best, least = free.detach().clone(), error.detach()
            optimiser.zero_grad()
            error.backward()
            optimiser.step()
        assert torch.allclose(found[row, 1:3], best, atol=1e-3)
    assert torch.equal(found[:, [0, 3, 4]], rows[:, [0, 3, 4]])
