"""Strategies that go through phases, each with exchanges of its own, where others repeat one round."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from torch import Tensor

from fedgraph.data import DataSource, SplitName
from fedgraph.experiment import Experiment
from fedgraph.federation import Federation, RollCall, SomeAnswer, Traffic, ask_everybody
from fedgraph.graph import ClientGraph
from fedgraph.runs import Callback, RunFolder
from fedgraph.support.errors import ExperimentError, RunError
from fedgraph.support.files import State
from fedgraph.support.settings import S
from strategies.engine.strategy import EvaluateFn, MethodStrategy

log = logging.getLogger("fedgraph")


@dataclass(frozen=True)
class PhasesPlan:
    """What a strategy of phases is told about the run it serves, beside its own settings.

    client     : dotted path of the client class that answers the requests.
    experiment : the part of the experiment that nodes get, as JSON.
    splits     : splits that are measured at the end.
    roll_call  : whom the run waits for.
    tolerant   : go on without clients that do not answer, or not usably, as long as there are ``min_clients``.
    timeout    : seconds to wait for the answers of nodes.
    source     : opens the experiment's data set in the server's data folder.
    graph_given : whether the experiment gives a client graph.
    graph_of   : the given client graph over the clients that take part; None when the experiment gives none.
    folder     : where results are written.
    listeners  : whoever is to be told how far the run has come.
    """

    client: str
    experiment: str
    seed: int
    splits: tuple[SplitName, ...]
    roll_call: RollCall
    tolerant: bool
    timeout: float
    source: Callable[[], DataSource]
    graph_given: bool
    graph_of: Callable[[Federation], ClientGraph | None]
    folder: RunFolder
    listeners: Sequence[Callback] = ()

    @property
    def min_clients(self) -> int:
        """Fewest clients that must take part."""
        return self.roll_call.min_clients


@dataclass(frozen=True)
class Outcome:
    """What a run ends with.

    names      : of the clients that took part.
    data       : what data this is, in words.
    measured   : of what the metrics tell, in words.
    metrics    : ``<split>/<metric>`` -> ``[clients]``; what is measured of a prediction that is the same for everybody
                 is the same number for every client.
    parameters : of what the server has learned, ``[parameters]``; empty when it learned nothing.
    rounds     : passes over the training samples in which something was learned.
    absent     : why there is nothing of other clients, by name.
    facts      : further entries of ``summary.json``.
    """

    names: tuple[str, ...]
    data: str
    measured: str
    metrics: Mapping[str, Tensor]
    parameters: Tensor
    rounds: int = 1
    absent: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class PhasedStrategy(MethodStrategy[S]):
    """A method overrides ``execute``, and ``check`` where its settings may not fit each other.

    settings : the method's table of the experiment, an instance of ``settings_type``.
    """

    mixes_models = False

    def __init__(self, settings: S, plan: PhasesPlan) -> None:
        self.settings = settings
        self.plan = plan
        self.traffic = Traffic()
        self.nodes = 0
        self.outcome: Outcome | None = None
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """What the run has taken, with what it had taken before it was stopped and a checkpoint says."""
        return time.monotonic() - self._began

    def counters(self) -> State:
        """What the run has taken so far, for a checkpoint."""
        return {"traffic": dict(vars(self.traffic)), "seconds": self.seconds}

    def count_on(self, saved: State) -> None:
        """Go on counting from what a checkpoint says."""
        self.traffic = Traffic(**saved["traffic"])
        self._began -= saved.get("seconds", 0.0)

    def check(self) -> None:
        """Raise ExperimentError for settings that cannot work whatever clients answer, before they are asked."""

    @abstractmethod
    def execute(self, grid: Grid) -> tuple[Outcome, ArrayRecord]:
        """The whole run; returns what it ends with, and what the server has learned as named arrays."""

    def run(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int, timeout: float, evaluate_fn: EvaluateFn | None
    ) -> Result:
        """``execute``, once settings fit each other. There are no rounds to count, and models are the clients' own."""
        self.check()
        self.outcome, arrays = self.execute(grid)
        means = MetricRecord()
        for name, values in self.outcome.metrics.items():
            means[name] = float(values.nanmean())
        return Result(arrays=arrays, evaluate_metrics_serverapp={1: means})

    def ask(
        self, grid: Grid, content: RecordDict, message_type: str, read: Callable[[RecordDict], SomeAnswer]
    ) -> dict[int, SomeAnswer]:
        """One exchange with every node; what ``read`` makes of their answers, by node. See ``ask_everybody``."""
        plan = self.plan
        answers = ask_everybody(
            grid,
            content,
            message_type,
            read,
            plan.roll_call,
            timeout=plan.timeout,
            tolerate=plan.tolerant,
            on_wait=lambda text: log.info("waiting for nodes: %s", text),
            traffic=self.traffic,
        )
        self.nodes = max(self.nodes, sum(bool(answer.clients) for answer in answers.values()))
        return answers

    def check_present(self, absent: Mapping[str, str], present: int, word: str = "client") -> None:
        """Log why there is nothing of clients, and go on with those who are ``present`` if the plan lets them.

        word : what clients are called in this method.

        Raises RunError when clients are absent and must not be, and when too few are left.
        """
        for name, reason in absent.items():
            log.warning("nothing usable from %s %s: %s", word, name, reason)
        reasons = "; ".join(f"{name}: {reason}" for name, reason in absent.items())
        if absent and not self.plan.tolerant:
            raise RunError(
                f"nothing usable from {len(absent)} {word}s ({reasons}). "
                'To go on without them, set [experiment] on-missing = "skip"'
            )
        if present < max(1, self.plan.min_clients):
            raise RunError(
                f"only {present} of at least {self.plan.min_clients} {word}s ([experiment] min-clients) sent anything "
                f"usable ({reasons or 'no node hosts one'})"
            )

    @classmethod
    def steps_of(cls, settings: S, rounds: int) -> int | None:
        """See :class:`MethodStrategy`; nobody knows how many epochs there will be."""
        return None


def check_without_rounds(experiment: Experiment) -> None:
    """Raise ExperimentError for settings that would change a run if it had rounds, of which there are none here."""
    where = f"method '{experiment.method.name}'"
    if experiment.experiment.on_missing == "keep-last":
        raise ExperimentError(
            f'[experiment] on-missing = "keep-last" is not for {where}: a client answers each question once, so that '
            'nothing is there from before; use "fail" or "skip"'
        )
    if experiment.evaluation.targets:
        raise ExperimentError(f"[evaluation] targets are reached in rounds, of which {where} has none: leave them out")
    if experiment.evaluation.compare_peers:
        raise ExperimentError(
            f"[evaluation] compare-peers compares models of one architecture, and the owners of {where} bring their "
            "own: leave it out"
        )
    if experiment.evaluation.monitor is not None:
        raise ExperimentError(
            f"[evaluation] monitor and patience stop rounds, of which {where} has none: set patience in "
            f"[{experiment.method.name}]"
        )
    if experiment.fairness is not None:
        raise ExperimentError(f"[fairness] follows the models of clients, of which {where} has none: leave it out")
