import math

import pytest
import torch

from fedgraph.clients.sfl_cold_start import choice


def test_choice_is_the_formula():
    prior = torch.tensor([[0.5, 0.3, 0.2], [0.0, 0.5, 0.5]])
    losses = torch.tensor([[2.0, 1.0, 1.1], [0.1, 3.0, 4.0]], dtype=torch.float64)
    got = choice(prior, losses, temperature=0.5)
    for row in range(2):
        best = min(losses[row].tolist())
        weights = [
            float(prior[row, j]) * math.exp(-(float(losses[row, j]) / best - 1) / 0.5) for j in range(3)
        ]  # fmt: skip
        assert got[row].tolist() == pytest.approx([weight / sum(weights) for weight in weights], rel=1e-5)


def test_what_could_not_be_measured_does_not_count():
    prior = torch.tensor([[0.5, 0.5], [0.2, 0.8], [1.0, 0.0]])
    losses = torch.tensor([[math.nan, 1.0], [math.nan, math.nan], [1e9, 1.0]], dtype=torch.float64)
    got = choice(prior, losses, temperature=0.01)
    # The only one that was measured; the graph alone; the only one that the graph allows, however bad.
    torch.testing.assert_close(got, torch.tensor([[0.0, 1.0], [0.2, 0.8], [1.0, 0.0]], dtype=torch.float64))


def test_a_loss_of_zero_is_the_best():
    got = choice(torch.full((1, 2), 0.5), torch.tensor([[0.0, 1.0]], dtype=torch.float64), temperature=0.1)
    assert got[0, 0] > 0.99
