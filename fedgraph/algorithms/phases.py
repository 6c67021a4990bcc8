"""What an algorithm of phases is: exchanges that differ, one after another, and an outcome. No Flower, no nodes.

``phases`` is a generator. It yields what is asked and takes the answers of those who are there; whoever runs it sends,
waits, leaves out who fails, keeps what is to be kept, and writes what comes out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from fedgraph.algorithms.algorithm import State
from fedgraph.data import DataSource, SplitName
from fedgraph.defence import DefenceTable
from fedgraph.graph import ClientGraph
from fedgraph.models import TaskSpec
from fedgraph.support.errors import RunError
from fedgraph.support.settings import Configured, S, Settings

if TYPE_CHECKING:
    from fedgraph.messages import Request  # and Flower


@dataclass(frozen=True)
class Opening:
    """The first exchange: all nodes are asked, and say whom they host. It brings their answers by node id.

    Attributes
    ----------
    request : Request
        What is asked.
    read : callable
        Checks and unpacks an answer, which has ``clients``, ``partition`` and ``data``, and under ``alike`` what the
        answers of all nodes have in common. Raises ReplyError.
    message_type : str
        Flower's type of the message.
    known : collection of str or None
        Clients that may take part; None for all that nodes host.
    lacking : callable
        Says in words what is still lacking in the answers; then all are asked again while other nodes connect.
    """

    request: Request
    read: Callable[[Any], Any]
    message_type: str = "query"
    known: Collection[str] | None = None
    lacking: Callable[[Mapping[int, Any]], str] = lambda answers: ""


@dataclass(frozen=True)
class Identify:
    """The first exchange where all clients have one task: who is there, with how many examples of what.

    It brings what :class:`Identified` says.

    Attributes
    ----------
    expect : tuple of str or None
        Clients to wait for, and no others to take part, where clients may be absent and the run names none.
    """

    expect: tuple[str, ...] | None = None


class Identified(Protocol):
    """Clients in the order of their names, and what they have."""

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, sorted."""

    @property
    def positions(self) -> Mapping[str, int]:
        """Position of each of them."""

    @property
    def hosts(self) -> Mapping[int, Tensor]:
        """By node id the positions of its clients."""

    @property
    def task(self) -> TaskSpec:
        """The task that they have in common."""

    @property
    def num_examples(self) -> Mapping[str, Tensor]:
        """Examples by split, int64 ``[clients]``."""

    @property
    def groups(self) -> tuple[str, ...] | None:
        """The group of each, where the data defines groups."""

    def room(self, split: SplitName, tolerant: bool) -> int:
        """Return how many examples of a split tensors over all of them have room for."""


@dataclass(frozen=True)
class Query:
    """An exchange with those who take part. It brings their answers by name, in the order of the names.

    Who has no usable answer does not take part from then on; where that is not tolerated, the run ends.

    Attributes
    ----------
    request : Request or callable
        What is asked; or a function that returns what a node is asked, given the names of its clients.
    read : callable
        Given these names and the content of the node's reply, returns answers by client, and problems of others.
        Raises ReplyError where none of it can be used.
    message_type : str
        Flower's type of the message.
    step : int or None
        Number of an exchange of many, for messages.
    """

    request: Request | Callable[[tuple[str, ...]], Request]
    read: Callable[[tuple[str, ...], Any], tuple[Mapping[str, Any], Mapping[str, str]]]
    message_type: str = "query"
    step: int | None = None


@dataclass(frozen=True)
class Consult:
    """An exchange with nodes for what they are beside the clients that they host, such as aggregators.

    It brings answers and problems by name; nobody takes part any less for not answering.

    Attributes
    ----------
    nodes : mapping of str to int
        Node ids by name.
    request : callable
        Returns what is asked, given a name.
    read : callable
        Given a name and the content of its reply, returns the answer. Raises ReplyError.
    """

    nodes: Mapping[str, int]
    request: Callable[[str], Request]
    read: Callable[[str, Any], Any]


@dataclass(frozen=True)
class Without:
    """Go on without some clients. It brings the names of the others.

    Attributes
    ----------
    lost : mapping of str to str
        Reasons by client.
    error : Exception or None
        What is raised where clients must not be left out; by default an error that lists the reasons.
    """

    lost: Mapping[str, str]
    error: Exception | None = None


@dataclass(frozen=True)
class Keep:
    """Keep a state, from which a run that is stopped goes on."""

    state: State


@dataclass(frozen=True)
class Recall:
    """Bring back the state that a stopped run has kept; it is empty where there is none, or one of something else.

    Attributes
    ----------
    of : tuple
        What the state depends on, beside the experiment without the keys that may change: JSON values.
    """

    of: tuple[Any, ...] = ()


T = TypeVar("T")
Step = Opening | Identify | Query | Consult | Without | Keep | Recall
Phase = Generator[Step, Any, T]
"""Part of a run: what it asks and keeps, and what it finds."""


class OtherRun(Protocol):
    """A finished run, by its folder."""

    @property
    def path(self) -> Path:
        """The folder."""

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
    """What an algorithm of phases may know of the run that it is part of.

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
        Whether clients that have no usable answer, or contradict the others, may be left out.
    defence : DefenceTable
        The table ``[defence]``.
    graph_given : bool
        Whether the experiment gives a client graph.
    graph_of : callable
        Returns that graph over those who take part, given their ``names`` and ``label_counts``; None without one.
    other_run : callable
        Returns a finished run, given its folder. Raises RunError where there is none.
    on_epoch : callable
        Told of progress: the name of a phase, the epoch or step, and its losses by name.
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
    """What comes out of a run.

    Attributes
    ----------
    names : tuple of str
        Clients that took part.
    measured : str
        Description of what the metrics measure.
    metrics : mapping of str to Tensor
        By ``<split>/<metric>`` the values ``[clients]``; where all clients have the same prediction, they have the same
        value.
    parameters : Tensor
        What the server has learned, ``[parameters]``; empty when it learned nothing.
    rounds : int
        Passes over the training samples in which something was learned.
    facts : mapping
        Further entries of ``summary.json``.
    arrays : mapping of str to Tensor
        What the server has learned, by name.
    files : mapping of str to callable
        By name what writes a file of the run, given its path.
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


class PhasedAlgorithm(Configured[S]):
    """Base class of algorithms of phases, subscripted by their settings: ``class FedNGM(PhasedAlgorithm[...])``.

    Attributes
    ----------
    name, title, needs, paper : str
        A short name, a title, what a run needs beyond data, and where it was published.
    default_client : str or type
        Client class of the engine that answers, by dotted path or, in a notebook, as a class.
    own_models : bool
        Whether its own table describes the models, so that an experiment has no table ``[model]``.
    mixes_models : bool
        Whether all clients need the same architecture.
    expected_failures : dict of str to str
        Checks of ``fedgraph check`` that it fails by design, by name, and the reason.
    defences : tuple of str
        Keys of ``[defence]`` that make sense for it.
    may_change : tuple of str
        Keys of its table that may change in a run that is resumed: nothing that is kept depends on them.
    word : str
        Name for a client in messages, such as "owner".
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    needs: ClassVar[str] = "nothing"
    paper: ClassVar[str] = ""
    default_client: ClassVar[str | type] = ""
    own_models: ClassVar[bool] = False
    mixes_models: ClassVar[bool] = False
    expected_failures: ClassVar[dict[str, str]] = {}
    defences: ClassVar[tuple[str, ...]] = ()
    may_change: ClassVar[tuple[str, ...]] = ()
    word: ClassVar[str] = "client"

    def __init__(self, settings: S) -> None:
        self.settings = settings

    @abstractmethod
    def phases(self, run: PhaseRun) -> Phase[Outcome]:
        """Go through all phases: yield what is asked, take the answers, return the outcome."""

    def check(self, run: PhaseRun) -> None:
        """Raise ExperimentError for settings that cannot work whatever clients answer, before they are asked."""

    def check_enough(self, present: int, least: int) -> None:
        """Raise RunError where more clients than ``least`` have to take part, and only ``present`` do."""

    @classmethod
    def uses_graph(cls, settings: S) -> bool:
        """Return whether results depend on the given client graph."""
        return True

    @classmethod
    def steps_of(cls, settings: S, rounds: int) -> int | None:
        """Return the number of epochs, for a progress bar; None where it is not known."""
        return None
