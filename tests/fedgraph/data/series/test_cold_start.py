from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.data.base import SPLITS, CohortData, SplitName
from fedgraph.data.series.cohort import build_cohort
from fedgraph.data.series.cold_start import ColdStartSettings, cold_clients, describe_cold
from fedgraph.data.series.series_files import SeriesTable
from fedgraph.data.series.windows import WindowSettings
from fedgraph.models.base import Batch
from fedgraph.support.errors import DataError

NAMES = tuple(f"c{number}" for number in range(6))
STEPS, TRAIN, COLD = 100, 70, 20
INPUTS, OUTPUTS = 4, 2


def table(names: tuple[str, ...] = NAMES, seed: int = 0) -> SeriesTable:
    random = np.random.default_rng(seed)
    values = (10.0 + 5.0 * random.standard_normal((len(names), STEPS, 2))).astype(np.float32)
    values[random.random(values.shape) < 0.1] = np.nan
    return SeriesTable(names, values, None, ("speed", "flow"))


def config(**keys: Any) -> WindowSettings:
    usual = {"input_steps": INPUTS, "output_steps": OUTPUTS, "cold_steps": COLD, "cold_clients": ("c1", "c4")}
    return WindowSettings(**(usual | keys))


def everything(cohort: CohortData, split: SplitName) -> Batch:
    """All examples of all clients, padding behind those that have fewer."""
    counts = cohort.splits[split].num_examples
    indices = torch.arange(int(counts.max())).expand(len(counts), -1)
    return cohort.splits[split].batch(indices.masked_fill(indices >= counts[:, None], -1))


def same(first: CohortData, second: CohortData) -> bool:
    batches = [
        pair for split in SPLITS for pair in zip(everything(first, split), everything(second, split), strict=True)
    ]
    return all(torch.equal(*pair) for pair in [*batches, (first.mean, second.mean), (first.std, second.std)])


# ---- who is cold


def test_how_many_and_that_a_larger_share_includes_a_smaller_one() -> None:
    names = [f"sensor-{number}" for number in range(29)]
    found = [cold_clients(ColdStartSettings(cold_share=share), names) for share in (0.0, 0.1, 0.2, 0.5)]
    assert [len(each) for each in found] == [0, 3, 6, 14]
    assert found[1] < found[2] < found[3] < set(names)
    others = [cold_clients(ColdStartSettings(cold_share=0.2, cold_seed=seed), names) for seed in range(1, 6)]
    assert len({found[2], *others}) > 1


@settings(max_examples=20, derandomize=True)
@given(st.permutations(NAMES), st.integers(1, 5), st.integers(0, 3))
def test_neither_order_nor_packing_changes_who_is_cold(order: list[str], nodes: int, seed: int) -> None:
    keys = config(cold_clients=None, cold_share=0.5, cold_seed=seed)
    data = table()
    whole = build_cohort(data, keys, NAMES)
    assert whole.groups is not None
    assert whole.groups.count("cold") == 3
    for node in range(nodes):
        hosted = order[node::nodes]
        part = build_cohort(data, keys, hosted)
        assert part.groups == tuple(whole.groups[NAMES.index(name)] for name in hosted)


def test_the_share_is_of_the_clients_of_the_settings() -> None:
    chosen = ("c5", "c0", "c3")
    keys = config(cold_clients=None, cold_share=0.34, clients=chosen)
    assert build_cohort(table(), keys, chosen).groups == tuple(
        "cold" if name in cold_clients(keys, chosen) else "warm" for name in chosen
    )
    assert len(cold_clients(keys, chosen)) == 1


# ---- what they have


def test_examples_of_cold_clients_are_those_of_a_plain_loop_over_the_last_steps() -> None:
    data = table()
    cohort = build_cohort(data, config(stride=3), NAMES)
    batch = everything(cohort, "train")
    for row, name in enumerate(NAMES):
        first = TRAIN - COLD if name in ("c1", "c4") else 0
        readings = data.values[row, :, 0].astype(np.float64)
        mean, std = np.nanmean(readings[first:TRAIN]), np.nanstd(readings[first:TRAIN])
        starts = range(first, TRAIN - INPUTS - OUTPUTS + 1, 3)
        assert int(cohort.splits["train"].num_examples[row]) == len(starts)
        np.testing.assert_allclose([cohort.mean[row], cohort.std[row]], [mean, std], rtol=1e-5)
        for example, start in enumerate(starts):
            window = np.nan_to_num((readings[start : start + INPUTS + OUTPUTS] - mean) / std)
            np.testing.assert_allclose(batch.inputs[row, example, :, 0], window[:INPUTS], rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(batch.targets[row, example], window[INPUTS:], rtol=1e-3, atol=1e-5)
    assert cohort.groups == ("warm", "cold", "warm", "warm", "cold", "warm")


@pytest.mark.parametrize("scaling", ["client", "none"])
@pytest.mark.parametrize("trains", [True, False])
def test_nothing_before_the_stretch_of_a_cold_client_has_any_influence(scaling: str, trains: bool) -> None:
    data, keys = table(), config(scaling=scaling, cold_trains=trains)
    changed = data.values.copy()
    changed[[1, 4], : TRAIN - COLD] = np.random.default_rng(1).uniform(-1e6, 1e6, (2, TRAIN - COLD, 2))
    changed[4, 7] = np.nan
    cold = build_cohort(data, keys, NAMES)
    assert same(cold, build_cohort(SeriesTable(NAMES, changed, None, data.features), keys, NAMES))
    # And of a warm client it has; so has the first reading of the stretch.
    for row, step in ((0, TRAIN - COLD - 1), (1, TRAIN - COLD)):
        moved = data.values.copy()
        moved[row, step] = 1e3
        assert not same(cold, build_cohort(SeriesTable(NAMES, moved, None, data.features), keys, NAMES))


def test_validation_and_test_examples_are_those_of_everybody() -> None:
    data = table()
    cold = build_cohort(data, config(), NAMES)
    warm = build_cohort(data, config(cold_clients=()), NAMES)
    assert warm.groups is None
    for split in ("validation", "test"):
        assert torch.equal(cold.splits[split].num_examples, warm.splits[split].num_examples)
        for ours, theirs in ((cold, warm), (warm, cold)):
            first, second = everything(ours, split), everything(theirs, split)
            assert torch.equal(first.weights, second.weights)
            readings = [
                batch.targets * data.std[:, None, None] + data.mean[:, None, None]
                for batch, data in ((first, ours), (second, theirs))
            ]
            torch.testing.assert_close(*(each * first.weights for each in readings), rtol=1e-4, atol=1e-4)


def test_all_of_the_training_part_is_no_cold_start() -> None:
    data = table()
    assert same(build_cohort(data, config(cold_steps=TRAIN), NAMES), build_cohort(data, config(cold_clients=()), NAMES))


def test_cold_clients_that_do_not_train_are_declared_and_still_scaled() -> None:
    data = table()
    idle, training = (build_cohort(data, config(cold_trains=trains, cold_steps=10), NAMES) for trains in (False, True))
    assert (idle.untrained, training.untrained) == (("c1", "c4"), ())
    assert (idle.splits["train"].num_examples == 0).tolist() == [False, True, False, False, True, False]
    assert torch.equal(idle.mean, training.mean)
    assert torch.equal(idle.std, training.std)
    with pytest.raises(IndexError, match="beyond its client's last window"):
        idle.splits["train"].batch(torch.zeros(6, 1, dtype=torch.int64))
    assert build_cohort(data, config(cold_trains=False, cold_steps=1), ["c0", "c4"]).untrained == ("c4",)


def test_blocks_of_clients_keep_their_own_windows() -> None:
    split = build_cohort(table(), config(), NAMES).splits["train"]
    indices = torch.randint(0, 15, (6, 5), generator=torch.Generator().manual_seed(0))
    whole = split.batch(indices)
    order = torch.tensor([4, 0, 5, 1])
    for chosen in (slice(1, 5), order):
        part = split.select(chosen)
        assert torch.equal(part.num_examples, split.num_examples[chosen])
        again = part.select(slice(1, 3))
        for ours, all_rows in zip(part.batch(indices[chosen]), whole, strict=True):
            assert torch.equal(ours, all_rows[chosen])
        for ours, all_rows in zip(again.batch(indices[chosen][1:3]), whole, strict=True):
            assert torch.equal(ours, all_rows[chosen][1:3])
    assert split.select(order).series.data_ptr() == split.series.data_ptr()  # type: ignore[attr-defined]


# ---- what is said


def test_the_description() -> None:
    names = ["a", "b", "c", "d", "e"]
    assert describe_cold(ColdStartSettings(), names) == ""
    said = describe_cold(ColdStartSettings(cold_share=0.4), names)
    assert said == "2 cold with the last 288 steps of training readings"
    said = describe_cold(ColdStartSettings(cold_clients=("a",), cold_trains=False), names)
    assert said == "1 cold, scaled by the last 288 steps of training readings but never trained"
    said = describe_cold(ColdStartSettings(cold_clients=("a",), cold_scale="graph"), names)
    assert said == "1 cold with the last 288 steps of training readings, their scale inferred over the client graph"
    said = describe_cold(ColdStartSettings(cold_clients=("a",), cold_scale="everybody", cold_trains=False), names)
    assert said.endswith("training readings, never trained, their scale inferred from all other clients")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"cold_clients": ("c1", "zz")}, "`cold-clients` names unknown clients: zz"),
        ({"cold_clients": None, "cold_share": 0.05}, "`cold-share` 0.05 of 6 clients"),
        ({"cold_steps": 71}, "`cold-steps` is 71, .*70"),
        ({"cold_steps": 5}, "`cold-steps` is 5, .*6 steps"),
    ],
)
def test_messages(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        build_cohort(table(), config(**keys), ["c0"])


def test_a_cold_client_without_a_reading_in_its_stretch_is_named() -> None:
    data = table()
    data.values[4, TRAIN - COLD : TRAIN] = np.nan
    silent = r"training part for c4 \(1 of this node's 6 clients\).*`missing` and `cold-steps`"
    with pytest.raises(DataError, match=silent):
        build_cohort(data, config(), NAMES)
    build_cohort(data, config(cold_clients=("c1",)), NAMES)
