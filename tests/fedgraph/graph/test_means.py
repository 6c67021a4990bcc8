import numpy as np
import pytest
import torch

from fedgraph.graph import ClientGraph
from fedgraph.graph.means import graph_mean

NAMES = ("a", "b", "c", "d")


def ring():
    neighbours = ["b", "c", "d", "a"]
    return ClientGraph.from_lists(NAMES, NAMES, neighbours, [1.0, 2.0, 3.0, 4.0], directed=False)


@pytest.mark.parametrize(("alpha", "hops", "everybody"), [(1.0, 1, 0.0), (0.3, 2, 0.0), (0.5, 1, 0.7)])
def test_clients_count_by_their_examples(alpha, hops, everybody):
    theta = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    n = np.array([100.0, 0.0, 10.0, 1.0])
    a = ring().dense().numpy().astype(float) + np.eye(4)
    s = (1 - alpha) * np.eye(4) + alpha * np.linalg.matrix_power(a / a.sum(1)[:, None], hops) + everybody / 4
    expected = np.stack([(s[i] * n) @ theta.numpy() / (s[i] @ n) for i in range(4)])
    got = graph_mean(ring(), theta, torch.from_numpy(n).long(), alpha, hops, everybody)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_over_a_complete_graph_the_mean_by_examples_is_fedavg():
    theta = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    counts = torch.tensor([5, 1, 3, 0])
    got = graph_mean(ClientGraph.complete(NAMES), theta, counts, alpha=1.0, hops=1)
    expected = (counts[:, None] * theta).sum(0) / counts.sum()
    torch.testing.assert_close(got, expected.expand(4, -1))


def test_who_hears_nobody_that_counts_gets_the_mean_over_all():
    pairs = ClientGraph.from_lists(NAMES, ["a"], ["b"], [1.0], directed=False)
    theta, counts = torch.arange(20.0).reshape(4, 5), torch.tensor([0, 0, 1, 3])
    got = graph_mean(pairs, theta, counts, alpha=1.0, hops=1)
    torch.testing.assert_close(got[0], (theta[2] + 3 * theta[3]) / 4)
    torch.testing.assert_close(got[2], theta[2])
