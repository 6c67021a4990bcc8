"""The trials of a sweep: the next settings, their runs, and the validation values that compare them.

Optuna (Akiba et al., KDD 2019) keeps the trials in a file of the sweep's folder, suggests settings from ranges (tree-
structured Parzen estimators, Bergstra et al., NeurIPS 2011), and ends runs that lag behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console

from fedgraph.experiment import Experiment, load_experiment
from fedgraph.reproduce.cells import Cell, folder_of, resolved
from fedgraph.reproduce.choosing import Trial
from fedgraph.reproduce.execution import Execution, failure, run_cells
from fedgraph.reproduce.quantity import Quantity
from fedgraph.reproduce.sweeps.axes import Axis, Settings, combinations
from fedgraph.runs import Callback, Evaluation, RunFolder
from fedgraph.support.errors import ExperimentError
from fedgraph.support.randomness import derive_seed
from fedgraph.training import summarise

_OVER = "over"
"""Attribute of a trial that failed and is not to be tried again."""
_PROBLEM = "problem"


@dataclass(frozen=True)
class SweepPlan:
    """The settings that a sweep varies, and the criterion that compares its trials.

    Attributes
    ----------
    file : Path
        The experiment file.
    overrides : tuple of str
        Overrides of every trial, ``table.key=value``.
    axes : tuple of Axis
        The keys that are varied.
    seeds : tuple of int
        Every trial is run with each of these.
    quantity : Quantity
        The value on validation data; of a trial its mean over seeds.
    """

    file: Path
    overrides: tuple[str, ...]
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    quantity: Quantity

    def experiment(self, overrides: Sequence[str]) -> Experiment:
        """Return the resolved experiment with further overrides. Raises ExperimentError where they do not fit."""
        return resolved(load_experiment(self.file, [*self.overrides, *overrides]))

    def example(self) -> Experiment:
        """Return the experiment of one combination. Raises ExperimentError where a key or value does not fit."""
        return self.experiment(Trial(tuple((axis.key, axis.first) for axis in self.axes), (), self.quantity).overrides)

    def trial(self, settings: Settings, cells_dir: Path) -> Trial:
        """Return the runs of a combination of settings, one per seed, finished or not."""
        about = ", ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in settings
        )
        bare = Trial(settings, (), self.quantity)
        cells = []
        for seed in self.seeds:
            try:
                experiment = self.experiment([*bare.overrides, f"experiment.seed={seed}"])
            except ExperimentError as error:
                cells.append(Cell(about, "sweep", seed, None, cells_dir / "cannot-be-resolved", str(error)))
            else:
                cells.append(Cell(about, "sweep", seed, experiment, folder_of(experiment, cells_dir)))
        return Trial(settings, tuple(cells), self.quantity)


@dataclass(frozen=True)
class Tried:
    """A trial that is over.

    Attributes
    ----------
    number : int
        Optuna's number.
    state : {"complete", "pruned", "failed"}
        How it ended.
    trial : Trial
        Its settings and runs.
    values : tuple of float
        The value of each seed; empty unless complete.
    seconds : float
        What its runs took.
    problem : str
        Why it failed.
    """

    number: int
    state: str
    trial: Trial
    values: tuple[float, ...] = ()
    seconds: float = 0.0
    problem: str = ""

    @property
    def mean(self) -> float | None:
        """Mean over seeds; None unless complete."""
        return math.fsum(self.values) / len(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """Deviation over seeds; None with one seed."""
        return stdev(self.values) if len(self.values) > 1 else None


class Search:
    """The trials of a sweep, in a folder that remembers them.

    Parameters
    ----------
    plan : SweepPlan
        What is varied.
    folder : Path
        The existing folder of the sweep; runs are below ``runs``.
    prune : bool
        End a trial whose first seed is worse, after the same round, than the median of the trials before it.
    """

    def __init__(self, plan: SweepPlan, folder: Path, prune: bool) -> None:
        self.plan = plan
        self.cells_dir = folder / "runs"
        self._prune = prune
        self._trials: dict[Settings, Trial] = {}
        rounds = plan.example().experiment.rounds
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(folder / "trials.journal"))),
            study_name="sweep",
            direction="maximize" if plan.quantity.better == "higher" else "minimize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=rounds // 4),
            load_if_exists=True,
        )

    def run(self, trials: int | None, how: Execution, console: Console, on_end: Callable[[], None]) -> None:
        """Run the trials that are missing, so many in all; ``on_end`` is called after each.

        Trials that failed, or that were stopped, are run again with the same settings.

        Raises
        ------
        ExperimentError
            When the runs do not measure what trials are compared by.
        """
        # This process holds the lock of the folder: the process that had begun them is gone.
        for left in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self._study.tell(left.number, state=TrialState.FAIL)
        for settings in self._missing(trials):
            self._study.sampler = self._sampler()
            if settings is not None and settings not in self._waiting():
                axes = {axis.key: axis for axis in self.plan.axes}
                self._study.enqueue_trial({key: axes[key].encoded(value) for key, value in settings})
            asked = self._study.ask({axis.key: axis.distribution() for axis in self.plan.axes})
            trial = self._trial(self._settings(asked.params))
            self._execute(asked, trial, how, console)
            on_end()

    def tried(self) -> list[Tried]:
        """Return the trials that are over, the best first, then the others; repeated settings once."""
        latest = {settings: found for settings, found in self._over() if found.state.is_finished()}
        every = [self._look(found, settings) for settings, found in latest.items()]
        sign = -1 if self.plan.quantity.better == "higher" else 1
        return sorted(every, key=lambda each: (each.mean is None, sign * (each.mean or 0.0), each.number))

    def _missing(self, trials: int | None) -> list[Settings | None]:
        """Return the settings to run, None where Optuna is to suggest them."""
        over = [settings for settings, found in self._over() if _is_final(found)]
        every = combinations(self.plan.axes)
        if every is not None:
            return [settings for settings in every[:trials] if settings not in over]
        again = [settings for settings, found in self._over() if not _is_final(found) and settings not in over]
        wanted = (20 if trials is None else trials) - len(over)
        first: list[Settings | None] = list(dict.fromkeys(again))
        return (first + [None] * wanted)[: max(wanted, 0)]

    def _over(self) -> list[tuple[Settings, FrozenTrial]]:
        """Return the trials whose settings are known, except for waiting ones, in the order of their start."""
        found = self._study.get_trials(deepcopy=False)
        whole = [each for each in found if len(each.params) == len(self.plan.axes)]
        return [(self._settings(each.params), each) for each in whole]

    def _waiting(self) -> list[Settings]:
        waiting = self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        return [self._settings(each.system_attrs["fixed_params"]) for each in waiting]

    def _settings(self, params: Mapping[str, Any]) -> Settings:
        return tuple((axis.key, axis.decoded(params[axis.key])) for axis in self.plan.axes)

    def _trial(self, settings: Settings) -> Trial:
        if settings not in self._trials:
            self._trials[settings] = self.plan.trial(settings, self.cells_dir)
        return self._trials[settings]

    def _sampler(self) -> Any:
        """Return a sampler whose suggestion follows from the trials so far, whether or not the sweep was stopped."""
        number = sum(_is_final(found) for _, found in self._over())
        return optuna.samplers.TPESampler(seed=derive_seed(self.plan.seeds[0], "sweep", number) % 2**32)

    def _execute(self, asked: optuna.Trial, trial: Trial, how: Execution, console: Console) -> None:
        first, *others = trial.cells
        listeners = []
        if self._prune and first.experiment is not None:
            listeners.append(Pruning(asked, self.plan.quantity, first))
        run_cells([first], how, console, listeners=listeners)
        if _summary(first).get(Pruning.KEY):
            self._study.tell(asked, state=TrialState.PRUNED)
            return
        run_cells(others, how, console)
        self._check_measured(first)
        value = trial.value
        if value is not None:
            self._study.tell(asked, value)
            return
        problems = list(dict.fromkeys(filter(None, map(failure, trial.cells))))
        asked.set_user_attr(_PROBLEM, "; ".join(problems) or f"{self.plan.quantity} is not finite")
        asked.set_user_attr(_OVER, not problems)
        self._study.tell(asked, state=TrialState.FAIL)

    def _check_measured(self, cell: Cell) -> None:
        quantity = self.plan.quantity
        found = _summary(cell).get("metrics", {}).get(quantity.split)
        if found is not None and quantity.metric not in found:
            known = ", ".join(f"{quantity.split}/{name}" for name in found)
            raise ExperimentError(f"--metric {quantity}: it was not measured; measured: {known}")

    def _look(self, found: FrozenTrial, settings: Settings) -> Tried:
        trial = self._trial(settings)
        summaries = [_summary(cell) for cell in trial.cells]
        seconds = sum(summary.get("seconds", 0.0) for summary in summaries)
        if found.state == TrialState.COMPLETE:
            values = [self.plan.quantity.value(summary) for summary in summaries if summary]
            known = tuple(value for value in values if value is not None)
            return Tried(found.number, "complete", trial, known or (float(found.values[0]),), seconds)
        if found.state == TrialState.PRUNED:
            return Tried(found.number, "pruned", trial, seconds=seconds)
        problem = found.user_attrs.get(_PROBLEM, "it was stopped")
        return Tried(found.number, "failed", trial, seconds=seconds, problem=problem)


class Pruning(Callback):
    """Callback that reports validation values to Optuna, and ends a run that it would not go on with.

    Parameters
    ----------
    trial : optuna.Trial
        The trial.
    quantity : Quantity
        The value reported after every evaluation.
    cell : Cell
        The run; the values of a stopped one are reported again.
    """

    KEY = "pruned"

    def __init__(self, trial: optuna.Trial, quantity: Quantity, cell: Cell) -> None:
        assert cell.experiment is not None
        self._trial, self._quantity = trial, quantity
        self._rounds = cell.experiment.experiment.rounds
        self._reported: set[int] = set()
        self._ended: int | None = None
        folder = RunFolder(cell.path)
        for line in folder.evaluations(quantity.split) if folder.metrics.exists() else ():
            self._report(line["round"], line["metrics"].get(quantity.metric, {}).get(quantity.statistic))

    @property
    def stopped(self) -> bool:
        """Whether this callback has ended the run."""
        return self._ended is not None

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        """Report the value, and return whether the trial is pruned; the last round is not worth it."""
        values = evaluation.metrics.get(f"{self._quantity.split}/{self._quantity.metric}")
        if values is None or evaluation.restored or self.stopped:
            return self.stopped
        self._report(evaluation.round, summarise(values, self._quantity.metric)[self._quantity.statistic])
        if evaluation.round < self._rounds and self._trial.should_prune():
            self._ended = evaluation.round
        return self.stopped

    def summary(self) -> dict[str, Any]:
        """Return the last round of the run."""
        return {} if self._ended is None else {self.KEY: {"after": self._ended}}

    def _report(self, server_round: int, value: float | None) -> None:
        if value is not None and math.isfinite(value) and server_round not in self._reported:
            self._trial.report(value, server_round)
            self._reported.add(server_round)


def _is_final(found: FrozenTrial) -> bool:
    """Whether a trial is over and not to be run again."""
    return found.state in (TrialState.COMPLETE, TrialState.PRUNED) or bool(found.user_attrs.get(_OVER))


def _summary(cell: Cell) -> dict[str, Any]:
    return RunFolder(cell.path).summary() if RunFolder(cell.path).is_finished else {}
