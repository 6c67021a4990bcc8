"""Training losses: one value per target, and their masked mean per client."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from fedgraph.models import TaskSpec


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none").view_as(targets)


def _mae(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs()


def _mse(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square()


def _huber(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.huber_loss(outputs, targets, reduction="none")


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": _cross_entropy,
    "mae": _mae,
    "mse": _mse,
    "huber": _huber,
}
DEFAULT_LOSS = {"classification": "cross-entropy", "forecast": "mae", "regression": "mse"}


def loss_name(loss: str, task: TaskSpec) -> str:
    """The key of ``LOSSES`` that ``loss`` is, or that ``auto`` stands for in this task."""
    return DEFAULT_LOSS[task.kind] if loss == "auto" else loss


def loss_sums(loss: str, task: TaskSpec, outputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """``sum(weights * loss)`` and ``sum(weights)`` of each client, ``[clients]`` each.

    ``loss`` is a key of ``LOSSES`` or ``auto``; shapes are those of :class:`fedgraph.data.base.Batch`. Targets of
    weight 0 may hold anything, NaN included.
    """
    losses = LOSSES[loss_name(loss, task)](outputs, targets.masked_fill(weights == 0, 0))
    return (weights * losses).flatten(1).sum(1), weights.flatten(1).sum(1)


def masked_mean(sums: Tensor, weights: Tensor) -> Tensor:
    """``sums / weights``, and 0 where a client has no weight at all."""
    return sums / weights.masked_fill(weights == 0, 1)
