"""Fairness: correlation of the clients' results in the federation with those of stand-alone training.

Gorbett, Shirazi, Ray: Cross-Silo Federated Learning Across Divergent Domains with Iterative Parameter Alignment (IEEE
Big Data 2023), section IV.D, table II and Fig. 4.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedgraph.experiment import Experiment, FairnessTable
from fedgraph.runs.callbacks import Callback, Evaluation, measured
from fedgraph.runs.folder import RunFolder
from fedgraph.support.errors import ExperimentError, RunError

log = logging.getLogger("fedgraph")

_ROUNDING = 1e-6
"""Relative difference up to which values of float32 models count as equal."""


def fairness(stand_alone: Mapping[str, float | None], federated: Mapping[str, float | None]) -> float:
    """Compute fairness, ``100 rho(stand_alone, federated)``, with Pearson's correlation rho over clients.

    Parameters
    ----------
    stand_alone, federated : mapping of str to float or None
        Values of the same metric by client. Clients without a finite value in either are ignored.

    Returns
    -------
    float
        In [-100, 100]; NaN for fewer than two clients, or when all clients have the same value.
    """
    names = [name for name in stand_alone if name in federated]
    values = np.array([[values[name] for name in names] for values in (stand_alone, federated)], dtype=np.float64)
    values = values[:, np.isfinite(values).all(axis=0)]
    largest = np.abs(values).max(axis=1, keepdims=True, initial=0.0)
    if values.shape[1] < 2 or not largest.all():
        return math.nan
    values = values / largest
    if (np.ptp(values, axis=1) <= _ROUNDING).any():
        return math.nan
    values -= values.mean(axis=1, keepdims=True)
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    return float(np.clip(100 * (values[0] @ values[1]), -100, 100))


def stand_alone_values(table: FairnessTable, experiment: Experiment, names: Sequence[str]) -> dict[str, float | None]:
    """Read the final value of each client of ``experiment`` in the stand-alone run of ``[fairness]``.

    Raises
    ------
    ExperimentError
        When the run is missing or not finished, had other data or clients, or has not measured the metric.
    """
    where = "[fairness] stand-alone"
    try:
        folder = RunFolder.open(Path(table.stand_alone).expanduser())
        summary = folder.summary()
    except RunError as error:
        raise ExperimentError(f"{where}: {error}") from None
    folder.check_same_data(experiment.data, where)
    split, _, metric = table.metric.partition("/")
    per_client: dict[str, dict[str, dict[str, float | None]]] = summary["per_client"]
    if metric not in per_client.get(split, {}):
        known = ", ".join(f"{part}/{name}" for part, metrics in per_client.items() for name in metrics)
        raise ExperimentError(
            f"{where}: {folder.path} has not measured '{table.metric}'; measured: {known or 'nothing'}"
        )
    values = per_client[split][metric]
    others = sorted(set(names) ^ set(values))
    if others:
        raise ExperimentError(
            f"{where}: {folder.path} has other clients; in only one of the two runs: {', '.join(others[:5])}"
            + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        )
    return values


class Fairness(Callback):
    """Callback that records the fairness of a run, and ends the run when fairness falls below a threshold.

    The paper stops early too, but does not give its criterion.

    Parameters
    ----------
    metric : str
        ``<split>/<metric>``.
    stand_alone : mapping of str to float or None
        Its value by client in stand-alone training.
    stop_below : float, optional
        Threshold: the run ends when fairness falls below it after having reached it, with the models of the last
        evaluation that reached it. By default the run is not ended.
    write : callable, optional
        Called with a line for ``metrics.jsonl`` after each evaluation.

    Attributes
    ----------
    last : float or None
        Fairness of the last evaluation; None if undefined.
    best, best_round : float or None, int or None
        Largest fairness so far, and its round.
    """

    kept = ("last", "best", "best_round", "_fair_round", "_fell", "_fair_models")

    def __init__(
        self,
        metric: str,
        stand_alone: Mapping[str, float | None],
        stop_below: float | None = None,
        write: Callable[[Mapping[str, Any]], None] = lambda line: None,
    ) -> None:
        self.metric = metric
        self.stop_below = stop_below
        self._stand_alone = stand_alone
        self._write = write
        self.last: float | None = None
        self.best: float | None = None
        self.best_round: int | None = None
        self._fair_models: Tensor | None = None
        self._fair_round = 0
        self._fell = False

    @property
    def stopped(self) -> bool:
        """Whether fairness has fallen below the threshold."""
        return self._fell

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        """Compute and write fairness, and return whether it ends the run.

        Evaluations with an undefined correlation, such as those of equal models, are not compared with ``stop_below``.
        """
        values = measured(evaluation, self.metric, "[fairness] metric")
        if values is None:
            return self.stopped
        correlation = fairness(self._stand_alone, dict(zip(evaluation.names, values.tolist(), strict=True)))
        self.last = None if math.isnan(correlation) else correlation
        split, _, metric = self.metric.partition("/")
        restored = {"restored": True} if evaluation.restored else {}
        self._write({"round": evaluation.round, "phase": "fairness", "split": split, "metric": metric,
                     "fairness": self.last, **restored})  # fmt: skip
        # A run killed after it had stopped is evaluated once more; untrained models do not count as fair.
        if self.last is None or evaluation.restored or self.stopped or evaluation.round == 0:
            return self.stopped
        log.info("after round %d: fairness %.1f", evaluation.round, self.last)
        if self.best is None or self.last > self.best:
            self.best, self.best_round = self.last, evaluation.round
        if self.stop_below is not None:
            if self.last >= self.stop_below:
                self._fair_models, self._fair_round = evaluation.models.clone(), evaluation.round
            else:
                self._fell = self._fair_models is not None
        return self.stopped

    def final_models(self) -> Tensor | None:
        """Return the last models at or above the threshold if fairness fell below it, else None."""
        return self._fair_models if self._fell else None

    @property
    def final_round(self) -> int:
        """Round of the last models at or above the threshold."""
        return self._fair_round

    def summary(self) -> dict[str, Any]:
        """Return the fairness of the final models, and the best of all evaluations."""
        best = {"best": self.best, "best_round": self.best_round}
        return {"fairness": {"metric": self.metric, "last": self.last, **best}}
