"""Cold clients of SFL choose among the models of their neighbourhood by the losses on what little data they have."""

from __future__ import annotations

import torch
from torch import Tensor

from clients.base import evaluate_splits
from clients.sfl import SFLClient
from fedgraph.cohort import Cohort
from fedgraph.cross_evaluation import cross_losses


class SFLColdStartClient(SFLClient):
    """Measures cold clients with the mean of the candidates weighed by graph and loss; trains the read-out, as SFL."""

    def evaluate(self) -> dict[str, Tensor]:
        """Metrics of the models; those of clients that choose are made here."""
        models = self.models
        if "candidates" in self.request.shared:
            models = self.with_chosen(models)
        return evaluate_splits(self.assignment, self.cohort, models, self.request.evaluate)

    def with_chosen(self, models: Tensor) -> Tensor:
        """``models`` with row i of every client that chooses replaced by its choice.

        That is ``sum_j g_ij exp(-(l_ij / min_k l_ik - 1) / temperature) Theta_j`` over its weights: l_ij is the loss of
        candidate j on client i's own training examples, g_ij what the server's ``prior`` says, where the rows of
        clients that do not choose are zero.
        """
        candidates, prior = self.request.shared["candidates"], self.request.stacked["prior"]
        rows = prior.any(dim=1).nonzero().flatten()
        if not len(rows):  # they were absent from the last round
            return models
        names = tuple(self.request.clients[row] for row in rows.tolist())
        cohort = self.node.cohort(self.request.experiment, names)
        assert isinstance(cohort, Cohort)  # methods that mix models refuse experiments with several architectures
        weights = choice(prior[rows], cross_losses(cohort, candidates), self.settings["temperature"])
        return models.index_copy(0, rows, weights.to(candidates) @ candidates)


def choice(prior: Tensor, losses: Tensor, temperature: float) -> Tensor:
    """Weights ``[clients, candidates]`` from graph weights and losses of that shape; rows sum to one.

    Candidates that could not be measured do not count; where none could, the graph alone decides.
    """
    best = losses.nan_to_num(torch.inf).amin(dim=1, keepdim=True)
    worse = torch.where(best > 0, losses / best, losses + 1) - 1
    factor = torch.exp(-worse / temperature).nan_to_num(0.0)
    weights = prior.double() * torch.where(best.isfinite(), factor, 1.0)
    weights = torch.where(weights.sum(dim=1, keepdim=True) > 0, weights, prior.double())
    return weights / weights.sum(dim=1, keepdim=True)
