"""The average of graphical models of one network: what distillation is compared with.

Section 2.3 of Chajewska, Shrivastava: Federated Learning with Neural Graphical Models goes another way, as hidden units
of models that were not started alike do not stand for the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgraph.graphical.network.network import CONSTANT, Network
from fedgraph.graphical.network.rescaling import rescaled
from fedgraph.support.errors import DataError


def average(network: Network, parameters: Tensor, num_examples: Sequence[int]) -> Tensor:
    """The mean of models ``[clients, parameters]``, weighted by the rows they were trained on; ``[1, parameters]``.

    Means and deviations are those of all rows together, where clients miss equally many of them, and all models are
    first brought to this scaling, without a change of what they say. Residuals are averaged as they are: how far off
    the new model is, only rows can tell.

    Raises DataError unless there are as many numbers of rows as models, none negative and not all 0, and for a model of
    which a deviation is not positive.
    """
    weights = torch.tensor(num_examples, dtype=torch.float64)
    if len(weights) != len(parameters) or bool((weights < 0).any()) or not float(weights.sum()) > 0:
        raise DataError(f"{len(parameters)} models cannot be averaged with the weights {', '.join(map(str, weights))}")
    positive = (network.state(parameters)["deviation"] > 0).all(1)
    if not bool(positive.all()):
        raise DataError(f"the deviations of model {int((~positive).nonzero()[0])} are not all positive")
    weights = (weights / weights.sum())[:, None]
    mean, deviation = pooled_moments(network, parameters, weights)
    scaled = rescaled(network, parameters, mean, deviation)
    return (weights * scaled.double()).sum(0, keepdim=True).float()


def pooled_moments(network: Network, parameters: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of all clients' rows, ``[units]`` each, from those of each client and its share ``[clients,
    1]``: variances within clients, and between their means."""
    state = network.state(parameters)
    means, deviations = state["mean"].double(), state["deviation"].double()
    mean = (weights * means).sum(0)
    # A deviation of exactly 1 stands for a number that does not vary.
    within = torch.where(deviations == 1, 0.0, deviations.square())
    deviation = (weights * (within + (means - mean).square())).sum(0).sqrt()
    varies = network.heads.is_number & (deviation > CONSTANT)
    return mean.float(), torch.where(varies, deviation, 1.0).float()
