import numpy as np
import pytest
import torch

from fedgraph.graph.learning.kernel import kernel_graph
from fedgraph.support.errors import GraphError


def test_it_is_the_formula():
    points = np.random.default_rng(0).normal(size=(9, 3))
    distances = ((points[:, None] - points) ** 2).sum(axis=2)
    order = np.argsort(distances + np.diag(np.full(9, np.inf)), axis=1)[:, :3]
    widths = np.sqrt(np.take_along_axis(distances, order, 1).mean(axis=1))
    expected = np.zeros((9, 9))
    for i in range(9):
        for j in range(9):
            if j in order[i] or i in order[j]:
                expected[i, j] = np.exp(-distances[i, j] / (widths[i] * widths[j]))
    np.testing.assert_allclose(kernel_graph(torch.as_tensor(distances), 3).numpy(), expected, rtol=1e-12)


def test_the_unit_of_the_distances_does_not_matter():
    points = torch.randn(10, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    distances = torch.cdist(points, points).square()
    torch.testing.assert_close(kernel_graph(distances, 3), kernel_graph(1e6 * distances, 3))


def test_equal_models_listen_to_each_other_with_weight_one():
    weights = kernel_graph(torch.zeros(4, 4), 3)
    assert torch.equal(weights, 1 - torch.eye(4, dtype=torch.float64))


def test_few_clients():
    assert kernel_graph(torch.zeros(1, 1), 8).tolist() == [[0.0]]
    assert (kernel_graph(torch.tensor([[0.0, 2.0], [2.0, 0.0]]), 8) > 0).tolist() == [[False, True], [True, False]]


def test_no_neighbours_are_refused():
    with pytest.raises(GraphError, match="must be above 0"):
        kernel_graph(torch.zeros(3, 3), 0)
