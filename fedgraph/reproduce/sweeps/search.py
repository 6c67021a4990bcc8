"""The trials of a sweep: their runs, and the validation values that compare them.

Optuna (Akiba et al., KDD 2019) keeps the trials in a file of the sweep's folder, suggests settings from ranges (tree-
structured Parzen estimators, Bergstra et al., NeurIPS 2011), ends runs that lag behind, and draws the picture.
"""

from __future__ import annotations

import json
import math
import warnings
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
from fedgraph.reproduce.sweeps.axes import Axes, grid, in_words, value_of
from fedgraph.runs import Callback, Evaluation, RunFolder
from fedgraph.support.errors import ExperimentError, if_any
from fedgraph.support.randomness import derive_seed
from fedgraph.training import summarise

_USUAL_TRIALS = 20
_PRUNED = "pruned"


def experiment_with(file: Path, overrides: Sequence[str], params: Mapping[str, Any], *more: str) -> Experiment:
    """Return the resolved experiment with parameters of Optuna. Raises ExperimentError where one does not fit."""
    # JSON is TOML except for tables and null, which values cannot be.
    chosen = [f"{key}={json.dumps(value_of(param))}" for key, param in params.items()]
    return resolved(load_experiment(file, [*overrides, *chosen, *more]))


@dataclass(frozen=True)
class Search:
    """The trials of a sweep, in a folder that remembers them.

    Every trial of the experiment ``file`` with ``overrides`` is run with each of ``seeds``, below ``runs`` of the
    existing ``folder``; trials are compared by the mean of ``quantity``. With ``prune`` a trial ends whose first seed
    is worse, after the same of ``rounds``, than the median of the trials before it.
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
        """The trials.

        User attributes of each are ``values`` of its seeds, ``runs``, ``seconds``, and the ``problem`` of one that
        failed, which is ``over`` if it is not to be run again because its runs did finish.
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
        """Run the trials that are missing, so many in all; ``on_end`` is called after each.

        Trials that failed, or that were stopped, are run again with the same settings. Raises ExperimentError when the
        runs do not measure what trials are compared by.
        """
        # This process holds the lock of the folder: the process that had begun them is gone.
        for left in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self.study.tell(left.number, state=TrialState.FAIL)
        for params in self._missing(trials):
            # The suggestion follows from the trials so far, whether or not the sweep was stopped.
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
        """Return the trials that are over, the best first, then the others; repeated settings once."""
        latest = {str(each.params): each for each in self._known() if each.state.is_finished()}
        sign = -1 if self.quantity.better == "higher" else 1

        def place(trial: FrozenTrial) -> tuple[float, int]:
            # Optuna gives a pruned trial the value that it was pruned at.
            value = trial.value if trial.state == TrialState.COMPLETE else None
            return math.inf if value is None else sign * value, trial.number

        return sorted(latest.values(), key=place)

    def best(self) -> FrozenTrial | None:
        """Return the best trial; None where none is complete."""
        return next((each for each in self.tried() if each.state == TrialState.COMPLETE), None)

    def in_words(self, trial: FrozenTrial) -> str:
        """Describe the settings of a trial and how they were chosen."""
        words = "; ".join(in_words(key, kind, trial.params[key]) for key, kind in self.axes.items())
        seeds = ", ".join(map(str, self.seeds))
        return f"Chosen by {self.quantity}, seed{'s' if len(self.seeds) > 1 else ''} {seeds}: {words}"

    def draw(self, path: Path) -> None:
        """Draw the complete trials over each key, as Optuna does: the darker, the later."""
        from matplotlib import pyplot as plt
        from optuna.visualization.matplotlib import plot_slice

        # The function is experimental, and warns of keys of which one value was tried.
        with warnings.catch_warnings(action="ignore"), plt.style.context("default"):
            plot_slice(self.study, list(self.axes), target_name=str(self.quantity))
            plt.savefig(path, dpi=150, bbox_inches="tight")
            plt.close()

    def _known(self) -> list[FrozenTrial]:
        """Return the trials that have got their settings, in the order of their start."""
        return [each for each in self.study.trials if len(each.params) == len(self.axes)]

    def _missing(self, trials: int | None) -> list[dict[str, Any] | None]:
        """Return the settings to run, None where Optuna is to suggest them."""
        known = self._known()
        over = [each.params for each in known if _is_final(each)]
        every = grid(self.axes)
        if every is not None:
            return [params for params in every[:trials] if params not in over]
        again = {str(each.params): each.params for each in known if each.params not in over}
        wanted = (trials or _USUAL_TRIALS) - len(over)
        return [*again.values(), *[None] * wanted][: max(wanted, 0)]

    def _run(self, trial: optuna.Trial, how: Execution, console: Console) -> tuple[TrialState, float | None]:
        """Run a trial; return how it ended, and the mean over seeds of a complete one."""
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
            raise ExperimentError(f"--metric {self.quantity}: it was not measured{if_any('; measured: ', known)}")
        found = [value for summary in summaries if (value := self.quantity.value(summary or None)) is not None]
        if len(found) == len(cells):
            trial.set_user_attr("values", found)
            return TrialState.COMPLETE, fmean(found)
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
    """Callback that reports a quantity to Optuna, and ends a run of so many rounds that it would not go on with."""

    def __init__(self, trial: optuna.Trial, quantity: Quantity, rounds: int) -> None:
        self._trial, self._quantity, self._rounds = trial, quantity, rounds
        self._summary: dict[str, Any] = {}

    @property
    def stopped(self) -> bool:
        """Whether this callback has ended the run."""
        return bool(self._summary)

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        """Report the value, and return whether the trial is pruned; the last round is not worth it."""
        values = evaluation.metrics.get(f"{self._quantity.split}/{self._quantity.metric}")
        if values is None or evaluation.restored or self.stopped:
            return self.stopped
        value = summarise(values, self._quantity.metric)[self._quantity.statistic]
        if value is not None and math.isfinite(value):
            self._trial.report(value, evaluation.round)
        if evaluation.round < self._rounds and self._trial.should_prune():
            self._summary = {_PRUNED: {"after": evaluation.round}}
        return self.stopped

    def summary(self) -> dict[str, Any]:
        """Return the last round of the run."""
        return self._summary


def _is_final(trial: FrozenTrial) -> bool:
    """Whether a trial is over and not to be run again."""
    return trial.state in (TrialState.COMPLETE, TrialState.PRUNED) or bool(trial.user_attrs.get("over"))


def _summary(cell: Cell) -> dict[str, Any]:
    return RunFolder(cell.path).summary() if RunFolder(cell.path).is_finished else {}
