"""Training losses, and metrics: direction of improvement, and summaries over all clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedgraph.models import TaskSpec
from fedgraph.support.errors import ExperimentError


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
    """Return the key of ``LOSSES`` for ``loss``; ``auto`` depends on the task."""
    return DEFAULT_LOSS[task.kind] if loss == "auto" else loss


def loss_sums(loss: str, task: TaskSpec, outputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``sum(weights * loss)`` and ``sum(weights)`` of each client, ``[clients]`` each.

    ``loss`` is a key of ``LOSSES`` or ``auto``; shapes are those of :class:`fedgraph.data.base.Batch`. Targets with
    weight 0 may have any value, including NaN.
    """
    losses = LOSSES[loss_name(loss, task)](outputs, targets.masked_fill(weights == 0, 0))
    return (weights * losses).flatten(1).sum(1), weights.flatten(1).sum(1)


def masked_mean(sums: Tensor, weights: Tensor) -> Tensor:
    """Return ``sums / weights``, 0 for clients without weight."""
    return sums / weights.masked_fill(weights == 0, 1)


DIRECTION: dict[str, Literal["lower", "higher"]] = {
    "accuracy": "higher",
    "auc": "higher",
    "aupr": "higher",
    "ece": "lower",
    "f1": "higher",
    "loss": "lower",
    "mae": "lower",
    "mape": "lower",
    "mse": "lower",
    "precision": "higher",
    "r2": "higher",
    "recall": "higher",
    "rmse": "lower",
}
"""Direction of improvement, by the last part between dashes of a metric's name that is one of these: ``mae-15min`` is
``mae``, and so is ``weight-mae-local``, the error of a feature as one of several models predicts it.
"""

_SHARES = ("accuracy", "f1", "precision", "recall")
"""Those of ``DIRECTION`` that are usually given in per cent."""

AFTER_TURN, LAST = "-after-turn", "-last"
"""Suffixes of metrics in addition to those of a run's final models: of peers after their last turn (IPA), and of the
last models if the run ends with a mean."""


def direction(metric: str) -> Literal["lower", "higher"]:
    """Return whether lower or higher values of a metric are better. Raises ExperimentError for an unknown metric.

    Parameters
    ----------
    metric : str
        Name of the metric, with or without a split, as in ``test/mae``.
    """
    found = _measure(metric)
    if found is None:
        raise ExperimentError(f"unknown metric '{metric}'; known metrics: {', '.join(sorted(DIRECTION))}")
    return DIRECTION[found]


def is_share(metric: str) -> bool:
    """Return whether a metric is usually given in per cent, as accuracy is."""
    return _measure(metric) in _SHARES


def _measure(metric: str) -> str | None:
    # Names of features come first, and may be those of metrics.
    parts = metric.rpartition("/")[2].split("-")
    return next((part for part in reversed(parts) if part in DIRECTION), None)


EXTREMES = {"best5": "best 5 %", "worst5": "worst 5 %"}
"""Statistics over the best or worst few clients, and their labels; see ``num_extreme``."""


def num_extreme(clients: int) -> int:
    """Return the number of clients in the best or the worst 5 %, at least one."""
    return max(1, clients // 20)


def summarise(values: Tensor | Mapping[str, float], metric: str) -> dict[str, float]:
    """Summarise a metric over clients.

    Clients without a value (NaN) are ignored. Returns ``mean`` and population ``std``, and the means ``best5`` and
    ``worst5`` over the best and worst 5 % of clients (at least one). All are NaN without any value; best and worst are
    NaN for a metric of unknown direction.

    Parameters
    ----------
    values : Tensor or mapping of str to float
        One number per client, ``[clients]`` or by name.
    metric : str
        Name of the metric, which determines whether lower or higher is better.
    """
    every = torch.tensor(list(values.values())) if isinstance(values, Mapping) else values.detach().cpu()
    present = every.double()
    present = present[~present.isnan()]
    if not len(present):
        return dict.fromkeys(("mean", "std", "best5", "worst5"), math.nan)
    best = worst = math.nan
    if _measure(metric):
        few = num_extreme(len(present))
        ranked = present.sort(descending=direction(metric) == "higher").values
        best, worst = ranked[:few].mean().item(), ranked[-few:].mean().item()
    return {"mean": present.mean().item(), "std": present.std(correction=0).item(), "best5": best, "worst5": worst}
