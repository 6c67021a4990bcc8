"""The rate of each minibatch against interpolation between the corners of the schedule."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedgraph.training.learning_rates import learning_rates
from fedgraph.training.settings import TrainSettings

SIZES = torch.tensor([12, 4, 7, 1])


def rates_of(round=1, **table):
    return learning_rates(TrainSettings(**table), SIZES, round)


def test_none_without_a_schedule():
    assert rates_of(learning_rate=0.3, learning_rate_decay=0.5, local_epochs=2) is None


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("warmup", [0, 0.5, 2, 5])
def test_rises_then_falls_to_the_end_of_the_round(warmup, drop_last):
    rates = rates_of(
        learning_rate=0.4,
        warmup_epochs=warmup,
        final_learning_rate=0.001,
        local_epochs=6,
        batch_size=4,
        drop_last=drop_last,
    )
    for client, per_epoch in enumerate((3, 1, 1 if drop_last else 2, 1)):
        steps = 6 * per_epoch
        corners = ([0, warmup, 6], [0, 0.4, 0.001]) if warmup else ([0, 6], [0.4, 0.001])
        expected = np.interp(np.arange(1, steps + 1) / per_epoch, *corners)
        np.testing.assert_allclose(rates[:steps, client], expected, rtol=1e-6)
    assert rates.shape == (18, 4)


def test_stays_at_the_top_without_a_final_rate():
    rates = rates_of(learning_rate=0.4, warmup_epochs=2, local_epochs=4, batch_size=12)
    torch.testing.assert_close(rates, torch.tensor([0.2, 0.4, 0.4, 0.4])[:, None].expand(4, 4))


def test_steps_fall_without_a_rise():
    rates = rates_of(learning_rate=0.4, final_learning_rate=0.0, local_steps=4)
    torch.testing.assert_close(rates, torch.tensor([0.3, 0.2, 0.1, 0.0])[:, None].expand(4, 4))


def test_a_round_shorter_than_the_rise_ends_on_it():
    rates = rates_of(learning_rate=0.4, warmup_epochs=5, final_learning_rate=0.001, local_epochs=2, batch_size=12)
    torch.testing.assert_close(rates, torch.tensor([0.08, 0.16])[:, None].expand(2, 4))


def test_the_decay_of_rounds_scales_the_whole_schedule():
    table = {"learning_rate": 0.4, "warmup_epochs": 1, "final_learning_rate": 0.1, "local_epochs": 3}
    first, third = rates_of(1, **table), rates_of(3, **table, learning_rate_decay=0.5)
    torch.testing.assert_close(third, first / 4)
    torch.testing.assert_close(rates_of(3, **table, learning_rate_factor=((1, 1.0), (3, 0.25))), first / 4)
