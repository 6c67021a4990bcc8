"""Ensembles of the owners' own predictions, rows B, C and D of F3's Table 2 (Ma, Hoang, Chen; UAI 2023, section 7).

Predictions are probabilities ``[samples, owners, classes]`` with ``present`` ``[samples, owners]``. A sample without
owners gets the same probability for every class.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedgraph.fusion.scores import decided, decision_scores
from fedgraph.support.errors import ExperimentError

_SMALLEST_PROBABILITY = 1e-12


def majority_vote(
    predictions: Tensor, present: Tensor, kind: Literal["share", "sharpened"] = "share", temperature: float = 0.1
) -> Tensor:
    """Row B: compute the share of votes for each class among the owners that have a sample, ``[samples, classes]``.

    kind : a ``sharpened`` vote, as in the released program, is the normalised ``p^(1 / temperature)`` instead of one
           for the most probable class.
    """
    if kind == "sharpened":
        votes = (predictions.clamp(min=_SMALLEST_PROBABILITY).log() / temperature).softmax(-1)
    else:
        votes = _votes(predictions)
    weights = present[..., None].to(votes.dtype)
    number = weights.sum(1)
    return torch.where(number > 0, (votes * weights).sum(1) / number.clamp(min=1), 1 / votes.shape[-1])


def best_threshold(predictions: Tensor, present: Tensor, labels: Tensor) -> float:
    """Row C: find the threshold on the share of votes for the second class with the best F1 on validation samples.

    Candidates are the midpoints of shares that occur; the lowest of equally good ones is returned.

    Raises ExperimentError with more than two classes.
    """
    shares = _second_class_shares(predictions, present)
    occurring = shares.unique()
    candidates = torch.cat([occurring[:1] / 2, (occurring[1:] + occurring[:-1]) / 2])
    chosen = shares >= candidates[:, None]
    hits = (chosen & (labels == 1)).sum(1).double()
    f1 = 2 * hits / (chosen.sum(1) + (labels == 1).sum()).clamp(min=1)
    return float(candidates[f1.argmax()])


def thresholded(predictions: Tensor, present: Tensor, threshold: float) -> Tensor:
    """Row C: return probabilities ``[samples, 2]`` that increase with the share of votes for the second class.

    They are 0.5 at the threshold. Raises ExperimentError with more than two classes.
    """
    shares = _second_class_shares(predictions, present)
    below = shares / (2 * max(threshold, _SMALLEST_PROBABILITY))
    above = 0.5 + (shares - threshold) / (2 * max(1 - threshold, _SMALLEST_PROBABILITY))
    second = torch.where(shares < threshold, below, above)
    return torch.stack([1 - second, second], 1)


def ranked_owners(
    predictions: Tensor, present: Tensor, labels: Tensor, metric: Literal["f1", "accuracy"] = "f1"
) -> Tensor:
    """Row D: rank the owners by their predictions of validation samples: positions int64 ``[owners]``, best first.

    An owner without validation samples is last.
    """
    values = decision_scores(predictions, present, labels)[metric]
    return values.nan_to_num(-1.0).argsort(descending=True, stable=True)


def best_owner(predictions: Tensor, present: Tensor, ranking: Tensor) -> Tensor:
    """Row D: return the prediction of the first owner of the ranking that has a sample, ``[samples, classes]``."""
    there = present[:, ranking]
    first = ranking[there.int().argmax(1)]
    chosen = predictions[torch.arange(len(predictions)), first]
    return torch.where(there.any(1, keepdim=True), chosen, 1 / predictions.shape[-1])


def _votes(predictions: Tensor) -> Tensor:
    classes = predictions.shape[-1]
    return functional.one_hot(decided(predictions), classes).to(predictions.dtype)


def _second_class_shares(predictions: Tensor, present: Tensor) -> Tensor:
    if predictions.shape[-1] != 2:
        raise ExperimentError(
            f"thresholds on the share of votes require two classes; got {predictions.shape[-1]}: use the majority vote"
        )
    return majority_vote(predictions, present)[:, 1]
