"""One small protocol for everything that watches a run: metric files, checkpoints, early stopping, displays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from fedgraph.federation import Traffic
from fedgraph.support.errors import ExperimentError
from fedgraph.support.files import State
from fedgraph.training import LAST, TrainSettings, direction, num_steps, steps_per_epoch


@dataclass(frozen=True)
class Training:
    """One round of training.

    loss    : mean training loss of each client, ``[clients]``, NaN for those who are absent.
    absent  : clients without a usable reply and why.
    seconds : wall-clock time of the exchange and the aggregation.
    traffic : what went in that exchange.
    models  : ``[clients, parameters]`` as the round left them.
    """

    round: int
    names: tuple[str, ...]
    loss: Tensor
    absent: Mapping[str, str]
    seconds: float
    traffic: Traffic = field(default_factory=Traffic)
    models: Tensor | None = None


@dataclass(frozen=True)
class Evaluation:
    """The models that stand after ``round`` rounds, measured on every client.

    metrics : ``<split>/<metric>`` -> ``[clients]``, NaN where a client did not answer or has nothing to measure.
    models  : ``[clients, parameters]``, what was measured; with turns one after the other (IPA), as the round left
              them, and a client's metrics are of its model right after its turn.
    absent  : clients without a usable reply and why.
    restored : the run has come to its end and the models that it ends with are measured once more, since they are not
              those that were measured after ``round``: the best of the run, the mean of the last, or what turns one
              after the other have left.
    """

    round: int
    names: tuple[str, ...]
    metrics: Mapping[str, Tensor]
    models: Tensor
    absent: Mapping[str, str] = field(default_factory=dict)
    restored: bool = False


class Callback:
    """Override what is of interest."""

    @property
    def stopped(self) -> bool:
        """Whether this callback has already ended the run."""
        return False

    def on_training(self, training: Training) -> None:
        """After a round was trained and aggregated."""

    def on_epoch(self, phase: str, epoch: int) -> None:
        """After an epoch, counted from 1, of a ``phase`` in which a server without rounds learns."""

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        """After models were measured; True ends the run."""
        return False

    def on_round_end(self, server_round: int, state: Callable[[], State]) -> None:
        """When a round is finished; ``state`` gives everything a resumed run needs from the strategy."""

    def final_models(self) -> Tensor | None:
        """Models ``[clients, parameters]`` the run shall end with instead of the last ones; None for the last ones."""
        return None

    @property
    def beside(self) -> str:
        """What the names of the last models' metrics end with in the summary, beside the final ones'; empty: no."""
        return ""

    @property
    def final_round(self) -> int:
        """The round after which the models of ``final_models`` stood, so that they are measured as they were then."""
        raise NotImplementedError

    def summary(self) -> dict[str, Any]:
        """Entries for ``summary.json`` at the end of the run."""
        return {}

    def state(self) -> State:
        """What this callback must remember over a resume."""
        return {}

    def load_state(self, state: State) -> None:
        """Take back what ``state`` gave."""


class EarlyStopping(Callback):
    """Ends the run when the monitored metric's mean over clients has not improved for ``patience`` evaluations.

    monitor      : ``<split>/<metric>``.
    restore_best : end with the best models instead of the last.
    """

    def __init__(self, monitor: str, patience: int, restore_best: bool = True) -> None:
        self.monitor = monitor
        self.patience = patience
        self.restore_best = restore_best
        self.best: float | None = None
        self.best_round = 0
        self.best_models: Tensor | None = None
        self.waited = 0

    @property
    def stopped(self) -> bool:
        """Whether there was no better value for as long as ``patience`` allows."""
        return self.waited >= self.patience

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        """Compare with the best so far; an evaluation that nobody answered is no improvement."""
        if evaluation.restored:
            return self.stopped
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
        """The best models, where they shall be restored."""
        return self.best_models

    @property
    def final_round(self) -> int:
        """The round of the best models."""
        return self.best_round

    def state(self) -> State:
        """The best so far and how long ago it was."""
        models = {} if self.best_models is None else {"best-models": self.best_models}
        return {"best": self.best, "best-round": self.best_round, "waited": self.waited, **models}

    def load_state(self, state: State) -> None:
        """Take back what ``state`` gave."""
        self.best, self.best_round, self.waited = state["best"], state["best-round"], state["waited"]
        self.best_models = state.get("best-models")


class AverageLast(Callback):
    """Ends the run with the mean of each client's models of the last rounds, running statistics too.

    Models that go to and fro between what different clients want have a mean that is nearer to all of them (Izmailov et
    al., UAI 2018). A run that ends before its last round keeps its last models.

    count  : over so many rounds.
    rounds : how many the run has.
    """

    def __init__(self, count: int, rounds: int) -> None:
        if count > rounds:
            raise ExperimentError(f"[evaluation] average-last = {count} is more than the {rounds} rounds of the run")
        self.count, self.rounds = count, rounds
        self._sum: Tensor | None = None
        self._added = 0

    def on_training(self, training: Training) -> None:
        """Add the models of one of the last rounds."""
        if training.models is None or training.round <= self.rounds - self.count:
            return
        self._sum = training.models.clone() if self._sum is None else self._sum + training.models
        self._added += 1

    def final_models(self) -> Tensor | None:
        """The mean, once all rounds have been."""
        return self._sum / self.count if self._sum is not None and self._added == self.count else None

    @property
    def beside(self) -> str:
        """The last models are of interest too."""
        return LAST

    @property
    def final_round(self) -> int:
        """The last."""
        return self.rounds

    def state(self) -> State:
        """The sum so far."""
        return {"added": self._added, **({} if self._sum is None else {"sum": self._sum})}

    def load_state(self, state: State) -> None:
        """Take back what ``state`` gave."""
        self._added, self._sum = state["added"], state.get("sum")


class LocalWork(Callback):
    """Counts the minibatches that clients train on as ``[train]`` asks for.

    What a method trains beside it (Ditto's own models, a fine-tuning for an evaluation) is not among them.

    num_examples : training examples of each client, int64 ``[clients]``.
    """

    def __init__(self, num_examples: Tensor, settings: TrainSettings) -> None:
        self._steps = num_steps(num_examples, settings)
        self._one_pass = max(int(steps_per_epoch(num_examples, settings).sum()), 1)
        self.minibatches = 0

    def on_training(self, training: Training) -> None:
        """Those of the clients that took part."""
        taking_part = torch.tensor([name not in training.absent for name in training.names])
        self.minibatches += int(self._steps[taking_part].sum())

    def summary(self) -> dict[str, Any]:
        """``minibatches`` of all clients, and ``passes``: how often those are all that everybody has."""
        return {"training": {"minibatches": self.minibatches, "passes": self.minibatches / self._one_pass}}

    def state(self) -> State:
        """What was counted."""
        return {"minibatches": self.minibatches}

    def load_state(self, state: State) -> None:
        """Take back what ``state`` gave."""
        self.minibatches = state["minibatches"]


class RoundsToTarget(Callback):
    """Notes after how many rounds metrics reached their targets, what was sent until then and how long it took.

    targets : value by ``<split>/<metric>``; an error reaches it from above.
    stop_at : end the run once all are reached by the ``mean`` over clients, or by the ``first`` client; None: go on.
    seconds : what the run has taken so far.

    Gorbett, Shirazi, Ray (IEEE Big Data 2023), table I, count rounds of the first.
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
        # After a round: bytes per client of all training until then, each on a node of its own, and seconds.
        self._spent: dict[int, tuple[float, float]] = {0: (0.0, 0.0)}

    @property
    def stopped(self) -> bool:
        """Whether all targets are reached that end the run."""
        return self.stop_at is not None and all(self.stop_at in found for found in self._reached.values())

    def on_training(self, training: Training) -> None:
        """Add up what rounds take. A round is measured after this call, or just before it (IPA)."""
        before, sent = self._spent.get(training.round - 1, (0.0, 0.0))[0], training.traffic
        per_client = (sent.bytes_down_alone + sent.bytes_up_alone) / len(training.names)
        needed = {training.round - 1, *(number for found in self._reached.values() for number in found.values())}
        self._spent = {number: spent for number, spent in self._spent.items() if number in needed}
        self._spent[training.round] = (before + per_client, self._seconds())

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        """Note what is reached for the first time; clients that did not answer count for nothing."""
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
        """By metric: the ``target``, and after how many rounds ``mean`` and ``first`` reached it; None for never.

        ``bytes_to_target``: what each client, on a node of its own, got and sent to be trained in these rounds, without
        what only measures models; ``seconds_to_target``: what they took, with all measuring until then.
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
        """What was reached so far, and what it took."""
        spent = {str(number): list(taken) for number, taken in self._spent.items()}
        return {"reached": self._reached, "spent": spent}

    def load_state(self, state: State) -> None:
        """Take back what ``state`` gave, for those targets that still are."""
        self._reached = {name: dict(state["reached"].get(name, {})) for name in self.targets}
        self._spent = {int(number): (sent, seconds) for number, (sent, seconds) in state.get("spent", {}).items()}


def _sign(name: str) -> float:
    """1 where more of ``<split>/<metric>`` is better, else -1."""
    return 1.0 if direction(name.partition("/")[2]) == "higher" else -1.0


def measured(evaluation: Evaluation, name: str, key: str) -> Tensor | None:
    """The metric that ``key`` of the experiment names, ``[clients]``; None when nobody answered.

    Raises ExperimentError when it was not measured.
    """
    if evaluation.metrics and name not in evaluation.metrics:
        known = ", ".join(sorted(evaluation.metrics))
        raise ExperimentError(f"{key} '{name}' was not measured; measured: {known}")
    return evaluation.metrics.get(name)
