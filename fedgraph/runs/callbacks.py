"""Callbacks of a run: early stopping, averaging, counters, and the base class of displays and recorders."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedgraph.federation import Traffic
from fedgraph.support.errors import ExperimentError, if_any
from fedgraph.support.files import State
from fedgraph.training import LAST, TrainSettings, direction, num_steps, steps_per_epoch


@dataclass(frozen=True)
class Training:
    """Result of one round of training.

    Attributes
    ----------
    round : int
        Number of the round, from 1.
    names : tuple of str
        Clients of the run.
    loss : Tensor
        Mean training loss of each client, ``[clients]``, NaN for absent clients.
    absent : mapping of str to str
        Clients without a usable reply, and why.
    seconds : float
        Wall-clock time of the exchange and the aggregation.
    traffic : Traffic
        Traffic of that exchange.
    models : Tensor or None
        ``[clients, parameters]`` after the round.
    present : Tensor or None
        Which clients have answered, bool ``[clients]``; the others are absent, or were not drawn for the round. None
        for all that are not absent.
    """

    round: int
    names: tuple[str, ...]
    loss: Tensor
    absent: Mapping[str, str]
    seconds: float
    traffic: Traffic = field(default_factory=Traffic)
    models: Tensor | None = None
    present: Tensor | None = None


@dataclass(frozen=True)
class Evaluation:
    """Metrics of every client with the models after ``round`` rounds.

    Attributes
    ----------
    round : int
        Number of rounds that were trained.
    names : tuple of str
        Clients of the run.
    metrics : mapping of str to Tensor
        By ``<split>/<metric>`` the values ``[clients]``, NaN where a client did not answer or has no data for it.
    models : Tensor
        The models that were evaluated, ``[clients, parameters]``. With sequential turns (IPA) these are the models
        after the round, and the metrics of a client are those of its model right after its turn.
    absent : mapping of str to str
        Clients without a usable reply, and why.
    restored : bool
        Whether this is the additional evaluation at the end of a run whose final models are not those evaluated after
        ``round``: the best of the run, the mean of the last ones, or the models after all sequential turns.
    """

    round: int
    names: tuple[str, ...]
    metrics: Mapping[str, Tensor]
    models: Tensor
    absent: Mapping[str, str] = field(default_factory=dict)
    restored: bool = False


class Callback:
    """Base class of callbacks; override the methods of interest.

    Attributes
    ----------
    kept : tuple of str
        Names of the attributes that a resumed run restores: JSON values, tensors or None.
    """

    kept: ClassVar[tuple[str, ...]] = ()

    @property
    def stopped(self) -> bool:
        """Whether this callback has already ended the run."""
        return False

    def on_training(self, training: Training) -> None:
        """Handle a round that was trained and aggregated."""

    def on_epoch(self, phase: str, epoch: int) -> None:
        """Handle an epoch, counted from 1, of a training ``phase`` of a method without rounds."""

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        """Handle an evaluation; return True to end the run."""
        return False

    def on_round_end(self, server_round: int, state: Callable[[], State]) -> None:
        """Handle the end of a round; ``state()`` returns the strategy's state for a checkpoint."""

    def final_models(self) -> Tensor | None:
        """Return the final models of the run, ``[clients, parameters]``, or None for the last ones."""
        return None

    @property
    def last_suffix(self) -> str:
        """Suffix under which the summary also has the metrics of the last models; empty to leave them out."""
        return ""

    @property
    def final_round(self) -> int:
        """Round of the models that :meth:`final_models` returns; they are evaluated as of that round."""
        raise NotImplementedError

    def summary(self) -> dict[str, Any]:
        """Return entries for ``summary.json`` at the end of the run."""
        return {}

    def notes(self) -> list[str]:
        """Return notes on the run, at its end."""
        return []

    def state(self) -> State:
        """Return the state of the callback, for a checkpoint."""
        values = {_dashed(name): getattr(self, name) for name in self.kept}
        return {name: value for name, value in values.items() if value is not None}

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned."""
        for name in self.kept:
            setattr(self, name, state.get(_dashed(name)))


class EarlyStopping(Callback):
    """Callback that ends the run when a metric's mean over clients has stopped improving.

    Parameters
    ----------
    monitor : str
        ``<split>/<metric>``.
    patience : int
        Number of evaluations without a better mean after which the run ends.
    restore_best : bool, default True
        End with the best models instead of the last.

    Attributes
    ----------
    best, best_round, best_models : float or None, int, Tensor or None
        Best mean so far, its round, and its models ``[clients, parameters]`` if they are to be restored.
    waited : int
        Number of evaluations since then.
    last_round : int
        Round of the last evaluation.
    """

    kept = ("best", "best_round", "waited", "last_round", "best_models")

    def __init__(self, monitor: str, patience: int, restore_best: bool = True) -> None:
        self.monitor = monitor
        self.patience = patience
        self.restore_best = restore_best
        self.best: float | None = None
        self.best_round = 0
        self.best_models: Tensor | None = None
        self.waited = self.last_round = 0

    @property
    def stopped(self) -> bool:
        """Whether the mean has not improved for ``patience`` evaluations."""
        return self.waited >= self.patience

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        """Compare with the best value so far; an evaluation without replies counts as no improvement."""
        if evaluation.restored:
            return self.stopped
        self.last_round = evaluation.round
        value = self._value(evaluation)
        sign = _sign(self.monitor)
        if not math.isnan(value) and (self.best is None or sign * value > sign * self.best):
            self.best, self.best_round, self.waited = value, evaluation.round, 0
            self.best_models = evaluation.models.clone() if self.restore_best else None
        else:
            self.waited += 1
        return self.stopped

    def _value(self, evaluation: Evaluation) -> float:
        values = measured(evaluation, self.monitor, "[evaluation] monitor")
        return math.nan if values is None else float(torch.nanmean(values.double()))

    def final_models(self) -> Tensor | None:
        """Return the best models if they are to be restored, else None."""
        return self.best_models

    @property
    def final_round(self) -> int:
        """Round of the best models."""
        return self.best_round

    def summary(self) -> dict[str, Any]:
        """Return whether the run was stopped, and its best round."""
        found = {"monitor": self.monitor, "stopped": self.stopped, "best": self.best, "best_round": self.best_round}
        return {"early_stopping": found}

    def notes(self) -> list[str]:
        """Return a note if the run was stopped, or ends with the models of an earlier round."""
        if self.best is None or self.best_round == self.last_round:
            return []
        stopped = f"stopped after round {self.last_round}: " if self.stopped else ""
        whose = f"; models and results are those of round {self.best_round}" if self.restore_best else ""
        return [f"{stopped}{self.monitor} was best after round {self.best_round}{whose}"]


class AverageLast(Callback):
    """Callback that ends the run with the mean of each client's last models, including running statistics.

    Models that oscillate between the optima of different clients have a mean closer to all of them (Izmailov et al.,
    UAI 2018). A run that stops early keeps its last models.

    Parameters
    ----------
    count : int
        Number of rounds to average over.
    rounds : int
        Number of rounds of the run.

    Raises
    ------
    ExperimentError
        When ``count`` is larger than ``rounds``.
    """

    kept = ("_added", "_sum")

    def __init__(self, count: int, rounds: int) -> None:
        if count > rounds:
            raise ExperimentError(f"[evaluation] average-last = {count} is more than the {rounds} rounds of the run")
        self.count, self.rounds = count, rounds
        self._sum: Tensor | None = None
        self._added = 0

    def on_training(self, training: Training) -> None:
        """Add the models if this is one of the last rounds."""
        if training.models is None or training.round <= self.rounds - self.count:
            return
        self._sum = training.models.clone() if self._sum is None else self._sum + training.models
        self._added += 1

    def final_models(self) -> Tensor | None:
        """Return the mean after the last round, None before."""
        return self._sum / self.count if self._sum is not None and self._added == self.count else None

    @property
    def last_suffix(self) -> str:
        """Suffix of the metrics of the last models."""
        return LAST

    @property
    def final_round(self) -> int:
        """The last round."""
        return self.rounds


class LocalWork(Callback):
    """Callback that counts the minibatches of local training as set in ``[train]``.

    Further training of a method (Ditto's own models, fine-tuning for an evaluation) is not counted.

    Parameters
    ----------
    num_examples : Tensor
        Training examples of each client, int64 ``[clients]``.
    settings : TrainSettings
        The table ``[train]``.
    least : int, default 1
        Minimum number of examples in a minibatch.
    """

    kept = ("minibatches",)

    def __init__(self, num_examples: Tensor, settings: TrainSettings, least: int = 1) -> None:
        self._steps = num_steps(num_examples, settings, least)
        self._one_pass = max(int(steps_per_epoch(num_examples, settings, least).sum()), 1)
        self.minibatches = 0

    def on_training(self, training: Training) -> None:
        """Add the minibatches of the clients that took part."""
        taking_part = training.present
        if taking_part is None:
            taking_part = torch.tensor([name not in training.absent for name in training.names])
        self.minibatches += int(self._steps[taking_part].sum())

    def summary(self) -> dict[str, Any]:
        """Return ``minibatches`` of all clients, and ``passes``.

        ``passes`` is ``minibatches`` divided by the minibatches of one pass over all training data.
        """
        return {"training": {"minibatches": self.minibatches, "passes": self.minibatches / self._one_pass}}


class RoundsToTarget(Callback):
    """Callback that records when metrics reach their targets, in rounds, bytes and seconds.

    Gorbett, Shirazi, Ray (IEEE Big Data 2023), table I, count the rounds of the first client.

    Parameters
    ----------
    targets : mapping of str to float
        Value by ``<split>/<metric>``; an error reaches it from above.
    stop_at : {"mean", "first"}, optional
        End the run once the mean over clients, or the first client, has reached all targets. By default it continues.
    seconds : callable, optional
        Returns the seconds since the run began.
    """

    def __init__(
        self,
        targets: Mapping[str, float],
        stop_at: Literal["mean", "first"] | None = None,
        seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.targets = dict(targets)
        self.stop_at = stop_at
        self._seconds = seconds
        self._reached: dict[str, dict[str, int]] = {name: {} for name in targets}
        # By round: training bytes per client up to then, with one client per node, and seconds.
        self._spent: dict[int, tuple[float, float]] = {0: (0.0, 0.0)}

    @property
    def stopped(self) -> bool:
        """Whether all targets that end the run are reached."""
        return self.stop_at is not None and all(self.stop_at in rounds for rounds in self._reached.values())

    def on_training(self, training: Training) -> None:
        """Add up traffic and time. A round is evaluated after this call, or just before it (IPA)."""
        before, sent = self._spent.get(training.round - 1, (0.0, 0.0))[0], training.traffic
        per_client = (sent.bytes_down_alone + sent.bytes_up_alone) / len(training.names)
        needed = {training.round - 1, *(number for rounds in self._reached.values() for number in rounds.values())}
        self._spent = {number: spent for number, spent in self._spent.items() if number in needed}
        self._spent[training.round] = (before + per_client, self._seconds())

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        """Record targets that are reached for the first time; clients without a reply are ignored."""
        if evaluation.restored:
            return self.stopped
        for name, target in self.targets.items():
            values = measured(evaluation, name, "[evaluation] targets")
            if values is None or bool(values.isnan().all()):
                continue
            ahead = _sign(name) * (values[~values.isnan()].double() - target)
            for who, distance in (("mean", ahead.mean()), ("first", ahead.max())):
                if distance >= 0:
                    self._reached[name].setdefault(who, evaluation.round)
        return self.stopped

    def summary(self) -> dict[str, Any]:
        """Return when the ``mean`` and the ``first`` client reached each target, None for never.

        ``rounds_to_target`` also contains the ``target``. ``bytes_to_target`` is the training traffic per client, with
        one client per node and without requests that only evaluate. ``seconds_to_target`` includes evaluations.
        """
        rounds = {name: {who: self._reached[name].get(who) for who in ("mean", "first")} for name in self.targets}
        spent = {
            name: {who: self._spent.get(-1 if number is None else number) for who, number in by.items()}
            for name, by in rounds.items()
        }
        return {
            "rounds_to_target": {name: {"target": self.targets[name], **by} for name, by in rounds.items()},
            "bytes_to_target": {
                name: {who: taken and taken[0] for who, taken in by.items()} for name, by in spent.items()
            },
            "seconds_to_target": {
                name: {who: taken and taken[1] for who, taken in by.items()} for name, by in spent.items()
            },
        }

    def state(self) -> State:
        """Return the targets reached so far and their cost."""
        spent = {str(number): list(taken) for number, taken in self._spent.items()}
        return {"reached": self._reached, "spent": spent}

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned, for the targets of this run."""
        self._reached = {name: dict(state["reached"].get(name, {})) for name in self.targets}
        self._spent = {int(number): (sent, seconds) for number, (sent, seconds) in state.get("spent", {}).items()}


def _dashed(name: str) -> str:
    return name.strip("_").replace("_", "-")


def _sign(name: str) -> float:
    """Return 1 where larger values of ``<split>/<metric>`` are better, else -1."""
    return 1.0 if direction(name.partition("/")[2]) == "higher" else -1.0


def measured(evaluation: Evaluation, name: str, key: str) -> Tensor | None:
    """Return the metric ``name`` as ``[clients]``, or None when no client replied.

    Raises ExperimentError, naming ``key`` of the experiment, when it was not measured.
    """
    if evaluation.metrics and name not in evaluation.metrics:
        known = ", ".join(sorted(evaluation.metrics))
        raise ExperimentError(f"{key} '{name}' was not measured{if_any('; measured: ', known)}")
    return evaluation.metrics.get(name)
