from __future__ import annotations

import numpy as np
import pytest
import torch

from fedgraph.data.base import CohortData, Split
from fedgraph.data.examples import ExampleSplit, row_table
from fedgraph.data.pooled import PooledSplit, pooled
from fedgraph.data.series.cohort import build_cohort
from fedgraph.data.series.series_files import SeriesTable
from fedgraph.data.series.windows import WindowSettings
from fedgraph.models import build
from fedgraph.models.base import Batch, TaskSpec
from fedgraph.training.cohort import Cohort
from fedgraph.training.settings import TrainSettings

NAMES = ("a", "b", "c", "d")
ROWS = [np.array([5, 3, 8]), np.array([], dtype=np.int64), np.array([0, 29, 2, 4, 6]), np.array([11])]


def windows(**keys: object) -> CohortData:
    """Four clients, the second without any training example, the last with few."""
    values = np.random.default_rng(0).uniform(1.0, 9.0, (4, 60, 1)).astype(np.float32)
    values[0, 5:9] = np.nan
    table = SeriesTable(NAMES, values, groups=("x", "x", "y", "y"))
    settings = WindowSettings(
        input_steps=4, output_steps=2, cold_clients=("b",), cold_steps=12, cold_trains=False, **keys
    )
    return build_cohort(table, settings, NAMES)


def examples(kind: str = "classification") -> CohortData:
    random = torch.Generator().manual_seed(0)
    targets = torch.arange(30) % 7 if kind == "classification" else torch.randn(30, 1, generator=random)
    split = ExampleSplit(torch.randn(30, 3, generator=random), targets, row_table(ROWS), torch.tensor(2.0))
    task = TaskSpec("classification", (3,), (7,)) if kind == "classification" else TaskSpec("regression", (3,), (1,))
    counts = torch.arange(28).view(4, 7) if kind == "classification" else None
    return CohortData(NAMES, task, {"train": split}, torch.arange(4.0), torch.arange(4.0) + 1, counts)


def one_by_one(split: Split) -> Batch:
    """Every example of every client, asked for alone, client after client, as those of one client."""
    counts = split.num_examples.tolist()
    found = []
    for client, count in enumerate(counts):
        for own in range(count):
            indices = torch.full((len(counts), 1), -1)
            indices[client] = own
            found.append([part[client, 0] for part in split.batch(indices)])
    return Batch(*(torch.stack(parts)[None] for parts in zip(*found, strict=True)))


@pytest.mark.parametrize("make", [windows, examples, lambda: examples("regression")])
def test_every_example_of_every_client_is_there_once_and_in_order(make) -> None:
    data = make()
    whole = pooled(data).splits["train"]
    wanted = one_by_one(data.splits["train"])
    total = int(data.splits["train"].num_examples.sum())
    assert whole.num_examples.tolist() == [total]
    for ours, theirs in zip(whole.batch(torch.arange(total)[None]), wanted, strict=True):
        assert torch.equal(ours, theirs)
        assert ours.dtype == theirs.dtype
    mixed = torch.randint(0, total, (1, 50), generator=torch.Generator().manual_seed(1))
    for ours, theirs in zip(whole.batch(mixed), wanted, strict=True):
        assert torch.equal(ours, theirs[:, mixed[0]])


@pytest.mark.parametrize("make", [windows, examples])
def test_padding_has_no_weight(make) -> None:
    batch = pooled(make()).splits["train"].batch(torch.tensor([[0, -1, 8, -1]]))
    weights = batch.weights.reshape(4, -1).sum(1)
    assert (weights > 0).tolist() == [True, False, True, False]
    assert all(torch.isfinite(part).all() for part in batch)


def test_any_split_can_be_pooled_and_is_the_same_for_each_row_asked_for() -> None:
    split = examples().splits["train"]
    slow, fast = PooledSplit.of(split), pooled(examples()).splits["train"]
    indices = torch.tensor([[8, 0, 3, -1]])
    for ours, theirs in zip(slow.batch(indices), fast.batch(indices), strict=True):
        assert torch.equal(ours, theirs)
    twice = slow.select(torch.tensor([0, 0]))
    assert twice.num_examples.tolist() == [9, 9]
    both = twice.batch(torch.tensor([[8, 0], [4, -1]]))
    assert torch.equal(both.inputs[0], slow.batch(torch.tensor([[8, 0]])).inputs[0])
    assert torch.equal(both.targets[1], slow.batch(torch.tensor([[4, -1]])).targets[0])
    assert slow.select(slice(0, 1)).num_examples.tolist() == [9]
    assert slow.to(torch.device("cpu")).batch(indices).targets.tolist() == slow.batch(indices).targets.tolist()


def test_an_index_beyond_the_last_example_is_refused() -> None:
    split = pooled(windows()).splits["train"]
    with pytest.raises(IndexError, match="example index 111 of 111 examples"):
        split.batch(torch.tensor([[0, 111]]))


def test_no_series_is_copied() -> None:
    data = windows()
    split = pooled(data).splits["train"]
    assert isinstance(split, PooledSplit)
    assert split.split is data.splits["train"]


def test_the_client_everybody() -> None:
    data = pooled(windows())
    assert (data.names, data.mean.tolist(), data.std.tolist()) == (("everybody",), [0.0], [1.0])
    assert (data.groups, data.untrained, data.label_counts) == (None, (), None)
    assert data.task == windows().task
    counts = pooled(examples()).label_counts
    assert counts is not None
    assert counts.tolist() == [(np.arange(28).reshape(4, 7).sum(0)).tolist()]


@pytest.mark.parametrize("make", [windows, examples])
def test_nobody_has_examples(make) -> None:
    data = make()
    empty = data.splits["train"].select(torch.tensor([1]))
    data = CohortData(("b",), data.task, {"train": empty}, data.mean[1:2], data.std[1:2])
    split = pooled(data).splits["train"]
    assert split.num_examples.tolist() == [0]
    assert split.batch(torch.full((1, 3), -1)).weights.sum() == 0


def test_a_model_of_everybody_learns_from_all_clients() -> None:
    """Its gradient is that of all examples of all clients together."""
    data = windows()
    model = build({"name": "mlp", "hidden": [3]}, data.task)
    train = TrainSettings(optimizer="sgd", learning_rate=0.5, batch_size=200, local_steps=1, loss="mse")
    start = model.initial(torch.Generator().manual_seed(0))[None]
    got = Cohort(model, pooled(data), train, 0).train(start, 1)
    every = one_by_one(data.splits["train"])
    parameters = start.clone().requires_grad_()
    outputs, _ = model.forward(model.layout.unflatten(parameters), every.inputs, training=True)
    loss = (every.weights * (outputs - every.targets) ** 2).sum() / every.weights.sum()
    loss.backward()
    assert parameters.grad is not None
    torch.testing.assert_close(got.parameters, (start - 0.5 * parameters.grad), rtol=1e-4, atol=1e-6)
    assert got.num_examples.tolist() == [111]
    assert not torch.equal(got.parameters, start)
