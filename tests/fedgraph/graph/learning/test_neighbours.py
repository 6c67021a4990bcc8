import numpy as np
import torch

from fedgraph.graph.learning import combine_graphs, with_row_sums
from fedgraph.graph.learning.neighbours import checked_distances, nearest, off_diagonal_mean, sorted_others


def test_of_equally_near_clients_the_first_are_taken():
    distances = torch.ones(4, 4, dtype=torch.float64).fill_diagonal_(0)
    assert nearest(distances, 2).nonzero().tolist() == [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1], [3, 0], [3, 1]]


def test_a_client_is_not_its_own_neighbour_even_among_twins():
    values, positions = sorted_others(torch.zeros(3, 3, dtype=torch.float64))
    assert values.tolist() == [[0, 0]] * 3
    assert positions.tolist() == [[1, 2], [0, 2], [0, 1]]


def test_distances_become_symmetric_and_keep_their_mean():
    distances = checked_distances(torch.tensor([[5.0, 1.0], [3.0, 0.0]]))
    assert distances.tolist() == [[0, 2], [2, 0]]
    assert off_diagonal_mean(distances) == 2
    assert off_diagonal_mean(torch.zeros(1, 1)) == 0


def test_rows_add_up_and_empty_ones_stay():
    weights = torch.tensor([[0.0, 1.0, 3.0], [0.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    scaled = with_row_sums(weights, 8.0)
    assert scaled.tolist() == [[0, 2, 6], [0, 0, 0], [8, 0, 0]]


def test_a_learned_graph_beside_a_given_one():
    given = np.array([[1.0, 0.5, 0.5], [0.5, 0.0, 3.0], [0.5, 3.0, 0.0]])
    learned = np.array([[0.0, 2.0, 6.0], [1.0, 0.0, 1.0], [0.0, 0.1, 0.0]])
    links = given - np.diag(np.diag(given))
    mean = links.sum() / 3
    expected = np.diag(np.diag(given)) + 0.7 * links + 0.3 * mean * learned / learned.sum(axis=1, keepdims=True)
    got = combine_graphs(torch.as_tensor(given), torch.as_tensor(learned), 0.3)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)
    assert torch.equal(combine_graphs(torch.as_tensor(given), torch.as_tensor(learned), 0.0), torch.as_tensor(given))
    larger = combine_graphs(torch.as_tensor(given), torch.as_tensor(1000 * learned), 0.3)
    np.testing.assert_allclose(larger.numpy(), expected, rtol=1e-12)
