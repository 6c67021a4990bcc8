from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.data import partition as p
from fedgraph.data.partition import PartitionSettings
from fedgraph.support.errors import DataError, ExperimentError
from fedgraph.support.randomness import generator
from fedgraph.support.settings import parse

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))
TEST_LABELS = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 100))


def counts(labels, parts):
    return np.array([np.bincount(labels[part], minlength=int(labels.max()) + 1) for part in parts])


def assert_cover(parts, size):
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(size))


@pytest.mark.parametrize(
    ("table", "covers"),
    [
        ({"partition": "shards", "clients": 20, "shards": 3}, True),
        ({"partition": "iid", "clients": 7}, True),
        ({"partition": "dirichlet", "clients": 20, "alpha": 0.3}, True),
        ({"partition": "classes", "clients": 3}, True),
        ({"partition": "classes", "class-groups": [8, 2]}, True),
        ({"partition": "classes", "class-groups": [[9, 0], [1, 2, 3, 4, 5, 6, 7, 8]]}, True),
        ({"partition": "class-imbalance", "clients": 10, "examples-per-client": 150}, False),
        ({"partition": "power-law", "clients": 10, "examples-per-client": 150}, False),
    ],
)
def test_every_method_deals_without_overlap_and_depends_on_its_seed_alone(table, covers):
    chosen = parse(PartitionSettings, table, "[data]")
    torch.manual_seed(1)
    parts = p.partition(chosen, LABELS, 5)
    torch.manual_seed(2)
    again = p.partition(chosen, LABELS, 5)
    other = p.partition(chosen, LABELS, 6)
    assert len(parts) == chosen.clients
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    dealt = np.concatenate(parts)
    assert len(np.unique(dealt)) == len(dealt)
    assert set(LABELS[dealt]) == set(range(10))
    if covers:
        assert_cover(parts, len(LABELS))
    if chosen.partition != "classes":
        assert any(not np.array_equal(a, b) for a, b in zip(parts, other, strict=True))


@settings(max_examples=40, derandomize=True)
@given(
    labels=st.lists(st.integers(0, 6), min_size=40, max_size=200),
    clients=st.integers(1, 10),
    method=st.sampled_from(["shards", "iid", "dirichlet"]),
    seed=st.integers(0, 100),
)
def test_covers_are_exact_for_any_labels(labels, clients, method, seed):
    chosen = PartitionSettings(partition=method, clients=clients, minimum=1, alpha=1.0)
    parts = p.partition(chosen, np.array(labels), seed)
    assert_cover(parts, len(labels))
    assert all(len(part) and np.all(np.diff(part) > 0) for part in parts)


def test_shards_are_equal_and_hold_few_classes():
    parts = p.shards(LABELS, 20, 2, 0)
    assert {len(part) for part in parts} == {300}
    held = counts(LABELS, parts)
    # 40 shards of 150 in 10 classes of 600: every shard lies inside one class
    assert set(held.flatten()) <= {0, 150, 300}
    assert held.sum(0).tolist() == [600] * 10


def test_iid_sizes_differ_by_at_most_one_and_mix_classes():
    parts = p.iid(LABELS, 7, 0)
    assert {len(part) for part in parts} == {857, 858}
    assert counts(LABELS, parts).min() > 40


def test_dirichlet_follows_its_recipe():
    parts = p.dirichlet(LABELS, 20, 0.3, 3)
    sizes = np.array([len(part) for part in parts])
    assert sizes.min() >= 10
    # a client that has reached n / N gets nothing more: without its last class each client lies below n / N
    held = counts(LABELS, parts)
    last = [row[: np.flatnonzero(row)[-1]].sum() for row in held]
    assert max(last) < len(LABELS) / 20
    # the smaller alpha, the fewer classes make up most of a client
    mass = [np.sort(counts(LABELS, p.dirichlet(LABELS, 10, alpha, 0)), 1)[:, -2:].sum() for alpha in (0.1, 100.0)]
    assert mass[0] > 1.5 * mass[1]


def test_dirichlet_gamma_variates_have_the_right_law():
    draws = generator(0, "test")
    shares = np.stack([p._dirichlet_counts([10_000], 4, 0.5, draws)[0] / 10_000 for _ in range(1500)])
    # Dir(a) over K: mean 1/K, variance (K - 1) / (K^2 (K a + 1))
    assert np.allclose(shares.mean(0), 0.25, atol=0.03)
    assert np.allclose(shares.var(0), 3 / (16 * 3.0), rtol=0.15)


def test_dirichlet_redraws_until_the_minimum():
    assert min(map(len, p.dirichlet(LABELS, 20, 0.1, 1, minimum=100))) >= 100


def test_classes_in_equal_and_unequal_parts():
    assert p.class_groups(LABELS, 2) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert [len(group) for group in p.class_groups(LABELS, 3)] == [4, 3, 3]
    assert p.class_groups(LABELS, (8, 2))[1] == [8, 9]
    held = counts(LABELS, p.by_class(LABELS, [[9, 0], list(range(1, 9))]))
    assert held[0].tolist() == [600, *[0] * 8, 600]
    assert held[1].tolist() == [0, *[600] * 8, 0]


def test_a_hundred_classes_are_all_dealt_out():
    labels = np.repeat(np.arange(100), 200)
    for method in ("shards", "iid", "dirichlet", "classes", "class-imbalance"):
        parts = p.partition(PartitionSettings(partition=method, clients=5), labels, 0)
        assert set(labels[np.concatenate(parts)]) == set(range(100)), method


def test_class_imbalance_is_a_staircase():
    parts = p.class_imbalance(LABELS, 10, 120, 0)
    held = counts(LABELS, parts)
    for client, row in enumerate(held):
        seen = int(np.linspace(1, 10, 10)[client])
        assert np.count_nonzero(row) == seen
        assert row[:seen].max() - row[:seen].min() <= 1
        assert row.sum() == 120
    twenty = counts(LABELS, p.class_imbalance(LABELS, 20, 60, 0))
    assert np.count_nonzero(twenty, axis=1).tolist() == np.linspace(1, 10, 20).astype(int).tolist()


def test_class_imbalance_by_default_takes_what_the_scarcest_class_allows():
    parts = p.class_imbalance(LABELS, 10, None, 0)
    held = counts(LABELS, parts)
    assert len({len(part) for part in parts}) == 1
    assert 540 < held[:, 0].sum() <= 600


def test_power_law_sizes():
    sizes = np.array([len(part) for part in p.power_law(LABELS, 10, 600, 0)])
    quantile = np.linspace(0.01 ** (1 / 1.65911), 0.99 ** (1 / 1.65911), 10)
    assert sizes.sum() == 6000
    assert np.abs(sizes - 6000 * quantile / quantile.sum()).max() <= 1


@pytest.mark.parametrize("method", ["shards", "iid", "dirichlet", "classes", "power-law"])
def test_match_gives_every_test_example_of_the_parts_classes_in_the_same_mix(method):
    parts = p.partition(PartitionSettings(partition=method, clients=10), LABELS, 0)
    tests = p.match(TEST_LABELS, parts, LABELS, 0)
    assert_cover(tests, len(TEST_LABELS))
    train, test = counts(LABELS, parts), counts(TEST_LABELS, tests)
    assert np.abs(test - train * (100 / 600)).max() <= 1 if method != "power-law" else True
    assert np.abs(test.sum(1) - train.sum(1) * test.sum() / train.sum()).max() <= 3


def test_match_keeps_the_mix_where_the_parts_cover_little_of_some_classes():
    parts = p.class_imbalance(LABELS, 10, 120, 0)
    tests = p.match(TEST_LABELS, parts, LABELS, 0)
    train, test = counts(LABELS, parts), counts(TEST_LABELS, tests)
    assert len(np.unique(np.concatenate(tests))) == test.sum()
    assert test[:, 0].sum() == 100  # class 0 is the scarcest and is used up
    assert np.abs(test - train * 100 / train[:, 0].sum()).max() <= 1
    assert np.ptp(test.sum(1)) <= 1


def test_match_rounds_fairly_for_clients_with_little_of_each_class():
    parts = p.iid(LABELS, 300, 0)
    sizes = [len(part) for part in p.match(TEST_LABELS, parts, LABELS, 0)]
    assert sum(sizes) == len(TEST_LABELS)
    assert min(sizes) >= 1  # 3.3 expected


def test_balanced_subset():
    labels = np.array([0] * 5 + [1] * 50 + [2] * 50)
    rows = p.balanced_subset(labels, 35, 0)
    assert np.bincount(labels[rows]).tolist() == [5, 15, 15]
    assert len(np.unique(rows)) == 35
    assert len(p.balanced_subset(labels, 1000, 0)) == 105


def test_split_is_disjoint_and_leaves_no_part_empty():
    for count in (3, 4, 5, 10, 57):
        parts = p.split(count, (0.7, 0.1, 0.2), generator(0, "split"), "client a")
        assert_cover(parts, count)
        assert all(len(part) for part in parts)
    assert [len(part) for part in p.split(100, (0.7, 0.1, 0.2), generator(0), "a")] == [70, 10, 20]
    assert [len(part) for part in p.split(1, (1.0, 0.0), generator(0), "a")] == [1, 0]
    with pytest.raises(DataError, match=r"client a .*\(2\)"):
        p.split(2, (0.7, 0.1, 0.2), generator(0), "client a")


def test_client_names_are_padded_to_the_width_of_the_count():
    assert p.client_names(20)[::19] == ["client-00", "client-19"]
    assert p.client_names(3) == ["client-0", "client-1", "client-2"]
    assert p.client_names(100)[7] == "client-007"


SMALL = np.arange(12) % 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: p.iid(SMALL, 14, 0), "client-12, client-13"),
        (lambda: p.iid(SMALL, 20, 0), "client-16 and 3 more without"),
        (lambda: p.shards(SMALL, 5, 3, 0), "3 shards .*15 .*12"),
        (lambda: p.dirichlet(SMALL, 2, 0.3, 0), "10 examples .*20 .*12"),
        (lambda: p.dirichlet(SMALL, 6, 0.01, 0, minimum=2), "smallest .*minimum = 2"),
        (lambda: p.class_groups(SMALL, 5), "5 clients .*4 classes"),
        (lambda: p.class_groups(SMALL, (2, 1)), r"\[2, 1\] .*3 classes, .*4"),
        (lambda: p.by_class(SMALL, [[0, 1], [1, 2, 3]]), r"classes \[1\] twice"),
        (lambda: p.by_class(SMALL, [[0], [1, 2]]), r"no client for classes \[3\]"),
        (lambda: p.by_class(SMALL, [[0, 1, 2, 3], [8]]), "leaves client-1 without examples"),
        (lambda: p.class_imbalance(SMALL, 4, 8, 0), "class 0 .*3 .*17"),
        (lambda: p.class_imbalance(SMALL, 4, 3, 0), "client-3 .*4 classes .*3"),
        (lambda: p.power_law(SMALL, 4, 4, 0), "need 16 examples, and there are 12"),
        (lambda: p.power_law(SMALL, 12, None, 0), "leaves client-00, client-01, client-02 without"),
    ],
)
def test_errors_say_what_does_not_fit(call, message):
    with pytest.raises(DataError, match=message):
        call()


def test_settings_take_the_number_of_clients_from_class_groups():
    chosen = parse(PartitionSettings, {"partition": "classes", "class-groups": [4, 3, 3]}, "[data]")
    assert chosen.clients == 3
    assert parse(PartitionSettings, chosen.as_table(), "[data]") == chosen
    assert PartitionSettings().clients == 20


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"partition": "classes", "class-groups": [5, 5], "clients": 3},
            "class-groups lists 2 clients, but clients = 3",
        ),
        ({"partition": "iid", "class-groups": [5, 5]}, "only used with partition"),
        ({"partition": "random"}, "partition: Input should be"),
        ({"clients": 0}, "clients: .*greater"),
        ({"alpah": 1}, "'alpah'; .*class-groups"),
    ],
)
def test_settings_refuse_what_makes_no_sense(table, message):
    with pytest.raises(ExperimentError, match=message):
        parse(PartitionSettings, table, "[data]")


def test_descriptions():
    assert p.describe(PartitionSettings()) == "20 clients, 2 shards each"
    assert p.describe(PartitionSettings(partition="dirichlet", alpha=0.25)) == "20 clients, Dirichlet 0.25 over labels"
    assert p.describe(PartitionSettings(partition="classes", class_groups=(8, 2), clients=2)).endswith("classes 8/2")
    assert p.describe(PartitionSettings(partition="power-law", examples_per_client=300)).endswith(
        "power-law sizes, 300 examples on average"
    )
