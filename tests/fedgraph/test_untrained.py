"""Clients without a single training example train beside others and come out as they went in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedgraph.data.base import CohortData
from fedgraph.data.examples import ExampleSplit, row_table
from fedgraph.data.pooled import PooledSplit
from fedgraph.models import build
from fedgraph.models.base import TaskSpec
from fedgraph.training.cohort import Cohort, TrainSettings

TASK = TaskSpec("forecast", (4, 1), (2,))
SIZES = (5, 0, 9, 0, 2, 0)
WITH = torch.tensor([size > 0 for size in SIZES])

CASES = [
    {"local_epochs": 2},
    {"local_steps": 4},
    {"local_epochs": 2, "drop_last": True},
    {"local_steps": 3, "keep_optimizer": True, "optimizer": "adam"},
    {"local_epochs": 1, "keep_optimizer": True, "momentum": 0.9, "weight_decay": 0.1},
    {"local_epochs": 1, "workers": 2, "block_size": 1},
    {"local_epochs": 1, "block_size": 2, "clip_norm": 0.1},
    {"local_steps": 2, "compile": True},
]


def data(rows: list[int] | None = None) -> CohortData:
    random = torch.Generator().manual_seed(0)
    total = sum(SIZES)
    ends = np.cumsum(SIZES)
    own = [np.arange(end - size, end) for size, end in zip(SIZES, ends, strict=True)]
    inputs, targets = torch.randn(total, 4, 1, generator=random), torch.randn(total, 2, generator=random)
    chosen = list(range(len(SIZES))) if rows is None else rows
    split = ExampleSplit(inputs, targets, row_table([own[row] for row in chosen]))
    scale = torch.ones(len(chosen))
    return CohortData(tuple(f"c{row}" for row in chosen), TASK, {"train": split, "test": split}, scale * 0, scale)


def cohort(keys: dict[str, object], rows: list[int] | None = None) -> Cohort:
    settings = TrainSettings(batch_size=4, learning_rate=0.1, **keys)
    name = "rnn" if keys.get("compile") else "mlp"
    return Cohort(build({"name": name, **({"hidden": [3]} if name == "mlp" else {})}, TASK), data(rows), settings, 0)


def starts(model_of: Cohort) -> torch.Tensor:
    return torch.stack([model_of.model.initial(torch.Generator().manual_seed(row)) for row in range(len(SIZES))])


@pytest.mark.parametrize("keys", CASES, ids=str)
def test_they_keep_their_start_and_change_nobody_else(keys: dict[str, object]) -> None:
    whole = cohort(keys)
    start = starts(whole)
    first = whole.train(start, 1)
    got = whole.train(start, 2, optimizer_state=first.optimizer_state or None)
    for result in (first, got):
        assert torch.equal(result.parameters[~WITH], start[~WITH])
        assert result.loss.isnan().tolist() == (~WITH).tolist()
        assert (result.steps > 0).tolist() == WITH.tolist()
        assert all(bool((value[~WITH] == 0).all()) for value in result.optimizer_state.values())
    members = WITH.nonzero().flatten().tolist()
    alone = cohort(keys, members)
    before = alone.train(start[WITH], 1)
    wanted = alone.train(start[WITH], 2, optimizer_state=before.optimizer_state or None)
    torch.testing.assert_close(got.parameters[WITH], wanted.parameters, rtol=1e-5, atol=1e-6)
    assert not torch.equal(got.parameters[WITH], start[WITH])
    for name, value in wanted.optimizer_state.items():
        torch.testing.assert_close(got.optimizer_state[name][WITH], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("keys", CASES, ids=str)
def test_a_cohort_of_nobody_else(keys: dict[str, object]) -> None:
    idle = cohort(keys, [1, 3, 5])
    start = starts(idle)[~WITH]
    got = idle.train(start, 1)
    assert torch.equal(got.parameters, start)
    assert got.loss.isnan().all()
    assert got.steps.tolist() == got.num_examples.tolist() == [0, 0, 0]


def test_what_they_measure_on_a_split_without_examples_is_not_a_number() -> None:
    whole = cohort(CASES[0])
    metrics = whole.evaluate(starts(whole), "train")
    assert metrics["mae"].isnan().tolist() == (~WITH).tolist()


def test_pooled_clients_train_on_every_example_and_a_whole_cohort_of_them_alike() -> None:
    pooled = PooledSplit.of(data().splits["train"])
    everybody = replace(data(), names=("everybody",), splits={"train": pooled}, mean=torch.zeros(1), std=torch.ones(1))
    whole = cohort(CASES[0])
    got = Cohort(whole.model, everybody, whole.settings, 0).train(starts(whole)[:1], 1)
    assert got.steps.tolist() == [2 * 4]
    assert got.num_examples.tolist() == [16]
