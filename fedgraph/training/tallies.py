"""Metrics of each client, accumulated over batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph.models import TaskSpec
from fedgraph.support.errors import ExperimentError
from fedgraph.support.probability_scores import ranking_scores
from fedgraph.training.metrics import loss_sums

_CALENDAR = (("year", 525_600), ("quarter", 131_040), ("month", 44_640))
_UNITS = (("week", 10_080), ("day", 1_440), ("hour", 60))
"""Units of time and their minutes; those of a calendar have other lengths as well."""

SMALLEST_TARGET = 1e-4
"""Targets below this magnitude, in the task's unit, are ignored in the percentage error."""


class Tally(Protocol):
    """Sums over batches from which metrics are computed, independent of the batch size."""

    def add(self, outputs: Tensor, targets: Tensor, weights: Tensor, present: Tensor | None = None) -> None:
        """Add one batch; shapes as in :class:`fedgraph.data.base.Batch`.

        ``present``, bool ``[clients, batch]``, is False for padding.
        """

    def result(self) -> dict[str, Tensor]:
        """Return each metric, float64 ``[clients]``.

        All are NaN for clients without any valid target, and for those whose model returns NaN or infinite values for
        any example.
        """


class _Broken:
    """Clients whose models have non-finite outputs."""

    def __init__(self) -> None:
        self.clients: Tensor | bool = False

    def without(self, outputs: Tensor, present: Tensor | None) -> Tensor:
        """Record the clients, and return outputs ``[clients, batch, ...]`` with 0 for padding."""
        if present is not None:
            outputs = outputs.masked_fill(~present.reshape(*present.shape, *[1] * (outputs.dim() - 2)), 0)
        self.clients = self.clients | ~outputs.isfinite().flatten(1).all(1)
        return outputs

    def left_out(self, metrics: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return metrics ``[clients]`` with NaN for these clients."""
        return {name: values.masked_fill(torch.as_tensor(self.clients), math.nan) for name, values in metrics.items()}


class ClassificationTally:
    """``accuracy``, ``loss`` (cross-entropy) and ``f1``; with ``unseen`` also ``accuracy-unseen``.

    With two classes ``f1`` is that of class 1, and 0 where class 1 occurs neither in the targets nor in the
    predictions; with more it is the mean over those classes that occur in the client's targets or predictions.
    """

    def __init__(self, task: TaskSpec, unseen: Tensor | None = None, least_unseen: int = 1) -> None:
        self.task, self.unseen, self.least_unseen = task, unseen, least_unseen
        self.sums: Tensor | float = 0.0
        self.counts: Tensor | float = 0.0
        self._broken = _Broken()

    def add(self, outputs: Tensor, targets: Tensor, weights: Tensor, present: Tensor | None = None) -> None:
        """See :class:`Tally`; ``outputs`` are logits ``[clients, batch, classes]``."""
        outputs, weights = self._broken.without(outputs, present), weights.double()
        targets = targets.masked_fill(weights == 0, 0)
        loss, count = loss_sums("cross-entropy", self.task, outputs.double(), targets, weights)
        predicted = outputs.argmax(-1)
        right = weights * (predicted == targets)
        self.sums = self.sums + torch.stack([right.flatten(1).sum(1), loss, count])
        # Per class: true positives, predicted, present. [3, clients, classes]
        none = outputs.new_zeros(len(outputs), outputs.shape[-1], dtype=torch.float64)
        of_class = [(targets, right), (predicted, weights), (targets, weights)]
        self.counts = self.counts + torch.stack([none.scatter_add(1, which, much) for which, much in of_class])

    def result(self) -> dict[str, Tensor]:
        """See :class:`Tally`."""
        correct, loss, count = torch.as_tensor(self.sums)
        found, predicted, present = torch.as_tensor(self.counts)
        f1 = mean_f1(found, predicted + present)
        metrics = {"accuracy": correct / count, "loss": loss / count, "f1": f1.where(count > 0, math.nan)}
        if self.unseen is not None:
            number = (present * self.unseen).sum(1)
            accuracy = (found * self.unseen).sum(1) / number
            metrics["accuracy-unseen"] = accuracy.where(number >= self.least_unseen, math.nan)
        return self._broken.left_out(metrics)


class PositiveClassTally(ClassificationTally):
    """Adds ``auc``, ``aupr``, ``ece``, ``macro-precision`` and ``macro-recall`` to the metrics of classification.

    The first three are of the probability of the positive class of the task. Precision and recall are means over all
    classes; the precision of a class that is never predicted is 0, and so is the recall of one that never occurs.
    """

    def __init__(self, task: TaskSpec, unseen: Tensor | None = None, least_unseen: int = 1) -> None:
        super().__init__(task, unseen, least_unseen)
        self.ranked: list[Tensor] = []

    def add(self, outputs: Tensor, targets: Tensor, weights: Tensor, present: Tensor | None = None) -> None:
        """See :class:`Tally`; ``outputs`` are logits ``[clients, batch, classes]``."""
        super().add(outputs, targets, weights, present)
        assert self.task.positive is not None
        chances = outputs.double().softmax(-1)[..., self.task.positive]
        self.ranked.append(torch.stack([chances, (targets == self.task.positive).double(), weights.double()]).cpu())

    def result(self) -> dict[str, Tensor]:
        """See :class:`Tally`."""
        found, predicted, present = torch.as_tensor(self.counts)
        nothing = present.sum(1) == 0
        averages = {
            f"macro-{name}": (found / of.clamp(min=1)).mean(1).masked_fill(nothing, math.nan)
            for name, of in (("precision", predicted), ("recall", present))
        }
        scores = [ranking_scores(*_counted(client)) for client in torch.cat(self.ranked, 2).unbind(1)]
        ranked = {name: torch.tensor([one[name] for one in scores], dtype=torch.float64) for name in scores[0]}
        return super().result() | averages | ranked


def mean_f1(found: Tensor, occurring: Tensor) -> Tensor:
    """Return F1 from counts of each class.

    Returns ``[...]``: of two classes that of the second, 0 where it does not occur; of more the mean over those that
    occur.

    Parameters
    ----------
    found : Tensor
        How many of the class were predicted as such, float64 ``[..., classes]``.
    occurring : Tensor
        How many are of the class, and how many were predicted as such, added up, ``[..., classes]``.
    """
    f1 = 2 * found / occurring
    return f1[..., 1].nan_to_num(0.0) if f1.shape[-1] == 2 else f1.nanmean(-1)


class ErrorTally:
    """Masked ``mae`` and ``rmse`` of numbers, for forecasts also ``mape`` in percent, in the task's unit.

    ``mean`` and ``std`` ``[clients]`` undo the scaling of outputs and targets. ``horizons`` are forecast steps, counted
    from 1, at which the metrics are reported separately too: ``mae-15min``, ``mae-3hours``, ``mae-1day`` or
    ``mae-3weeks``, in the largest unit of which a step is a multiple, or ``mae-step3`` where its length is unknown.
    With ``missing_as``, a value in the task's unit, ``mae-unmasked`` and ``rmse-unmasked`` are reported too, in which
    missing targets count as this value. Raises ExperimentError for steps that the task does not have.
    """

    def __init__(
        self,
        task: TaskSpec,
        mean: Tensor,
        std: Tensor,
        horizons: Sequence[int] = (),
        missing_as: float | None = None,
    ) -> None:
        self.task = task
        self.mean, self.std = mean.double(), std.double()
        self.horizons = horizons
        self.filler = None if missing_as is None else (missing_as - self.mean) / self.std
        self.unmasked = None if missing_as is None else ErrorTally(task, mean, std, horizons)
        self.sums: Tensor | float = 0.0
        self._broken = _Broken()
        steps = task.output_shape[-1] if task.kind == "forecast" else 0
        for horizon in horizons:
            if not 1 <= horizon <= steps:
                raise ExperimentError(
                    f"horizon {horizon} cannot be evaluated: "
                    + (f"forecasts have the steps 1 to {steps}" if steps else f"a {task.kind} task has no steps")
                )

    def add(self, outputs: Tensor, targets: Tensor, weights: Tensor, present: Tensor | None = None) -> None:
        """See :class:`Tally`."""
        outputs = self._broken.without(outputs, present)
        if self.unmasked is not None and self.filler is not None:
            filled = torch.where(weights > 0, targets.double(), self.filler[:, None, None])
            counted = torch.ones_like(weights) if present is None else present[..., None].expand_as(weights)
            self.unmasked.add(outputs, filled, counted)
        clients, batch = targets.shape[:2]
        mean, std = self.mean[:, None, None], self.std[:, None, None]
        weights = weights.reshape(clients, batch, -1).double()
        truth = targets.reshape(clients, batch, -1).double().masked_fill(weights == 0, 0) * std + mean
        error = (outputs.reshape(clients, batch, -1).double() * std + mean - truth).abs()
        far_from_zero = weights * (truth.abs() >= SMALLEST_TARGET)
        sums = torch.stack(
            [
                weights * error,
                weights * error.square(),
                weights,
                far_from_zero * error / truth.abs().clamp(min=SMALLEST_TARGET),
                far_from_zero,
            ]
        )
        self.sums = self.sums + sums.sum(2)

    def result(self) -> dict[str, Tensor]:
        """See :class:`Tally`."""
        sums = torch.as_tensor(self.sums)
        results = self._metrics(sums.sum(2), "")
        for horizon in self.horizons:
            results |= self._metrics(sums[..., horizon - 1], f"-{_ahead(horizon, self.task.step_minutes)}")
        if self.unmasked is not None:
            others = self.unmasked.result()
            results |= {f"{name}-unmasked": value for name, value in others.items() if not name.startswith("mape")}
        return self._broken.left_out(results)

    def _metrics(self, sums: Tensor, suffix: str) -> dict[str, Tensor]:
        absolute, squared, count, relative, relative_count = sums
        results = {f"mae{suffix}": absolute / count, f"rmse{suffix}": (squared / count).sqrt()}
        if self.task.kind == "forecast":
            results[f"mape{suffix}"] = 100 * relative / relative_count
        return results


def _ahead(steps: int, step_minutes: float) -> str:
    """How far ahead a forecast is, as ``15min`` or ``3weeks``.

    Steps that are a minute or more, and whole minutes but for seconds of jitter, count as these minutes.
    """
    if abs(step_minutes - round(step_minutes)) <= step_minutes / 100:
        step_minutes = round(step_minutes)
    if not step_minutes:
        return f"step{steps}"
    calendar = [(unit, minutes) for unit, minutes in _CALENDAR if step_minutes == minutes]
    for unit, minutes in (*calendar, *_UNITS):
        if step_minutes % minutes == 0:
            number = round(steps * step_minutes / minutes)
            return f"{number}{unit}{'s' if number > 1 else ''}"
    return f"{steps * step_minutes:g}min"


def tally(
    task: TaskSpec,
    mean: Tensor,
    std: Tensor,
    horizons: Sequence[int] = (),
    missing_as: float | None = None,
    unseen: Tensor | None = None,
    least_unseen: int = 1,
) -> Tally:
    """Return an empty tally of the metrics of ``task`` for clients whose scaling is ``mean`` and ``std``.

    ``unseen``, bool ``[clients, classes]``, are classes whose examples also count by themselves, if a client has
    ``least_unseen`` of them.
    """
    if task.positive is not None and not horizons:
        return PositiveClassTally(task, unseen, least_unseen)
    if task.kind == "classification" and not horizons:
        return ClassificationTally(task, unseen, least_unseen)
    return ErrorTally(task, mean, std, horizons, missing_as)


def _counted(client: Tensor) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return chances and classes of the examples of one client that count."""
    chances, positive, weights = client.numpy()
    return chances[weights > 0], positive[weights > 0] > 0
