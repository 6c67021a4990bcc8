"""Metrics of a classification in which one class is looked for, such as a rare event."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph.models import TaskSpec
from fedgraph.support.probability_scores import ranking_scores
from fedgraph.training.metrics import ClassificationTally


class PositiveClassTally(ClassificationTally):
    """``auc``, ``aupr``, ``ece``, ``macro-precision`` and ``macro-recall`` beside the metrics of any classification.

    The first three are of the probability of the positive class of the task. Precision and recall are means over all
    classes; the precision of a class that is never predicted is 0, and so is the recall of one that never occurs.
    """

    def __init__(self, task: TaskSpec) -> None:
        super().__init__(task)
        self.ranked: list[Tensor] = []

    def add(self, outputs: Tensor, targets: Tensor, weights: Tensor, present: Tensor | None = None) -> None:
        """See :class:`fedgraph.training.metrics.Tally`; ``outputs`` are logits ``[clients, batch, classes]``."""
        super().add(outputs, targets, weights, present)
        assert self.task.positive is not None
        chances = outputs.double().softmax(-1)[..., self.task.positive]
        self.ranked.append(torch.stack([chances, (targets == self.task.positive).double(), weights.double()]).cpu())

    def result(self) -> dict[str, Tensor]:
        """See :class:`fedgraph.training.metrics.Tally`."""
        found, predicted, there = torch.as_tensor(self.counts)
        nothing = there.sum(1) == 0
        averages = {
            f"macro-{name}": (found / of.clamp(min=1)).mean(1).masked_fill(nothing, math.nan)
            for name, of in (("precision", predicted), ("recall", there))
        }
        scores = [ranking_scores(*_counted(client)) for client in torch.cat(self.ranked, 2).unbind(1)]
        ranked = {name: torch.tensor([one[name] for one in scores], dtype=torch.float64) for name in scores[0]}
        return super().result() | averages | ranked


def _counted(client: Tensor) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return chances and classes of the examples of one client that count."""
    chances, positive, weights = client.numpy()
    return chances[weights > 0], positive[weights > 0] > 0
