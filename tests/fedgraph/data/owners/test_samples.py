"""Owners as clients of a cohort, against their rows picked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedgraph.data.owners.preparation import Preparation
from fedgraph.data.owners.samples import SAMPLE_SPLITS, OwnerData, cohort_data, held_out
from fedgraph.models.base import TaskSpec
from fedgraph.support.errors import DataError

SPLIT = [0, 1, 0, 2, 3, 0]
LABELS = [1, 0, 2, 2, -1, 1]
PRESENT = [[1, 1, 1, 0, 1, 1], [0, 1, 1, 1, 1, 1]]


def task(*shape):
    return TaskSpec("classification", shape, (3,), features=("speed",), classes=("a", "b", "c"))


def two_owners():
    return OwnerData(
        owners=("north", "south"),
        keys=tuple("abcdef"),
        split=torch.tensor(SPLIT, dtype=torch.int8),
        labels=torch.tensor(LABELS),
        inputs=tuple(torch.randn(6, 2, 1, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)),
        present=torch.tensor(PRESENT, dtype=torch.bool),
        shared=torch.ones(6, dtype=torch.bool),
        tasks=(task(2, 1), task(2, 1)),
        preparations=(Preparation(("speed",), ("a", "b", "c"), torch.zeros(1), torch.ones(1)),) * 2,
    )


@pytest.mark.parametrize("kind", ["train", "validation", "test"])
def test_each_split_holds_the_samples_that_an_owner_has(kind):
    data = two_owners()
    split = cohort_data(data).splits[kind]
    for owner in range(2):
        mine = [k for k in range(6) if SAMPLE_SPLITS[SPLIT[k]] == kind and PRESENT[owner][k]]
        assert split.num_examples[owner] == len(mine)
        indices = torch.full((2, 6), -1)
        indices[owner, : len(mine)] = torch.arange(len(mine))
        inputs, targets, weights = split.batch(indices)
        assert torch.equal(inputs[owner, : len(mine)], data.inputs[owner][mine])
        assert targets[owner, : len(mine)].tolist() == [LABELS[k] for k in mine]
        assert weights.sum() == len(mine)


def test_what_a_cohort_says_of_itself():
    cohort = cohort_data(two_owners())
    assert cohort.names == ("north", "south")
    assert cohort.label_counts.tolist() == [[0, 2, 1], [0, 1, 1]]
    assert (cohort.mean.tolist(), cohort.std.tolist()) == ([0.0, 0.0], [1.0, 1.0])
    # Owners on other nodes have other features, and all clients of a run have one task.
    assert cohort.task == replace(task(2, 1), features=())


def test_inputs_of_different_shapes_are_refused_with_both_names():
    data = two_owners()
    uneven = replace(data, inputs=(data.inputs[0], torch.zeros(6, 5)), tasks=(task(2, 1), task(5)))
    with pytest.raises(DataError, match=r"'north' .*\(2, 1\).*'south' .*\(5,\)"):
        cohort_data(uneven)


def test_an_owner_without_training_samples_is_named():
    data = two_owners()
    present = data.present.clone()
    present[1, data.split == 0] = False
    with pytest.raises(DataError, match="'south' .*sample"):
        cohort_data(replace(data, present=present))
    cohort = cohort_data(replace(data, present=present), untrained=("north", "south"))
    assert cohort.untrained == ("south",), "north may be without training samples, and is not"
    assert cohort.splits["train"].num_examples.tolist() == [3, 0]


def test_each_class_is_held_out_alike_and_keeps_a_sample():
    labels = torch.tensor([0] * 60 + [1] * 39 + [2])
    split = held_out(labels, 0.1, seed=0)
    assert torch.bincount(labels[split == 1], minlength=3).tolist() == [6, 4, 0]
    assert not torch.equal(split, held_out(labels, 0.1, seed=1))
    assert int((held_out(torch.tensor([0, 0, 1]), 0.01, 0) == 1).sum()) == 1
    with pytest.raises(ValueError, match="n_samples=2 .*held"):
        held_out(torch.tensor([0, 1]), 0.5, 0)
    with pytest.raises(ValueError, match="above 0 and below 1; got 1.0"):
        held_out(labels, 1.0, 0)
