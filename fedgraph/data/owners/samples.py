"""Owners: clients with different features of the same samples, matched by key (F3, section 2).

Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedgraph.data.base import SPLITS, CohortData
from fedgraph.data.examples import ExampleSplit, row_table
from fedgraph.data.owners.preparation import Preparation
from fedgraph.models import TaskSpec
from fedgraph.support.errors import DataError
from fedgraph.support.randomness import generator

SampleSplit = Literal["train", "validation", "test", "new"]
SAMPLE_SPLITS: tuple[SampleSplit, ...] = ("train", "validation", "test", "new")
"""The splits of samples; ``new`` samples have no label."""

NO_LABEL = -1
"""The label of a new sample."""


@dataclass(frozen=True)
class OwnerData:
    """Data of the owners hosted by one node, about the samples that all owners of a federation share.

    Attributes
    ----------
    owners : tuple of str
        Names.
    keys : tuple of str
        Every sample that at least one of these owners has, sorted and distinct.
    split : Tensor
        int8 ``[samples]``, index into ``SAMPLE_SPLITS``.
    labels : Tensor
        int64 ``[samples]``, ``NO_LABEL`` for new samples.
    inputs : tuple of Tensor
        For each owner float32 ``[samples, *input_shape]``, ready to train on; 0 where the owner lacks the sample.
    present : Tensor
        bool ``[owners, samples]``, whether an owner has a sample.
    shared : Tensor
        bool ``[samples]``, the samples that owners may share; others are only for their own models.
    tasks : tuple of TaskSpec
        For each owner: classification into the same classes, from inputs of its own ``input_shape``.
    preparations : tuple of Preparation
        For each owner, how its inputs were made.
    unscaled : tuple of str
        Owners without training samples by which their features should have been scaled.
    """

    owners: tuple[str, ...]
    keys: tuple[str, ...]
    split: Tensor
    labels: Tensor
    inputs: tuple[Tensor, ...]
    present: Tensor
    shared: Tensor
    tasks: tuple[TaskSpec, ...]
    preparations: tuple[Preparation, ...]
    unscaled: tuple[str, ...] = ()


def cohort_data(data: OwnerData, untrained: Collection[str] = ()) -> CohortData:
    """Convert owners to the clients of a cohort, for methods with one model architecture for all of them.

    Features have no names, as they differ between owners. New samples are left out.
    Returns a CohortData with unscaled targets; its inputs are one tensor for all clients. Raises DataError when the
    inputs of two owners have different shapes, or another owner has no training samples.

    Parameters
    ----------
    data : OwnerData
        Owners whose inputs have one shape.
    untrained : collection of str
        Owners that may lack training samples because their models are already trained.
    """
    first = data.tasks[0]
    for owner, task in zip(data.owners, data.tasks, strict=True):
        if task.input_shape != first.input_shape:
            raise DataError(
                f"client '{data.owners[0]}' has inputs of the shape {first.input_shape}, and client '{owner}' of the "
                f"shape {task.input_shape}: only methods that keep a model of its own at each owner, such as f3, can "
                f"use clients whose features differ in shape"
            )
    storage = torch.stack(data.inputs).flatten(0, 1)
    targets = data.labels.repeat(len(data.owners))
    training = data.present & (data.split == SAMPLE_SPLITS.index("train"))
    lacking = [owner for owner, present in zip(data.owners, training.any(1).tolist(), strict=True) if not present]
    for owner in lacking:
        if owner not in untrained:
            raise DataError(
                f"client '{owner}' has no training sample: check shares, new-share and lacking-share, or leave the "
                f"client out by without"
            )
    # One tensor for all clients, [clients * samples, ...]: the rows of a client are its samples, moved by its offset.
    offsets = np.arange(len(data.owners)) * len(data.keys)
    splits = {}
    for place, kind in enumerate(SPLITS):
        own = (data.present & (data.split == place)).numpy()
        rows = [np.flatnonzero(mine) + offset for mine, offset in zip(own, offsets, strict=True)]
        splits[kind] = ExampleSplit(storage, targets, row_table(rows))
    classes = torch.nn.functional.one_hot(data.labels.clamp(min=0), first.output_shape[0]).double()
    return CohortData(
        names=data.owners,
        task=replace(first, features=()),
        splits=splits,
        mean=torch.zeros(len(data.owners)),
        std=torch.ones(len(data.owners)),
        label_counts=(training.double() @ classes).long(),
        untrained=tuple(lacking),
    )


def held_out(labels: Tensor, fraction: float, seed: int) -> Tensor:
    """Split samples into training and validation, stratified by class; a class keeps at least one training sample.

    Index into ``SAMPLE_SPLITS``, ``[samples]``. Raises ValueError when the fraction is not between 0 and 1, and for too
    few samples.

    Parameters
    ----------
    labels : Tensor
        int64 ``[samples]``.
    fraction : float
        Share of the validation samples.
    seed : int
        Seed of the choice.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"validation_fraction is above 0 and below 1; got {fraction}")
    number = len(labels)
    order = torch.randperm(number, generator=generator(seed, "validation samples"))
    sorted_labels, rows = labels[order].sort(stable=True)
    rows = order[rows]
    counts = torch.bincount(sorted_labels)
    rank = torch.arange(number) - (counts.cumsum(0) - counts)[sorted_labels]
    # Ties between classes are broken class by class.
    ahead = torch.where(rank < counts[sorted_labels] - 1, (rank + 0.5) / counts[sorted_labels], torch.inf)
    wanted = max(1, round(fraction * number))
    chosen = rows[ahead.argsort(stable=True)[: min(wanted, int(ahead.isfinite().sum()))]]
    if not len(chosen):
        raise ValueError(
            f"none of n_samples={number} can be held out for validation, as each is the only one of its class: "
            "use more samples, check that y holds classes, or pass validation samples to fit"
        )
    split = torch.full((number,), SAMPLE_SPLITS.index("train"))
    split[chosen] = SAMPLE_SPLITS.index("validation")
    return split
