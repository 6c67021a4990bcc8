import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedgraph.graph.learning.smoothness import scale_for, smooth_graph, solve
from fedgraph.support.errors import GraphError


def some_distances(clients, seed=0):
    points = torch.randn(clients, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.cdist(points, points).square()


def objective(weights, distances, a, b):
    return (weights * distances).sum() - a * np.log(weights.sum(axis=1)).sum() + b / 2 * (weights**2).sum()


def from_pairs(pairs, clients):
    weights = np.zeros((clients, clients))
    weights[np.triu_indices(clients, 1)] = pairs
    return weights + weights.T


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.5, 3.0), (2.0, 0.2)])
def test_it_is_the_minimum_that_a_general_solver_finds(a, b):
    distances = some_distances(6).numpy()
    pairs = np.triu_indices(6, 1)

    def value(w):
        return objective(from_pairs(w, 6), distances, a, b)

    def slope(w):
        degree = from_pairs(w, 6).sum(axis=1)
        return 2 * distances[pairs] - a * (1 / degree[pairs[0]] + 1 / degree[pairs[1]]) + 2 * b * w

    found = minimize(value, np.full(15, 0.5), jac=slope, bounds=[(1e-12, None)] * 15, method="L-BFGS-B",
                     options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 5000})  # fmt: skip
    ours, _ = solve(torch.as_tensor(distances), a, b)
    np.testing.assert_allclose(ours.weights.numpy(), from_pairs(found.x, 6), atol=2e-5)
    assert objective(ours.weights.numpy(), distances, a, b) <= found.fun + 1e-9


def test_it_is_where_the_iteration_of_the_paper_ends():
    clients, a, b = 8, 1.0, 1.0
    distances = 0.3 * some_distances(clients, seed=1).numpy()
    first, second = np.triu_indices(clients, 1)
    z, size = distances[first, second], clients * (clients - 1) // 2
    S = np.zeros((clients, size))
    S[first, np.arange(size)] = S[second, np.arange(size)] = 1
    step = 0.9 / (2 * b + np.sqrt(2 * (clients - 1)))
    w, d = np.zeros(size), np.zeros(clients)
    for _ in range(5000):  # algorithm 1 there
        y, y_dual = w - step * (2 * b * w + S.T @ d), d + step * (S @ w)
        p = np.maximum(0, y - 2 * step * z)
        p_dual = (y_dual - np.sqrt(y_dual**2 + 4 * a * step)) / 2
        w, d = w - y + p - step * (2 * b * p + S.T @ p_dual), d - y_dual + p_dual + step * (S @ p)
    ours, _ = solve(torch.as_tensor(distances), a, b)
    np.testing.assert_allclose(ours.weights.numpy(), from_pairs(w, clients), atol=1e-8)
    assert 0 < (ours.weights > 0).sum() < clients * (clients - 1)


@pytest.mark.parametrize("clients", [2, 7, 60])
def test_the_optimality_conditions_hold(clients):
    distances = some_distances(clients, seed=clients)
    found = smooth_graph(distances, 3)
    weights, scaled = found.weights, found.scale * distances
    assert torch.equal(weights, weights.T)
    assert (weights >= 0).all()
    assert (weights.diagonal() == 0).all()
    assert (weights.sum(dim=1) > 0).all()
    degree = weights.sum(dim=1)
    slope = 2 * scaled - 1 / degree[:, None] - 1 / degree + 2 * weights
    linked = weights > 0
    assert slope[linked].abs().max() < 1e-5
    free = ~linked & ~torch.eye(clients, dtype=torch.bool)
    assert not free.any() or slope[free].min() > -1e-5
    assert abs(found.gap) < 1e-9
    assert found.residual < 1e-6


@pytest.mark.parametrize("neighbours", [2, 4, 8, 20])
def test_the_mean_number_of_neighbours_is_the_wanted_one(neighbours):
    assert smooth_graph(some_distances(80), neighbours).mean_neighbours == pytest.approx(neighbours, rel=0.05)


def test_the_first_guess_of_the_scale_is_near():
    distances = some_distances(80)
    for neighbours in (4, 8):
        found, _ = solve(scale_for(distances, neighbours) * distances)
        assert found.mean_neighbours == pytest.approx(neighbours, rel=0.25)


def test_the_unit_of_the_distances_does_not_matter():
    distances = some_distances(20)
    one, other = smooth_graph(distances, 4), smooth_graph(1e-8 * distances, 4)
    torch.testing.assert_close(one.weights, other.weights, rtol=1e-6, atol=1e-8)


def test_few_clients_and_many_neighbours():
    assert smooth_graph(torch.zeros(1, 1)).weights.tolist() == [[0.0]]
    pair = smooth_graph(torch.tensor([[0.0, 3.0], [3.0, 0.0]])).weights
    assert pair[0, 1] == pair[1, 0] > 0
    assert smooth_graph(some_distances(5), 8).mean_neighbours == 4


@pytest.mark.parametrize("kind", ["same", "twins", "outlier", "two points", "ties", "orders of magnitude"])
def test_degenerate_distances_still_give_a_graph(kind):
    points = torch.randn(20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    points = {
        "same": torch.zeros(20, 5, dtype=torch.float64),
        "twins": points[torch.arange(20) // 2],
        "outlier": torch.cat([1e6 * points[:1], points[1:]]),
        "two points": points[torch.arange(20) % 2],
        "ties": torch.eye(20, dtype=torch.float64),
        "orders of magnitude": points * 10 ** torch.linspace(-5, 5, 20, dtype=torch.float64)[:, None],
    }[kind]
    weights = smooth_graph(torch.cdist(points, points).square(), 4).weights
    assert weights.isfinite().all()
    assert (weights.sum(dim=1) > 0).all()


@pytest.mark.parametrize(
    ("distances", "neighbours", "said"),
    [
        (torch.zeros(2, 3), 8, r"\[N, N\]; got \[2, 3\]"),
        (torch.tensor([[0.0, -1.0], [-1.0, 0.0]]), 8, "finite and non-negative"),
        (torch.tensor([[0.0, torch.nan], [1.0, 0.0]]), 8, "finite and non-negative"),
        (torch.zeros(2, 2), 0, "must be above 0; got 0"),
    ],
)
def test_what_is_no_distance_matrix_is_refused(distances, neighbours, said):
    with pytest.raises(GraphError, match=said):
        smooth_graph(distances, neighbours)
