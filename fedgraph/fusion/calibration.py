"""Calibration of the probabilities of a fusion network on validation samples.

Early stopping by the area under the ROC curve yields a network that ranks samples well but may be poorly calibrated, so
that 0.5 is not a good threshold. The logits get a common factor and an offset per class: Platt's scaling
for two classes, temperature scaling with a bias for more (Platt 1999; Guo et al., ICML 2017; Alexandari et al., ICML
2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from fedgraph.fusion.network import FusionNetwork
from fedgraph.fusion.prediction import Average, averaged, compute_logits
from fedgraph.fusion.scores import decided

_FACTORS = (-10.0, 3.0)
"""Bounds of the logarithm of the factor, which is unbounded for perfectly classified samples."""
_LARGEST_OFFSET = 20.0
_SMALLEST = 1e-12


@dataclass(frozen=True)
class Calibration:
    """The factor of the logits, and the offsets ``[classes]`` added afterwards; that of the first class is 0."""

    factor: float
    offset: tuple[float, ...]

    def facts(self) -> dict[str, Any]:
        """Return both for a summary."""
        return {"factor": self.factor, "offset": list(self.offset)}


def calibrate(
    network: FusionNetwork, validation: tuple[Tensor, Tensor, Tensor], draws: int, seed: int, average: Average
) -> Calibration:
    """Minimise the loss of validation samples over factor and offsets, and fold both into the network's last layer.

    Returns both as found.

    Parameters
    ----------
    network : the fitted network, which is changed.
    validation : embeddings, presence and labels, as for :func:`fedgraph.fusion.predict`; the last are int64
        ``[samples]``.
    """
    from scipy.optimize import minimize  # takes a tenth of a second

    embeddings, present, labels = validation
    logits = compute_logits(network, embeddings, present, draws, seed).double()
    labels = labels.cpu()

    def loss(values: Tensor) -> Tensor:
        probabilities = averaged(_applied(logits, values), average).probabilities
        return nll_loss(probabilities.clamp(min=_SMALLEST).log(), labels)

    def with_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
        values = torch.from_numpy(flat).requires_grad_()
        found = loss(values)
        (gradient,) = torch.autograd.grad(found, values)
        return float(found.detach()), gradient.numpy()

    classes = logits.shape[2]
    bounds = [_FACTORS] + [(-_LARGEST_OFFSET, _LARGEST_OFFSET)] * (classes - 1)
    start = np.zeros(classes)
    best = minimize(with_gradient, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    found = Calibration(float(np.exp(best[0])), (0.0, *best[1:].tolist()))
    network.rescale(found.factor, torch.tensor(found.offset))
    return found


def _applied(logits: Tensor, values: Tensor) -> Tensor:
    """Apply the logarithm of the factor and the offsets of all classes but the first, ``[classes]`` together."""
    return logits * values[0].exp() + torch.cat([values.new_zeros(1), values[1:]])


def better_threshold(probabilities: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the accuracy of two-class predictions at the threshold 0.5 and at the best threshold."""
    right = (decided(probabilities) == labels).double().mean()
    order = probabilities[:, 1].argsort()
    ones = labels[order].double()
    # A threshold after the first n samples predicts these as class 0, all others as class 1.
    zeros_before = torch.cat([ones.new_zeros(1), (1 - ones).cumsum(0)])
    ones_after = ones.sum() - torch.cat([ones.new_zeros(1), ones.cumsum(0)])
    return float(right), float((zeros_before + ones_after).max() / len(labels))
