"""How well models of others do on a client's own examples: the losses by which a client can choose among them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedgraph.data import SplitName
from fedgraph.training.cohort import Cohort


def cross_losses(cohort: Cohort, candidates: Tensor, clients: Tensor, split: SplitName = "train") -> Tensor:
    """Loss of every candidate on the own examples of each of ``clients``, float64 ``[clients, candidates]``.

    Cross-entropy for classification, else the mean absolute error. ``candidates`` are models
    ``[candidates, parameters]``, ``clients`` rows of the cohort. All candidates of a client are computed together. NaN
    without valid targets.
    """
    data = cohort.data
    metric = "loss" if data.task.kind == "classification" else "mae"
    names = tuple(str(number) for number in range(len(candidates)))
    losses = torch.empty(len(clients), len(candidates), dtype=torch.float64)
    # Client by client: all pairs at once would take as many copies of the candidates as there are clients.
    for position, client in enumerate(clients.tolist()):
        rows = torch.full((len(candidates),), client)
        own = replace(
            data,
            names=names,
            splits={split: data.splits[split].select(rows)},
            mean=data.mean[rows],
            std=data.std[rows],
            label_counts=None,
            groups=None,
            untrained=(),
            moments=None,
        )
        losses[position] = Cohort(cohort.model, own, cohort.settings, cohort.seed).evaluate(candidates, split)[metric]
    return losses
