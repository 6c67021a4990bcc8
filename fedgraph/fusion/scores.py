"""Scores of predicted classes: accuracy, F1, area under the ROC curve, loss.

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
    """Score predictions of classes.

    With two classes F1 is that of the second, predicted where its probability is at least 0.5, and the area is for its
    probability. With more, F1 is the mean over classes, and the area the mean over pairs of classes, of the samples of
    one against those of the other (Hand & Till, 2001). Pairs in which a class has no sample are left out; without any
    pair the area is NaN, as all scores are without samples. Returns ``accuracy``, ``f1``, ``auc`` and ``loss``
    (cross-entropy in nats).

    Parameters
    ----------
    probabilities : Tensor
        ``[samples, classes]``.
    labels : Tensor
        int64 ``[samples]``.
    """
    found = owner_scores(probabilities[:, None], _all_samples(labels), labels)
    return {name: float(values) for name, values in found.items()}


def log_loss(probabilities: Tensor, labels: Tensor, weights: Tensor | None = None) -> float:
    """Compute the cross-entropy of predictions, in nats.

    The mean over samples; NaN where a probability is.

    Parameters
    ----------
    probabilities : Tensor
        ``[samples, classes]``.
    labels : Tensor
        int64 ``[samples]``.
    weights : Tensor, optional
        Weights of the classes, ``[classes]``; None: all the same.
    """
    return float(nll_loss(probabilities.clamp(min=_SMALLEST_PROBABILITY).log(), labels, weights))


def owner_scores(predictions: Tensor, present: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Score each owner's predictions of the samples that it has.

    Returns a dict of str to Tensor as :func:`scores`, float64 ``[owners]`` each; NaN for an owner of whose predictions
    one is not finite.

    Parameters
    ----------
    predictions : Tensor
        ``[samples, owners, classes]``.
    present : Tensor
        bool ``[samples, owners]``.
    labels : Tensor
        int64 ``[samples]``.
    """
    # One thread, so that the sum of losses does not depend on the number of cores.
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
    """Return those of ``owner_scores`` that depend on the predicted class only: ``accuracy`` and ``f1``."""
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
    """Return the predicted class: the most probable, or of two the second where it has at least 0.5.

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
    """Return the area under the ROC curve, over pairs of classes if there are more than two; NaN without any pair."""
    return float(_areas(probabilities[:, None], _all_samples(labels), labels))


def _all_samples(labels: Tensor) -> Tensor:
    return torch.ones(len(labels), 1, dtype=torch.bool)


def _areas(predictions: Tensor, present: Tensor, labels: Tensor) -> Tensor:
    """Return ``area_under_roc`` of each owner's predictions of the samples that it has, float64 ``[owners]``."""
    classes = predictions.shape[2]
    # Of two classes one score is enough: their probabilities have the same order, reversed.
    scored = torch.arange(classes)[1 if classes == 2 else 0 :]
    score = predictions[..., scored].double().permute(1, 2, 0).contiguous()  # [owners, scored, samples]
    of_class = (one_hot(labels, classes)[..., None] * present[:, None]).double()  # [samples, classes, owners]
    own_class = of_class[:, scored].permute(2, 1, 0) > 0
    # Scores of each class's own samples in ascending order, padded with infinity, which is above all scores.
    own = torch.where(own_class, score, torch.inf).sort(dim=2).values.contiguous()
    below, upto = (torch.searchsorted(own, score, right=right) for right in (False, True))
    count = of_class.sum(0).T  # [owners, classes]
    # Number of samples of a class with a higher score for it than a given sample; equal ones count as a half.
    above = count[:, scored, None] - (below + upto) / 2
    # A(i|j) of the paper: the share of pairs of a sample of i and one of j in which that of i is above.
    areas = (above @ of_class.permute(2, 0, 1)) / (count[:, scored, None] * count[:, None])
    if classes == 2:
        return areas[:, 0, 0]
    first, second = torch.triu_indices(classes, classes, offset=1)
    return ((areas[:, first, second] + areas[:, second, first]) / 2).nanmean(1)
