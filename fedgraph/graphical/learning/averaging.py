"""The average of graphical models of one network: the baseline of distillation.

Section 2.3 of Chajewska, Shrivastava: Federated Learning with Neural Graphical Models avoids it, as hidden units of
models with different initialisations do not correspond.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgraph.graphical.network.network import CONSTANT, Network
from fedgraph.support.errors import DataError


def average(network: Network, parameters: Tensor, num_examples: Sequence[int]) -> Tensor:
    """Average models, weighted by the number of rows they were trained on.

    All models are first rescaled, without changing their predictions, to the means and deviations of all rows (assuming
    equally many missing values). Residuals are averaged too, as the errors of the new model can only be measured on
    rows. Returns ``[1, parameters]``. Raises DataError unless there are as many
    numbers of rows as models, none negative and not all 0, and all deviations of the models are positive.

    Parameters
    ----------
    network : Network
        Network of all models.
    parameters : Tensor
        ``[clients, parameters]``.
    num_examples : sequence of int
        Training rows of each model.
    """
    weights = torch.tensor(num_examples, dtype=torch.float64)
    if len(weights) != len(parameters) or bool((weights < 0).any()) or not float(weights.sum()) > 0:
        raise DataError(f"{len(parameters)} models cannot be averaged with the weights {', '.join(map(str, weights))}")
    positive = (network.state(parameters)["deviation"] > 0).all(1)
    if not bool(positive.all()):
        raise DataError(f"the deviations of model {int((~positive).nonzero()[0])} are not all positive")
    weights = (weights / weights.sum())[:, None]
    mean, deviation = pooled_moments(network, parameters, weights)
    scaled = network.rescaled(parameters, mean, deviation)
    return (weights * scaled.double()).sum(0, keepdim=True).float()


def pooled_moments(network: Network, parameters: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation ``[units]`` of all clients' rows, with weights of the clients ``[clients, 1]``.

    The variance is that within clients and between their means.
    """
    state = network.state(parameters)
    means, deviations = state["mean"].double(), state["deviation"].double()
    mean = (weights * means).sum(0)
    # A deviation of exactly 1 stands for a number that does not vary.
    within = torch.where(deviations == 1, 0.0, deviations.square())
    deviation = (weights * (within + (means - mean).square())).sum(0).sqrt()
    varies = network.heads.is_number & (deviation > CONSTANT)
    return mean.float(), torch.where(varies, deviation, 1.0).float()
