import torch

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
