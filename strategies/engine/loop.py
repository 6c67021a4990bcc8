"""The loop over rounds: training, aggregation, recording, early stopping, and evaluation of the final models."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from fedgraph.federation import Traffic
from fedgraph.runs import Evaluation, Training
from fedgraph.strategies.engine.algorithm_run import AlgorithmRun
from fedgraph.strategies.engine.broken_outputs import note_broken
from fedgraph.strategies.engine.nodes import Nodes
from fedgraph.strategies.engine.replies import Replies, joined
from fedgraph.training import AFTER_TURN


class RoundLoop:
    """Runs the remaining rounds of an algorithm and calls the callbacks of its plan.

    It ends early if a callback requests it. The final models are evaluated: the last ones, and those by which a
    callback replaces them.

    Parameters
    ----------
    nodes : the nodes of the run.
    """

    def __init__(self, run: AlgorithmRun, nodes: Nodes) -> None:
        self._run, self._nodes = run, nodes
        self._plan, self._progress = run.plan, run.progress
        # A run may have been killed after early stopping.
        self._stop = any(callback.stopped for callback in self._plan.callbacks)
        self._restored = False
        self._measured_now: set[int] = set()
        self._last_metrics: dict[str, Tensor] = {}

    def run(self, num_rounds: int) -> None:
        """Run the rounds up to ``num_rounds``."""
        progress, plan = self._progress, self._plan
        while progress.rounds < num_rounds and not self._stop:
            if not self._round(progress.rounds + 1):
                break
            if self._run.algorithm.evaluates == "apart" and plan.evaluates(progress.rounds + 1):
                self._measure(progress.rounds + 1)
            progress.rounds += 1
            for callback in plan.callbacks:
                callback.on_round_end(progress.rounds, self._run.saved)
        self._measure_final_models()

    def _round(self, number: int) -> bool:
        """Run one round; return False when the evaluation at its start ends the run without a new model."""
        measures, plan = self._run.algorithm.evaluates, self._plan
        began, before = time.perf_counter(), replace(self._nodes.grid.traffic)
        if measures == "after" and number == 1 and plan.evaluates(0):
            self._measure(0)
        reports = list[Replies]()
        for report in self._run.round(number, self._nodes):
            reports.append(report)
            if measures == "before" and len(reports) == 1 and plan.evaluates(number - 1):
                # Where a run needs all clients, measurements of some must not end it.
                self._run.absence.enforce(number, report)
                self._record_measured(number - 1, report)
                if self._stop:
                    return False
        replies = joined(self._run.federation, reports)
        if measures == "after" and plan.evaluates(number):
            self._record_measured(number, replies)
        self._record_training(number, replies, time.perf_counter() - began, before)
        return True

    def _measure_final_models(self) -> None:
        run, progress = self._run, self._progress
        if run.algorithm.moves_after_evaluation and progress.rounds and progress.after == progress.rounds:
            self._restored, self._last_metrics = True, self._suffixed(AFTER_TURN)
            self._measure(progress.rounds)
        elif progress.rounds not in self._measured_now:
            self._measure(progress.rounds)
        for callback in self._plan.callbacks:
            models = callback.final_models()
            if models is not None and not torch.equal(models, run.models):
                run.replace_models(models)
                self._restored = True
                self._last_metrics = (
                    {**self._last_metrics, **self._suffixed(callback.last_suffix)} if callback.last_suffix else {}
                )
                self._measure(callback.final_round)

    def _measure(self, number: int) -> None:
        """Evaluate the models after ``number`` rounds, in separate exchanges."""
        if self._plan.splits:
            replies = self._run.measure(number, self._nodes)
            # Under the other policies missing values are recorded, even if no client answers.
            if self._plan.on_missing == "fail":
                self._run.absence.enforce(number, replies)
            self._record_measured(self._progress.rounds if self._restored else number, replies, kept_after=number)

    def _record_training(self, number: int, replies: Replies, seconds: float, before: Traffic) -> None:
        loss, names = self._whole(replies, replies.metrics.get("loss")), self._run.federation.names
        traffic = self._nodes.grid.traffic.since(before)
        present = torch.zeros(len(names), dtype=torch.bool)
        present[replies.positions] = True
        training = Training(number, names, loss, replies.absent, seconds, traffic, self._run.models, present)
        for callback in self._plan.callbacks:
            callback.on_training(training)

    def _record_measured(self, number: int, replies: Replies, kept_after: int | None = None) -> None:
        """Pass metrics to the callbacks; metrics of earlier rounds that are missing now are NaN for all clients."""
        measured = {name: values for name, values in replies.metrics.items() if "/" in name}
        names = dict.fromkeys((*self._progress.measured, *measured))
        whole = {name: self._whole(replies, measured.get(name)) for name in names}
        self._progress.measured, self._progress.after = whole, number
        self._progress.kept = list(replies.kept)
        self._progress.kept_after = number if kept_after is None else kept_after
        note_broken(self._run.federation, replies.positions, measured, number, self._progress.broken)
        evaluation = Evaluation(
            number, self._run.federation.names, {**whole, **self._last_metrics}, self._run.models,
            {**replies.not_asked, **replies.absent}, self._restored,
        )  # fmt: skip
        stops = [callback.on_evaluation(evaluation) for callback in self._plan.callbacks]
        self._stop = any(stops)
        self._measured_now.add(number)

    def _whole(self, replies: Replies, values: Tensor | None) -> Tensor:
        """Expand numbers of the clients present to ``[clients]``, NaN for the others."""
        whole = torch.full((len(self._run.federation.names),), torch.nan, dtype=torch.float64)
        if values is not None:
            whole[replies.positions] = values
        return whole

    def _suffixed(self, suffix: str) -> dict[str, Tensor]:
        """Return the last metrics, with a suffix that distinguishes their models."""
        return {f"{name}{suffix}": values for name, values in self._progress.measured.items()}
