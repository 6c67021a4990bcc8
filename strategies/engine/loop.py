"""The loop of rounds: train, aggregate, record, stop early, and evaluate the final models."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result
from torch import Tensor

from fedgraph.federation import Traffic
from fedgraph.runs import Evaluation, Training
from fedgraph.strategies.engine.broken_outputs import note_broken
from fedgraph.strategies.engine.nodes import Nodes
from fedgraph.strategies.engine.replies import Replies
from fedgraph.strategies.engine.strategy import EvaluateFn
from fedgraph.support.errors import RunError, quoted
from fedgraph.support.files import State
from fedgraph.training import AFTER_TURN

if TYPE_CHECKING:
    from fedgraph.strategies.engine.base import CohortStrategy


@dataclass
class Progress:
    """Progress of a run.

    Attributes
    ----------
    rounds : int
        Number of rounds that are finished.
    measured : dict of str to Tensor
        Last metrics by name, float64 ``[clients]``, NaN for absent clients.
    after : int or None
        Number of rounds after which ``measured`` was measured.
    kept : list of str
        Clients whose nodes keep the models that were measured, because the server has others.
    broken : dict of str to int
        Clients whose models have put out values that are not finite, and after which round first.
    """

    rounds: int = 0
    measured: dict[str, Tensor] = field(default_factory=dict)
    after: int | None = None
    kept: list[str] = field(default_factory=list)
    broken: dict[str, int] = field(default_factory=dict)

    def state(self) -> State:
        """Return everything, to be saved."""
        own = {"kept": list(self.kept), "broken": dict(self.broken)}
        return {"rounds": self.rounds, "measured": dict(self.measured), "after": self.after, **own}

    @classmethod
    def of_state(cls, state: State) -> Progress:
        """Restore what :meth:`state` returned."""
        return cls(**state)


def check_returned(where: str, returned: object, shape: tuple[int, ...], meaning: str) -> None:
    """Check the type and the shape of what a strategy made of replies.

    Parameters
    ----------
    where : str
        Who returned it, for the message: ``"Mine.aggregate, in round 1, returned"``.
    returned : object
        Anything, as the strategy may be anybody's.
    shape : tuple of int
        Expected of it.
    meaning : str
        Of this shape, in words.

    Raises
    ------
    RunError
        When it is no float32 tensor of this shape.
    """
    # A strategy that computes in float64 would fail at the nodes, one round later.
    if not isinstance(returned, Tensor) or returned.dtype != torch.float32:
        if isinstance(returned, Tensor):
            found, advice = f"a tensor of {returned.dtype}", "end with .float()"
        elif returned is None:
            found, advice = "None", "is there a return?"
        else:
            kind = type(returned)
            found = f"a {kind.__module__}.{kind.__name__}".replace(" builtins.", " ")
            advice = "make it one with torch.as_tensor(...).float()"
        raise RunError(f"{where} {found} in place of a float tensor {list(shape)}, {meaning}: {advice}")
    if returned.shape != shape:
        raise RunError(f"{where} {list(returned.shape)} in place of {list(shape)}: {meaning}")


class RoundLoop:
    """Runs the remaining rounds of a strategy and calls the callbacks of its plan.

    It ends early once a callback asks for it. The final models are evaluated: the last ones, and those that a callback
    puts in their place.

    Parameters
    ----------
    strategy : CohortStrategy
        The strategy.
    nodes : Nodes
        The nodes of the run.
    evaluate_fn : callable or None
        Evaluates the global arrays at the server, as in Flower.
    """

    def __init__(self, strategy: CohortStrategy[Any], nodes: Nodes, evaluate_fn: EvaluateFn | None) -> None:
        self._strategy, self._nodes, self._evaluate_fn = strategy, nodes, evaluate_fn
        self._plan, self._progress = strategy.plan, strategy.progress
        self._result = Result()
        # A run may have been killed after early stopping had ended it.
        self._stop = any(callback.stopped for callback in self._plan.callbacks)
        self._restored = False
        self._beside: dict[str, Tensor] = {}

    def run(self, initial_arrays: ArrayRecord, num_rounds: int) -> Result:
        """Run the rounds up to ``num_rounds`` and return Flower's result."""
        strategy, progress = self._strategy, self._progress
        if progress.rounds == 0:
            strategy.initialise(initial_arrays)
            self._measure_at_server(0, initial_arrays)
        arrays = strategy.global_arrays() or initial_arrays
        while progress.rounds < num_rounds and not self._stop:
            if not self._round(progress.rounds + 1):
                break
            arrays = strategy.global_arrays() or arrays
            if strategy.measures == "apart" and self._plan.evaluates(progress.rounds + 1):
                self._measure(progress.rounds + 1)
            self._measure_at_server(progress.rounds + 1, arrays)
            progress.rounds += 1
            for callback in self._plan.callbacks:
                callback.on_round_end(progress.rounds, strategy.state)
        self._measure_final_models()
        self._result.arrays = strategy.global_arrays() or arrays
        return self._result

    def _round(self, server_round: int) -> bool:
        """Run one round; return False when the evaluation at its beginning ends the run without a new model."""
        strategy, plan = self._strategy, self._plan
        began, before = time.perf_counter(), replace(self._nodes.grid.traffic)
        if strategy.measures == "after" and server_round == 1 and plan.evaluates(0):
            self._measure(0)
        replies = strategy.train_round(server_round, self._nodes)
        if strategy.measures == "before" and plan.evaluates(server_round - 1):
            self._record_measured(server_round - 1, replies)
            if self._stop:
                return False
        taking_part = strategy.absence.taking_part(server_round, replies)
        if strategy.aggregates:
            taking_part = strategy.defence.replies(server_round, taking_part, strategy.starts(taking_part.positions))
        models = strategy.aggregate(server_round, taking_part)
        self._check_models(server_round, taking_part.names, models)
        strategy.write_back(taking_part, models)
        strategy.finish_round(server_round, self._nodes)
        if strategy.measures == "after" and plan.evaluates(server_round):
            self._record_measured(server_round, replies)
        self._record_training(server_round, replies, time.perf_counter() - began, before)
        return True

    def _measure_final_models(self) -> None:
        strategy, progress = self._strategy, self._progress
        if strategy.moves_after_measuring and progress.rounds and progress.after == progress.rounds:
            self._restored, self._beside = True, self._noted(AFTER_TURN)
            self._measure(progress.rounds)
        elif progress.rounds not in self._result.evaluate_metrics_clientapp:
            self._measure(progress.rounds)
        for callback in self._plan.callbacks:
            models = callback.final_models()
            if models is not None and not torch.equal(models, strategy.models):
                strategy.replace_models(models)
                self._restored = True
                self._beside = {**self._beside, **self._noted(callback.beside)} if callback.beside else {}
                self._measure(callback.final_round)

    def _measure(self, server_round: int) -> None:
        """Evaluate the models after ``server_round`` rounds, in an exchange of its own."""
        if self._plan.splits:
            replies = self._strategy.measure(server_round, self._nodes)
            # Under the other policies what is missing is recorded as such, even where nobody answers.
            if self._plan.on_missing == "fail":
                self._strategy.absence.enforce(server_round, replies)
            self._record_measured(self._progress.rounds if self._restored else server_round, replies)

    def _measure_at_server(self, server_round: int, arrays: ArrayRecord) -> None:
        metrics = None if self._evaluate_fn is None else self._evaluate_fn(server_round, arrays)
        if metrics is not None:
            self._result.evaluate_metrics_serverapp[server_round] = metrics

    def _check_models(self, server_round: int, names: Sequence[str], models: Tensor) -> None:
        """Raise RunError if the strategy did not make a finite model for each client that takes part."""
        where = f"{self._strategy.class_name}.aggregate, in round {server_round}, returned"
        shape = (len(names), self._strategy.models.shape[1])
        check_returned(
            where,
            models,
            shape,
            "a row for each client in replies.names, in that order, and a column for each parameter",
        )
        bad = [name for name, fine in zip(names, models.isfinite().all(1).tolist(), strict=True) if not fine]
        if bad:
            raise RunError(
                f"{where} NaN or infinite values for {quoted(bad)}, of replies that were finite: look for a division "
                "by zero, or for parameters that grow without bound ([train] learning-rate, clip-norm)"
            )

    def _record_training(self, server_round: int, replies: Replies, seconds: float, before: Traffic) -> None:
        loss, names = self._whole(replies, replies.metrics.get("loss")), self._strategy.federation.names
        traffic = self._nodes.grid.traffic.since(before)
        training = Training(
            server_round, names, loss, replies.absent, seconds, traffic, models=self._strategy.models
        )  # fmt: skip
        for callback in self._plan.callbacks:
            callback.on_training(training)
        self._result.train_metrics_clientapp[server_round] = MetricRecord({"loss": float(loss.nanmean())})

    def _record_measured(self, server_round: int, replies: Replies) -> None:
        """Pass metrics on to the callbacks; metrics that were measured before but not now are NaN for all clients."""
        measured = {name: values for name, values in replies.metrics.items() if "/" in name}
        names = dict.fromkeys((*self._progress.measured, *measured))
        whole = {name: self._whole(replies, measured.get(name)) for name in names}
        self._progress.measured, self._progress.after, self._progress.kept = whole, server_round, list(replies.kept)
        note_broken(self._strategy.federation, replies.positions, measured, server_round, self._progress.broken)
        evaluation = Evaluation(
            server_round, self._strategy.federation.names, {**whole, **self._beside}, self._strategy.models,
            {**replies.not_asked, **replies.absent}, self._restored,
        )  # fmt: skip
        stops = [callback.on_evaluation(evaluation) for callback in self._plan.callbacks]
        self._stop = any(stops)
        means = MetricRecord({name: float(values.nanmean()) for name, values in whole.items()})
        self._result.evaluate_metrics_clientapp[server_round] = means

    def _whole(self, replies: Replies, values: Tensor | None) -> Tensor:
        """Expand numbers of the clients present to ``[clients]``, NaN for the others."""
        whole = torch.full((len(self._strategy.federation.names),), torch.nan, dtype=torch.float64)
        if values is not None:
            whole[replies.positions] = values
        return whole

    def _noted(self, suffix: str) -> dict[str, Tensor]:
        """Return the last metrics, with a suffix that distinguishes their models."""
        return {f"{name}{suffix}": values for name, values in self._progress.measured.items()}
