import csv

import numpy as np
import pytest
import torch

from fedgraph.graphical.learning.dependence import (
    Derivatives,
    dependencies,
    derivatives,
    read_graph,
    violation,
    write_dependencies,
)
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.settings import NGMSettings
from fedgraph.support.randomness import generator


def drawn(network, rows):
    matrix = torch.stack([network.initial(generator(7, "test", client)) for client in range(len(rows))])
    return network.with_moments(matrix + 0.3 * torch.randn(matrix.shape, generator=generator(8)), rows)


def test_derivatives_are_those_of_finite_differences(mixed):
    schema, rows = mixed(10)
    rows = torch.stack([rows[:5], rows[5:]])
    network = Network(schema, torch.ones(4, 4).bool(), NGMSettings(hidden=4))
    parameters, step = drawn(network, rows), 1e-3
    found = derivatives(network, parameters, rows)
    for unit in range(rows.shape[2]):
        shift = step * torch.eye(rows.shape[2])[unit]
        change = network.forward(parameters, rows + shift) - network.forward(parameters, rows - shift)
        slopes = change / (2 * step)
        assert torch.allclose(found.largest[:, :, unit], slopes.abs().amax(1), atol=1e-2)
        assert torch.allclose(found.mean_square[:, :, unit], slopes.square().mean(1), atol=1e-2)


def test_missing_values_stand_at_their_means(chain, numbers, chain_graph):
    network = Network(numbers(3), chain_graph(3), NGMSettings(hidden=4))
    rows = chain(20, 3)[None]
    parameters = drawn(network, rows)
    gap, filled = rows.clone(), rows.clone()
    gap[..., 0], filled[..., 0] = torch.nan, rows[..., 0].mean()
    found, wanted = derivatives(network, parameters, gap), derivatives(network, parameters, filled)
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(found, wanted, strict=True))
    assert (found.largest[0, 1, 0] > 0).all()


def test_violation_is_the_largest_derivative_beside_the_graph(numbers, chain_graph):
    network = Network(numbers(3), chain_graph(3), NGMSettings())
    largest = torch.tensor([[[0.1, 9, 0.2], [9, 0, 9], [0.3, 9, 0.4]], [[0, 9, 0.5], [9, 0, 9], [0, 9, 0]]])
    assert violation(network, Derivatives(largest, largest)).tolist() == pytest.approx([0.4, 0.5])


def test_dependencies_are_in_standard_deviations(mixed):
    """What moves a feature: derivatives times deviations of the input, by the deviation of the output."""
    schema, rows = mixed(400)
    network = Network(schema, torch.ones(4, 4).bool(), NGMSettings())
    parameters = network.with_moments(network.initial(generator(0))[None], rows[None])
    squares = torch.rand(1, 6, 6, generator=generator(1))
    found = dependencies(network, parameters, Derivatives(squares, squares))[0].numpy()
    variance, blocks = rows.numpy().var(0), [[0], [1], [2, 3, 4], [5]]
    for to, outputs in enumerate(blocks):
        for source, inputs in enumerate(blocks):
            moved = squares[0].numpy()[np.ix_(outputs, inputs)] @ variance[inputs]
            assert found[to, source] == pytest.approx((moved.sum() / variance[outputs].sum()) ** 0.5, rel=1e-4)


def test_graphs_are_read_by_strength():
    strengths = torch.tensor([[9.0, 0.4, 0.0], [0.0, 9.0, 0.1], [0.25, 0.5, 9.0]])
    # Means of both directions: 0-1 0.2, 0-2 0.125, 1-2 0.3.
    wanted = torch.tensor([[0, 1, 0], [1, 0, 1], [0, 1, 0]]).bool()
    assert torch.equal(read_graph(strengths, threshold=0.2), wanted)
    both = read_graph(torch.stack([strengths, torch.zeros(3, 3)]), threshold=0.15)
    assert torch.equal(both[0], wanted)
    assert not both[1].any()


def test_pairs_come_from_the_strongest_to_the_weakest(tmp_path):
    strengths = torch.tensor([[0.0, 0.25, 0.0], [1.5, 0.0, 0.125], [0.0, 0.0, 0.0]])
    write_dependencies(("a", "b, c", "d"), strengths, tmp_path / "dependencies")
    lines = list(csv.reader((tmp_path / "dependencies.csv").open(newline="")))
    assert lines == [
        ["feature", "depends on", "strength"],
        ["b, c", "a", "1.5"],
        ["a", "b, c", "0.25"],
        ["b, c", "d", "0.125"],
    ]
    assert (tmp_path / "dependencies.png").read_bytes().startswith(b"\x89PNG")
