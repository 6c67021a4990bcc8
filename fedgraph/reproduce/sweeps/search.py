"""The trials of a sweep and their runs.

Optuna (Akiba et al., KDD 2019) stores the trials in the sweep's folder, suggests settings from ranges (tree-structured
Parzen estimators, Bergstra et al., NeurIPS 2011), and prunes runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console

from fedgraph.experiment import Experiment, load_experiment
from fedgraph.reproduce.cells import Cell, folder_of, resolved
from fedgraph.reproduce.execution import Execution, failure, run_cells
from fedgraph.reproduce.quantity import Quantity
from fedgraph.reproduce.sweeps.axes import Axes, grid, value_of
from fedgraph.runs import Callback, Evaluation, RunFolder
from fedgraph.support.errors import ExperimentError
from fedgraph.support.randomness import derive_seed
from fedgraph.training import summarise

_USUAL_TRIALS = 20
_PRUNED = "pruned"


def experiment_with(file: Path, overrides: Sequence[str], params: Mapping[str, Any], *more: str) -> Experiment:
    """Return the resolved experiment with parameters of Optuna. Raises ExperimentError for invalid ones."""
    # JSON is TOML except for tables and null, which are not allowed here.
    chosen = [f"{key}={json.dumps(value_of(param))}" for key, param in params.items()]
    return resolved(load_experiment(file, [*overrides, *chosen, *more]))


@dataclass(frozen=True)
class Search:
    """The trials of a sweep, stored in a folder.

    Every trial of the experiment ``file`` with ``overrides`` is run with each of ``seeds``, below ``runs`` of the
    existing ``folder``; trials are compared by the mean of ``quantity``. With ``prune``, a trial ends if its first seed
    is worse than the median of earlier trials after the same round.
    """

    file: Path
    overrides: Sequence[str]
    axes: Axes
    seeds: Sequence[int]
    quantity: Quantity
    folder: Path
    rounds: int
    prune: bool

    @cached_property
    def study(self) -> optuna.Study:
        """The trials, with user attributes ``values`` (by seed), ``runs`` and ``seconds``.

        Failed trials have a ``problem``, and are ``over`` if their runs finished.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        return optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(self.folder / "optuna.journal"))),
            study_name="sweep",
            direction="maximize" if self.quantity.better == "higher" else "minimize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=self.rounds // 4),
            load_if_exists=True,
        )

    def run(self, trials: int | None, how: Execution, console: Console, on_end: Callable[[], None]) -> None:
        """Run missing trials, up to ``trials`` in total; ``on_end`` is called after each.

        Trials that failed or were stopped are run again with the same settings.

        Raises
        ------
        ExperimentError
            When the runs do not measure the criterion.
        """
        # This process holds the folder's lock, so running trials are left over from a process that has ended.
        for left in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self.study.tell(left.number, state=TrialState.FAIL)
        for params in self._missing(trials):
            # Suggestions depend only on the trials so far, so that a stopped sweep continues in the same way.
            seed = derive_seed(self.seeds[0], "sweep", sum(map(_is_final, self.study.trials)))
            self.study.sampler = optuna.samplers.TPESampler(seed=seed % 2**32)
            waiting = self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
            if params is not None and params not in [each.system_attrs["fixed_params"] for each in waiting]:
                self.study.enqueue_trial(params)
            trial = self.study.ask(dict(self.axes))
            state, value = self._run(trial, how, console)
            self.study.tell(trial, value, state)
            on_end()

    def tried(self) -> list[FrozenTrial]:
        """Return the trials that are over, best first; the latest of repeated settings."""
        latest = {str(each.params): each for each in self._known() if each.state.is_finished()}
        sign = -1 if self.quantity.better == "higher" else 1

        def place(trial: FrozenTrial) -> tuple[float, int]:
            # Optuna reports the last value of a pruned trial.
            value = trial.value if trial.state == TrialState.COMPLETE else None
            return math.inf if value is None else sign * value, trial.number

        return sorted(latest.values(), key=place)

    def _known(self) -> list[FrozenTrial]:
        """Return the trials with settings, in order of start."""
        return [each for each in self.study.trials if len(each.params) == len(self.axes)]

    def _missing(self, trials: int | None) -> list[dict[str, Any] | None]:
        """Return the settings to run; None for those that Optuna suggests."""
        known = self._known()
        over = [each.params for each in known if _is_final(each)]
        every = grid(self.axes)
        if every is not None:
            return [params for params in every[:trials] if params not in over]
        again = {str(each.params): each.params for each in known if each.params not in over}
        wanted = (trials or _USUAL_TRIALS) - len(over)
        return [*again.values(), *[None] * wanted][: max(wanted, 0)]

    def _run(self, trial: optuna.Trial, how: Execution, console: Console) -> tuple[TrialState, float | None]:
        """Run a trial, and return its state and, if complete, its mean over seeds."""
        cells = [self._cell(trial.params, seed) for seed in self.seeds]
        trial.set_user_attr("runs", [cell.path.name for cell in cells])
        pruning = [Pruning(trial, self.quantity, self.rounds)] if self.prune else []
        run_cells(cells[:1], how, console, listeners=pruning)
        pruned = _PRUNED in _summary(cells[0])
        if not pruned:
            run_cells(cells[1:], how, console)
        summaries = [*map(_summary, cells)]
        trial.set_user_attr("seconds", sum(summary.get("seconds", 0.0) for summary in summaries))
        if pruned:
            return TrialState.PRUNED, None
        measured = summaries[0].get("metrics", {}).get(self.quantity.split)
        if measured is not None and self.quantity.metric not in measured:
            known = ", ".join(f"{self.quantity.split}/{name}" for name in measured)
            raise ExperimentError(f"--metric {self.quantity} was not measured; measured: {known}")
        values = [value for summary in summaries if (value := self.quantity.value(summary or None)) is not None]
        if len(values) == len(cells):
            trial.set_user_attr("values", values)
            return TrialState.COMPLETE, fmean(values)
        problems = list(dict.fromkeys(filter(None, map(failure, cells))))
        trial.set_user_attr("problem", "; ".join(problems) or f"{self.quantity} is not finite")
        trial.set_user_attr("over", not problems)
        return TrialState.FAIL, None

    def _cell(self, params: Mapping[str, Any], seed: int) -> Cell:
        about, runs = ", ".join(f"{key} {param}" for key, param in params.items()), self.folder / "runs"
        try:
            experiment = experiment_with(self.file, self.overrides, params, f"experiment.seed={seed}")
        except ExperimentError as error:
            return Cell(about, "sweep", seed, None, runs / "cannot-be-resolved", str(error))
        return Cell(about, "sweep", seed, experiment, folder_of(experiment, runs))


class Pruning(Callback):
    """Callback that reports a quantity to Optuna, and ends runs that it prunes before their last round."""

    def __init__(self, trial: optuna.Trial, quantity: Quantity, rounds: int) -> None:
        self._trial, self._quantity, self._rounds = trial, quantity, rounds
        self._ended: int | None = None

    @property
    def stopped(self) -> bool:
        """Whether this callback has ended the run."""
        return self._ended is not None

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        """Report the value, and return whether the trial is pruned."""
        values = evaluation.metrics.get(f"{self._quantity.split}/{self._quantity.metric}")
        if values is None or evaluation.restored or self.stopped:
            return self.stopped
        value = summarise(values, self._quantity.metric)[self._quantity.statistic]
        if value is not None and math.isfinite(value):
            self._trial.report(value, evaluation.round)
        if evaluation.round < self._rounds and self._trial.should_prune():
            self._ended = evaluation.round
        return self.stopped

    def summary(self) -> dict[str, Any]:
        """Return the last round of a pruned run."""
        return {} if self._ended is None else {_PRUNED: {"after": self._ended}}


def _is_final(trial: FrozenTrial) -> bool:
    """Return whether a trial is over and need not be run again."""
    return trial.state in (TrialState.COMPLETE, TrialState.PRUNED) or bool(trial.user_attrs.get("over"))


def _summary(cell: Cell) -> dict[str, Any]:
    return RunFolder(cell.path).summary() if RunFolder(cell.path).is_finished else {}
