"""Cold clients of SFL choose among the models of their neighbours by the losses on their few examples."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from fedgraph.algorithms.sfl_cold_start import SFLColdStartSettings
from fedgraph.clients.sfl import SFLClient
from fedgraph.data import SplitName
from fedgraph.training import Cohort


class SFLColdStartClient(SFLClient[SFLColdStartSettings]):
    """Evaluates cold clients with a mean of candidates weighted by graph and loss; trains the read-out as SFL."""

    keeps: ClassVar[tuple[str, ...]] = (*SFLClient.keeps, "the models that cold clients chose, as evaluated last")

    def evaluated(self) -> Tensor:
        """Return the models received, with row i of every client that chooses replaced by its choice.

        The choice is ``sum_j g_ij exp(-(l_ij / min_k l_ik - 1) / temperature) Theta_j`` divided by the sum of its
        weights: l_ij is the loss of candidate j on client i's training examples, g_ij the server's ``prior``, whose
        rows are zero for clients that do not choose.
        """
        if "candidates" not in self.request.shared:
            return self.models
        candidates, prior = self.request.shared["candidates"], self.request.stacked["prior"]
        rows = prior.any(dim=1).nonzero().flatten()  # empty if they were absent from the last round
        losses = cross_losses(self.cohort, self.completed(candidates), rows)
        weights = choice(prior[rows], losses, self.settings.temperature)
        return self.models.index_copy(0, rows, self.completed(weights.to(candidates) @ candidates))


def choice(prior: Tensor, losses: Tensor, temperature: float) -> Tensor:
    """Compute weights ``[clients, candidates]`` from graph weights and losses of that shape; rows sum to one.

    Candidates without a finite loss are excluded; if no loss is finite, only the graph counts.
    """
    best = losses.nan_to_num(torch.inf).amin(dim=1, keepdim=True)
    worse = torch.where(best > 0, losses / best, losses + 1) - 1
    factor = torch.exp(-worse / temperature).nan_to_num(0.0)
    weights = prior.double() * torch.where(best.isfinite(), factor, 1.0)
    weights = torch.where(weights.sum(dim=1, keepdim=True) > 0, weights, prior.double())
    return weights / weights.sum(dim=1, keepdim=True)


def cross_losses(cohort: Cohort, candidates: Tensor, clients: Tensor, split: SplitName = "train") -> Tensor:
    """Compute the loss of every candidate on the examples of each of ``clients``.

    All candidates of a client are computed together. Returns float64 ``[clients, candidates]``: cross-entropy for
    classification, else the mean absolute error; NaN without valid targets.

    Parameters
    ----------
    candidates : models ``[candidates, parameters]``.
    clients : rows of the cohort, int64 ``[clients]``.
    """
    data = cohort.data
    metric = "loss" if data.task.kind == "classification" else "mae"
    names = tuple(str(number) for number in range(len(candidates)))
    losses = torch.empty(len(clients), len(candidates), dtype=torch.float64)
    # By client: all pairs at once would need a copy of the candidates per client.
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
