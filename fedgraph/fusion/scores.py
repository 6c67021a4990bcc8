"""Classification metrics: accuracy, F1, area under the ROC curve, loss.

Hand, Till: A Simple Generalisation of the Area Under the ROC Curve for Multiple Class Classification Problems (Machine
Learning 45, 2001), eq. 7.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import nll_loss, one_hot

from fedgraph.support.threads import pinned_threads
from fedgraph.training import mean_f1

_SMALLEST_PROBABILITY = 1e-12


def scores(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Compute classification metrics.

    With two classes, F1 and the area are those of the second class, which is predicted from a probability of 0.5. With
    more, F1 is the mean over classes, and the area the mean over pairs of classes (Hand & Till, 2001); pairs with a
    class without samples are skipped. The area is NaN without any pair, and all metrics are NaN without samples.
    Returns ``accuracy``, ``f1``, ``auc`` and ``loss`` (cross-entropy in nats).

    Parameters
    ----------
    probabilities : Tensor
        ``[samples, classes]``.
    labels : Tensor
        int64 ``[samples]``.
    """
    found = owner_scores(probabilities[:, None], _all_samples(labels), labels)
    return {name: float(values) for name, values in found.items()}


def log_loss(probabilities: Tensor, labels: Tensor) -> float:
    """Compute the mean cross-entropy of predictions, in nats; NaN if a probability is.

    Parameters
    ----------
    probabilities : Tensor
        ``[samples, classes]``.
    labels : Tensor
        int64 ``[samples]``.
    """
    return float(nll_loss(probabilities.clamp(min=_SMALLEST_PROBABILITY).log(), labels))


def owner_scores(predictions: Tensor, present: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Compute the metrics of each owner's predictions of its samples.

    Returns those of :func:`scores` as float64 ``[owners]``; NaN for an owner with a non-finite prediction.

    Parameters
    ----------
    predictions : Tensor
        ``[samples, owners, classes]``.
    present : Tensor
        bool ``[samples, owners]``.
    labels : Tensor
        int64 ``[samples]``.
    """
    # One thread: the sum of losses must not depend on the number of cores.
    with pinned_threads(1):
        likelihood = predictions.gather(2, labels[:, None, None].expand(-1, predictions.shape[1], 1))[..., 0].double()
        losses = torch.where(present, -likelihood.clamp(min=_SMALLEST_PROBABILITY).log(), 0.0)
        found = {
            **decision_scores(predictions, present, labels),
            "auc": _areas(predictions, present, labels),
            "loss": losses.sum(0) / present.sum(0),
        }
    broken = (~predictions.isfinite().all(2) & present).any(0)
    return {name: values.masked_fill(broken, torch.nan) for name, values in found.items()}


def decision_scores(predictions: Tensor, present: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return the metrics of ``owner_scores`` that depend only on the predicted class: ``accuracy`` and ``f1``."""
    classes = predictions.shape[2]
    chosen = decided(predictions)
    right = (chosen == labels[:, None]) & present
    of_class = one_hot(labels, classes).double()  # [samples, classes]
    owner = torch.arange(predictions.shape[1]) * classes
    predicted = torch.bincount((chosen + owner)[present], minlength=predictions.shape[1] * classes).view(-1, classes)
    hits, there = right.double().T @ of_class, present.double().T @ of_class
    count, f1 = present.sum(0), mean_f1(hits, there + predicted)
    return {"accuracy": right.sum(0).double() / count, "f1": torch.where(count > 0, f1, torch.nan)}


def decided(probabilities: Tensor) -> Tensor:
    """Return the predicted class: the most probable; of two, the second from a probability of 0.5.

    Returns int64 ``[...]``.

    Parameters
    ----------
    probabilities : Tensor
        ``[..., classes]``.
    """
    if probabilities.shape[-1] == 2:
        return (probabilities[..., 1] >= 0.5).long()
    return probabilities.argmax(-1)


def area_under_roc(probabilities: Tensor, labels: Tensor) -> float:
    """Return the area under the ROC curve, averaged over pairs of more than two classes; NaN without any pair."""
    return float(_areas(probabilities[:, None], _all_samples(labels), labels))


def _all_samples(labels: Tensor) -> Tensor:
    return torch.ones(len(labels), 1, dtype=torch.bool)


def _areas(predictions: Tensor, present: Tensor, labels: Tensor) -> Tensor:
    """Return ``area_under_roc`` of each owner's predictions of its samples, float64 ``[owners]``."""
    classes = predictions.shape[2]
    # One score suffices for two classes, whose probabilities have reverse orders.
    scored = torch.arange(classes)[1 if classes == 2 else 0 :]
    score = predictions[..., scored].double().permute(1, 2, 0).contiguous()  # [owners, scored, samples]
    of_class = (one_hot(labels, classes)[..., None] * present[:, None]).double()  # [samples, classes, owners]
    own_class = of_class[:, scored].permute(2, 1, 0) > 0
    # Scores of each class's samples in ascending order, padded with infinity.
    own = torch.where(own_class, score, torch.inf).sort(dim=2).values.contiguous()
    below, upto = (torch.searchsorted(own, score, right=right) for right in (False, True))
    count = of_class.sum(0).T  # [owners, classes]
    # Number of samples of a class with a higher score for it than a given sample; ties count as a half.
    above = count[:, scored, None] - (below + upto) / 2
    # A(i|j) of the paper: the share of pairs of samples of i and j in which that of i has the higher score.
    areas = (above @ of_class.permute(2, 0, 1)) / (count[:, scored, None] * count[:, None])
    if classes == 2:
        return areas[:, 0, 0]
    first, second = torch.triu_indices(classes, classes, offset=1)
    return ((areas[:, first, second] + areas[:, second, first]) / 2).nanmean(1)
