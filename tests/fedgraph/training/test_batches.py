"""The order of examples of each client."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.training.batches import (
    Ahead,
    batch_sizes,
    example_numbers,
    keys_of_steps,
    learning_rates,
    num_steps,
    shuffling_keys,
    training_batches,
)
from fedgraph.training.settings import TrainSettings


def batches_of(names, sizes, table, seed, round):
    return training_batches(shuffling_keys(seed, names), torch.tensor(sizes), table, round)


@settings(max_examples=40, derandomize=True)
@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    batch=st.integers(1, 5),
    epochs=st.integers(0, 3),
    drop_last=st.booleans(),
)
def test_every_epoch_visits_each_example_once(sizes, batch, epochs, drop_last):
    table = TrainSettings(batch_size=batch, local_epochs=epochs, drop_last=drop_last)
    names = [f"c{i}" for i in range(len(sizes))]
    indices = batches_of(names, sizes, table, seed=3, round=1)
    assert (indices >= 0).any(2).sum(0).tolist() == num_steps(torch.tensor(sizes), table).tolist()
    for client, size in enumerate(sizes):
        visited = indices[:, client][indices[:, client] >= 0]
        dropped = size % batch if drop_last and size >= batch else 0
        counts = torch.bincount(visited, minlength=size)
        assert counts.sum() == epochs * (size - dropped)
        assert (counts <= epochs).all()
        assert dropped or (counts == epochs).all()
        alone = batches_of([names[client]], [size], table, seed=3, round=1)
        assert torch.equal(indices[: len(alone), client], alone[:, 0])
        assert (indices[len(alone) :, client] == -1).all()


def test_steps_cycle_through_reshuffled_epochs():
    indices = batches_of(["a", "b"], [5, 2], TrainSettings(batch_size=2, local_steps=7), seed=0, round=4)
    assert indices.shape == (7, 2, 2)
    assert ((indices >= 0).sum(2) > 0).all()
    first, second = indices[:3, 0].flatten(), indices[3:6, 0].flatten()
    assert sorted(first.tolist()) == sorted(second.tolist()) == [-1, 0, 1, 2, 3, 4]
    assert not torch.equal(first, second)


def test_order_depends_on_seed_name_and_round():
    table = TrainSettings(batch_size=32)

    def order(name="a", seed=0, round=1):
        return batches_of([name], [32], table, seed, round).flatten().tolist()

    assert order() == order()
    assert len({tuple(each) for each in (order(), order(name="b"), order(seed=1), order(round=2))}) == 4


def test_numbers_of_examples_depend_on_client_round_step_and_place_alone():
    keys = shuffling_keys(0, ["a", "b", "c"])
    whole = example_numbers(keys, 1, 0, 8)
    assert torch.equal(example_numbers(keys[1:2], 1, 0, 5), whole[1:2, :5])
    others = [example_numbers(keys, round, step, 8) for round in (1, 2) for step in (0, 1, 2)]
    assert len(torch.stack(others).unique()) == 6 * 3 * 8


def test_keys_of_steps_depend_on_client_round_and_step_alone():
    keys = shuffling_keys(0, ["a", "b", "c"])
    whole = keys_of_steps(keys, 1, 5)
    assert torch.equal(keys_of_steps(keys[1:2], 1, 3), whole[:3, 1:2])
    others = [whole, keys_of_steps(keys, 2, 5), example_numbers(keys, 1, 0, 5), keys_of_steps(keys + 1, 1, 5)]
    assert len(torch.cat([each.flatten() for each in others]).unique()) == 4 * 3 * 5


@pytest.mark.parametrize(("drop_last", "steps"), [(False, [0, 1, 1, 1, 2]), (True, [0, 1, 1, 1, 1])])
def test_a_minibatch_that_is_too_small_is_left_out(drop_last, steps):
    examples = torch.tensor([1, 2, 4, 5, 6])
    keys, settings = shuffling_keys(0, list("abcde")), TrainSettings(batch_size=4, local_epochs=2, drop_last=drop_last)
    assert (num_steps(examples, settings, 2) == 2 * torch.tensor(steps)).all()
    batches = training_batches(keys, examples, settings, 1, least=2)
    counts = (batches >= 0).sum(2)
    assert not (counts == 1).any()
    assert (counts > 0).sum(0).tolist() == [2 * each for each in steps]
    assert num_steps(examples, settings).tolist() == [2, 2, 2, 2 if drop_last else 4, 2 if drop_last else 4]


def test_nothing_is_made_ahead_of_a_round_that_is_not_expected():
    ahead, block = Ahead(), object()

    def taken(block, round):
        made = ahead.taken(block, round)
        ahead.make(lambda: f"after {round}")
        return made

    assert taken(block, 1) is None
    assert taken(block, 2) is None  # the first round in a row makes nothing
    assert taken(block, 3) == "after 2"
    assert taken(block, 5) is None  # not that of round 4
    assert taken(block, 6) is None
    assert taken(block, 7) == "after 6"
    assert taken(object(), 8) is None
    assert taken(block, 8) is None


def test_what_does_not_fit_into_the_memory_of_a_gpu_is_made_in_its_round():
    def full():
        raise torch.OutOfMemoryError

    ahead, block = Ahead(), object()
    for round in (1, 2):
        assert ahead.taken(block, round) is None
        ahead.make(full)
    assert ahead.taken(block, 3) is None
    ahead.make(lambda: "after 3")
    ahead.forget()
    assert ahead.taken(block, 4) is None


def test_every_order_is_equally_likely():
    clients = 24_000
    names = [f"client-{i}" for i in range(clients)]
    orders = batches_of(names, [4] * clients, TrainSettings(batch_size=4), seed=0, round=1)[0]
    assert (orders.sort(dim=1).values == torch.arange(4)).all()
    counts = torch.bincount((orders * torch.tensor([64, 16, 4, 1])).sum(1)).sort(descending=True).values[:24]
    # 24 equally likely orders, 1000 of each expected: the 0.01 % point of chi square with 23 degrees is 56.
    assert ((counts - 1000.0).square() / 1000).sum() < 56


def test_rounds_epochs_and_clients_are_shuffled_independently():
    table = TrainSettings(batch_size=500, local_epochs=3)
    names = [f"c{i}" for i in range(5)]
    ranks = []
    for round in (1, 2, 3):
        indices = batches_of(names, [500] * 5, table, seed=0, round=round)
        ranks += list(indices.flatten(0, 1).double())
    correlations = torch.corrcoef(torch.stack([*ranks, torch.arange(500.0, dtype=torch.float64)]))
    # 46 orders of 500, 1035 pairs: the largest of so many correlations by chance stays below 5 deviations.
    assert (correlations - torch.eye(46)).abs().max() < 5 / 500**0.5


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


@pytest.mark.parametrize("table", [{"local-epochs": 3}, {"local-steps": 7}, {"local-epochs": 2, "drop-last": True}])
@pytest.mark.parametrize("least", [1, 2])
def test_sizes_are_those_of_the_minibatches(table, least):
    sizes = torch.tensor([9, 4, 1, 0, 13])
    settings = TrainSettings(**{"batch-size": 4, **table})
    batches = training_batches(shuffling_keys(0, list("abcde")), sizes, settings, 1, least)
    assert torch.equal(batch_sizes(sizes, settings, least), (batches >= 0).sum(2))
