"""Draws of a forward pass from a generator of one's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedgraph.models.own_draws import OwnDraws


def seeded():
    return OwnDraws(torch.Generator().manual_seed(3))


DRAWS = {
    "dropout": lambda: functional.dropout(torch.ones(40), 0.4),
    "dropout2d": lambda: functional.dropout2d(torch.ones(4, 6, 2, 2)),
    "rand": lambda: torch.rand(3),
    "randn": lambda: torch.randn(3),
    "normal_": lambda: torch.empty(3).normal_(),
    "bernoulli": lambda: torch.bernoulli(torch.full((40,), 0.5)),
    "randperm": lambda: torch.randperm(20),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_draws_come_from_the_generator_alone(draw):
    before = torch.get_rng_state()
    with seeded():
        first, second = draw(), draw()
    with seeded():
        again = draw()
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_is_that_of_torch_in_law_and_in_its_gradient():
    values = torch.arange(1.0, 100_001, requires_grad=True)
    with seeded():
        dropped = nn.Dropout(0.25)(values)
    dropped.sum().backward()
    kept = dropped != 0
    assert abs(float(kept.float().mean()) - 0.75) < 0.01
    torch.testing.assert_close(dropped[kept], values[kept] / 0.75)
    torch.testing.assert_close(values.grad, kept / 0.75)


def test_whole_channels_are_dropped_together():
    with seeded():
        dropped = nn.Dropout2d(0.5)(torch.ones(50, 20, 3, 3))
    sums = dropped.sum((2, 3))
    assert ((sums == 0) | (sums == 18)).all()
    assert 0.4 < float((sums == 0).float().mean()) < 0.6


def test_evaluation_and_probabilities_of_0_and_1():
    values = torch.ones(5)
    with seeded():
        assert functional.dropout(values, 0.5, training=False) is values
        assert functional.dropout(values, 0.0) is values
        assert not functional.dropout(values, 1.0).any()
        changed = values.clone()
        assert functional.dropout(changed, 0.9, inplace=True) is changed
