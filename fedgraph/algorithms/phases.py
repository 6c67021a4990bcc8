"""The interface of a phased algorithm: a sequence of different exchanges, and an outcome; independent of Flower.

``phases`` is a generator that yields requests and receives the answers of the clients present. The engine handles
messages, failing clients, checkpoints and results::

    class Counting(PhasedAlgorithm[CountingSettings]):
        default_client = "counting:CountingClient"

        def phases(self, run):
            answers = yield Opening(Request(), Counted.unpack)
            rows = {name: count for one in answers.values() for name, count in zip(one.clients, one.rows)}
            counts = torch.tensor([rows[name] for name in sorted(rows)])
            return Outcome(tuple(sorted(rows)), "rows of training data", {"train/rows": counts.double()})
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from fedgraph.algorithms.method import Method
from fedgraph.algorithms.steps import (
    Consult,
    Identified,
    Identify,
    Keep,
    Opening,
    Phase,
    Query,
    Recall,
    Step,
    Without,
)
from fedgraph.data import DataSource, SplitName
from fedgraph.defence import DefenceTable
from fedgraph.graph import ClientGraph
from fedgraph.models import TaskSpec
from fedgraph.support.errors import RunError
from fedgraph.support.settings import S, Settings

__all__ = [
    "Consult",
    "Identified",
    "Identify",
    "Keep",
    "Opening",
    "OtherRun",
    "Outcome",
    "Phase",
    "PhaseRun",
    "PhasedAlgorithm",
    "Query",
    "Recall",
    "Step",
    "Without",
]


class OtherRun(Protocol):
    """A finished run, by its folder."""

    @property
    def path(self) -> Path:
        """The folder."""

    @property
    def run(self) -> str:
        """Its name, under which nodes keep their clients' state."""

    @property
    def method_table(self) -> Mapping[str, Any]:
        """The table of its method."""

    def models(self) -> tuple[Mapping[str, Mapping[str, Tensor]], Mapping[str, Tensor] | None] | None:
        """Return its models by client, and the global one; None where it left no models."""

    def check_same_data(self, data: Settings, where: str, but: Sequence[str] = ()) -> None:
        """Raise ExperimentError, beginning with ``where``, when its ``[data]`` differs in more than ``but``."""


def _no_other_run(folder: str) -> OtherRun:
    raise RunError(f"{folder}: there are no other runs here")


@dataclass(frozen=True)
class PhaseRun:
    """The run, as seen by a phased algorithm.

    Attributes
    ----------
    seed : int
        Seed of the run.
    data : Settings
        The table ``[data]``.
    model : mapping
        The table ``[model]``.
    source : callable
        Opens the data set of the experiment in the server's data folder.
    splits : tuple of str
        Splits that are evaluated at the end.
    expect : tuple of str or None
        Clients that the experiment expects by name.
    tolerant : bool
        Whether clients without a usable answer, or that contradict the others, may be left out.
    defence : DefenceTable
        The table ``[defence]``.
    graph_given : bool
        Whether the experiment gives a client graph.
    graph_of : callable
        Returns that graph over the participants, given their ``names`` and ``label_counts``; None without one.
    other_run : callable
        Returns a finished run, given its folder. Raises RunError if there is none.
    on_epoch : callable
        Called with progress: the name of a phase, the epoch or step, and its losses by name.
    """

    seed: int
    data: Settings
    source: Callable[[], DataSource]
    splits: tuple[SplitName, ...] = ("test",)
    expect: tuple[str, ...] | None = None
    tolerant: bool = True
    defence: DefenceTable = field(default_factory=DefenceTable)
    graph_given: bool = False
    graph_of: Callable[[Any], ClientGraph | None] = lambda present: None
    model: Mapping[str, Any] = field(default_factory=dict)
    other_run: Callable[[str], OtherRun] = _no_other_run
    on_epoch: Callable[[str, int, Mapping[str, float]], None] = lambda phase, epoch, losses: None


@dataclass(frozen=True)
class Outcome:
    """The results of a run.

    Attributes
    ----------
    names : tuple of str
        Clients that took part.
    measured : str
        Description of what the metrics were measured on.
    metrics : mapping of str to Tensor
        By ``<split>/<metric>`` the values ``[clients]``; where all clients have the same prediction, they have the same
        value.
    parameters : Tensor
        What the server has learned, ``[parameters]``; empty when it learned nothing.
    rounds : int
        Number of passes over the training samples.
    facts : mapping
        Further entries of ``summary.json``.
    arrays : mapping of str to Tensor
        What the server has learned, by name.
    files : mapping of str to callable
        By name, a function that writes a file of the run, given its path.
    task : TaskSpec or None
        The learning task; None where there is no single one.
    groups : tuple of str or None
        The group of each of ``names``, where the data defines groups.
    """

    names: tuple[str, ...]
    measured: str
    metrics: Mapping[str, Tensor]
    parameters: Tensor = field(default_factory=lambda: torch.zeros(0))
    rounds: int = 1
    facts: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    files: Mapping[str, Callable[[Path], object]] = field(default_factory=dict)
    task: TaskSpec | None = None
    groups: tuple[str, ...] | None = None


class PhasedAlgorithm(Method[S]):
    """Base class of algorithms of phases, subscripted by their settings: ``class FedNGM(PhasedAlgorithm[...])``.

    Attributes
    ----------
    word : str
        Name for a client in messages, such as "owner".
    """

    mixes_models: ClassVar[bool] = False
    word: ClassVar[str] = "client"

    def __init__(self, settings: S) -> None:
        self.settings = settings

    @abstractmethod
    def phases(self, run: PhaseRun) -> Phase[Outcome]:
        """Go through all phases: yield steps, receive their results, return the outcome."""

    def check(self, run: PhaseRun) -> None:
        """Raise ExperimentError for invalid settings, before any request."""

    def check_enough(self, present: int, least: int) -> None:
        """Raise RunError if more clients than ``least`` are required, and only ``present`` take part."""

    @classmethod
    def steps_of(cls, settings: S, rounds: int) -> int | None:
        """Return the number of epochs, for a progress bar; None where it is not known."""
        return None


def has_phases(found: Any) -> bool:
    """Return whether a method has phases instead of rounds."""
    return isinstance(found, type) and issubclass(found, PhasedAlgorithm)
