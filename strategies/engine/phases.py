"""Base class of strategies that go through phases with different exchanges, instead of repeating one round."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from torch import Tensor

from fedgraph.algorithms.phases import PhasedAlgorithm
from fedgraph.data import DataSource, SplitName
from fedgraph.defence import DefenceTable
from fedgraph.experiment import Experiment
from fedgraph.federation import Federation, RollCall, SomeAnswer, Traffic, ask_everybody, by_reason
from fedgraph.graph import ClientGraph
from fedgraph.models import TaskSpec
from fedgraph.runs import Callback, RunFolder
from fedgraph.strategies.engine.strategy import EvaluateFn, MethodStrategy
from fedgraph.support.errors import ExperimentError, RunError
from fedgraph.support.files import State
from fedgraph.support.settings import S, Settings
from fedgraph.support.telling import tell

log = logging.getLogger("fedgraph")


@dataclass(frozen=True)
class PhasesPlan:
    """What a strategy of phases needs to know about its run, beside its own settings.

    Attributes
    ----------
    client : str
        Dotted path of the client class that answers the requests.
    experiment : str
        Part of the experiment that nodes get, as JSON.
    data : Settings
        The table ``[data]``.
    model : mapping
        The table ``[model]``; empty for methods that have models of their own.
    seed : int
        Seed of the run.
    splits : tuple of str
        Splits that are evaluated at the end.
    roll_call : RollCall
        Clients that the run waits for.
    tolerant : bool
        Continue without clients that have no usable answer, as long as there are ``min_clients``.
    timeout : float
        Seconds to wait for the answers of nodes.
    source : callable
        Opens the experiment's data set in the server's data folder.
    graph_given : bool
        Whether the experiment gives a client graph.
    graph_of : callable
        Returns the given client graph over the clients of a federation; None when the experiment gives none.
    folder : RunFolder
        Folder for results.
    listeners : sequence of Callback
        Callbacks that follow the progress of the run.
    defence : DefenceTable
        The table ``[defence]``.
    """

    client: str
    experiment: str
    data: Settings
    model: Mapping[str, Any]
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
    defence: DefenceTable = field(default_factory=DefenceTable)

    @property
    def min_clients(self) -> int:
        """Fewest clients that must take part."""
        return self.roll_call.min_clients


@dataclass(frozen=True)
class Outcome:
    """Result of a run.

    Attributes
    ----------
    names : tuple of str
        Clients that took part.
    data : str
        Description of the data.
    measured : str
        Description of what the metrics measure.
    metrics : mapping of str to Tensor
        By ``<split>/<metric>`` the values ``[clients]``; where all clients have the same prediction, they have the same
        value.
    parameters : Tensor
        What the server has learned, ``[parameters]``; empty when it learned nothing.
    rounds : int
        Passes over the training samples in which something was learned.
    absent : mapping of str to str
        Reasons why other clients are missing, by name.
    facts : mapping
        Further entries of ``summary.json``.
    task : TaskSpec or None
        The learning task; None where there is no single one.
    groups : tuple of str or None
        The group of each of ``names``, where the data defines groups.
    """

    names: tuple[str, ...]
    data: str
    measured: str
    metrics: Mapping[str, Tensor]
    parameters: Tensor
    rounds: int = 1
    absent: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    task: TaskSpec | None = None
    groups: tuple[str, ...] | None = None


_SAID_BY_THE_ALGORITHM = (
    *("name", "title", "needs", "paper", "settings_type", "uses_graph", "steps_of", "own_models", "mixes_models"),
    *("defences", "may_change"),
)


class PhasedMethod(MethodStrategy[S]):
    """A method of phases as experiments name it; one that people start in their own Flower apps overrides ``start``.

    Attributes
    ----------
    algorithm_class : type
        Its algorithm, which says the rest.
    """

    algorithm_class: ClassVar[type[PhasedAlgorithm[Any]]]

    def __init_subclass__(cls, **named: Any) -> None:
        """Take over what the algorithm says of itself."""
        super().__init_subclass__(**named)
        if "algorithm_class" in vars(cls):
            for attribute in _SAID_BY_THE_ALGORITHM:
                setattr(cls, attribute, getattr(cls.algorithm_class, attribute))

    def run(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int, timeout: float, evaluate_fn: EvaluateFn | None
    ) -> Result:
        """Raise RunError: only experiments run it."""
        raise RunError(f"{type(self).__name__} has no app of its own: run an experiment with this method")


class PhasedStrategy(MethodStrategy[S]):
    """Base class of strategies that go through phases.

    A method overrides ``execute``, and ``check`` where its settings may not fit each other.

    Parameters
    ----------
    settings : Settings
        The method's table of the experiment, an instance of ``settings_type``.
    plan : PhasesPlan
        What is the same for every strategy.

    Attributes
    ----------
    traffic : Traffic
        Traffic so far.
    nodes : int
        Number of nodes that host clients.
    outcome : Outcome or None
        Result of the run, after its end.
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
        """Seconds that the run has taken, including those before the checkpoint that it continues from."""
        return time.monotonic() - self._began

    def counters(self) -> State:
        """Return traffic and time so far, for a checkpoint."""
        return {"traffic": dict(vars(self.traffic)), "seconds": self.seconds}

    def count_on(self, saved: State) -> None:
        """Count what a checkpoint says beside what was counted since the run went on."""
        counted = vars(self.traffic)
        self.traffic = Traffic(**{name: number + counted[name] for name, number in saved["traffic"].items()})
        self._began -= saved.get("seconds", 0.0)

    def check(self) -> None:
        """Raise ExperimentError for settings that cannot work whatever clients answer, before they are asked."""

    @abstractmethod
    def execute(self, grid: Grid) -> tuple[Outcome, ArrayRecord]:
        """Run all phases; return the outcome, and what the server has learned as named arrays."""

    def run(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int, timeout: float, evaluate_fn: EvaluateFn | None
    ) -> Result:
        """Check the settings and :meth:`execute`; initial arrays, number of rounds and ``evaluate_fn`` are ignored."""
        self.check()
        self.outcome, arrays = self.execute(grid)
        means = MetricRecord()
        for name, values in self.outcome.metrics.items():
            means[name] = float(values.nanmean())
        return Result(arrays=arrays, evaluate_metrics_serverapp={1: means})

    def ask(
        self, grid: Grid, content: RecordDict, message_type: str, read: Callable[[RecordDict], SomeAnswer]
    ) -> dict[int, SomeAnswer]:
        """Run one exchange with all nodes, and return what ``read`` makes of their answers, by node id.

        Raises
        ------
        IdentityError
            As for :func:`fedgraph.federation.ask_everybody`.
        """
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
        hosts = sum(bool(answer.clients) for answer in answers.values())
        self.nodes = max(self.nodes, hosts)
        clients = sum(len(answer.clients) for answer in answers.values())
        tell(f"exchange {self.traffic.exchanges}: answers for {clients} clients from {hosts} nodes")
        return answers

    def check_present(self, absent: Mapping[str, str], present: int, word: str = "client", where: str = "") -> None:
        """Check that the run may continue with those that are ``present``, and log why the others are missing.

        An error has the reasons itself, and only recommends to go on without clients where others are left.

        Parameters
        ----------
        absent : mapping of str to str
            Reasons by client.
        present : int
            Number of other clients.
        word : str, default "client"
            Name for a client in messages, for example "owner".
        where : str, default ""
            What messages begin with.

        Raises
        ------
        RunError
            When clients are missing and the plan is not tolerant, or when fewer than ``min_clients`` are left.
        """
        reasons = "; ".join(by_reason(absent))
        enough = present >= max(1, self.plan.min_clients)
        if absent and not self.plan.tolerant:
            plural = "s" if len(absent) > 1 else ""
            advice = '. To go on without them, set [experiment] on-missing = "skip"' if present else ""
            advice += " and a lower min-clients" if present and not enough else ""
            raise RunError(f"{where}nothing usable from {len(absent)} {word}{plural} ({reasons}){advice}")
        if not enough:
            raise RunError(
                f"{where}only {present} of at least {self.plan.min_clients} {word}s ([experiment] min-clients) sent "
                f"anything usable ({reasons or 'no node hosts one'})"
            )
        for reason in by_reason(absent):
            log.warning("%snothing usable from %s %s", where, word, reason)

    @classmethod
    def steps_of(cls, settings: S, rounds: int) -> int | None:
        """Return None: the number of epochs is not known."""
        return None


def check_without_rounds(experiment: Experiment) -> None:
    """Raise ExperimentError for settings of an experiment that only apply to methods of rounds."""
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
            f"[evaluation] monitor and patience stop rounds, of which {where} has none: leave them out, or set "
            f"patience in [{experiment.method.name}] where that table has it"
        )
    if experiment.fairness is not None:
        raise ExperimentError(f"[fairness] follows the models of clients, of which {where} has none: leave it out")
