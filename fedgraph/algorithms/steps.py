"""The steps that an algorithm of phases yields (:mod:`fedgraph.algorithms.phases`): exchanges, absence, state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from torch import Tensor

from fedgraph.algorithms.algorithm import State
from fedgraph.data import SplitName
from fedgraph.models import TaskSpec

if TYPE_CHECKING:
    from fedgraph.messages import Request  # and Flower


@dataclass(frozen=True)
class Opening:
    """The first exchange: all nodes are asked which clients they host. Its result is their answers by node id.

    Attributes
    ----------
    read : checks and unpacks an answer, which has ``clients``, ``partition`` and ``data``, and under ``alike`` the part
        that must be the same for all nodes. Raises ReplyError.
    message_type : Flower's type of the message.
    known : clients that may take part; None for all that nodes host.
    lacking : describes what is still missing in the answers; then all are asked again while other nodes connect.
    """

    request: Request
    read: Callable[[Any], Any]
    message_type: str = "query"
    known: Collection[str] | None = None
    lacking: Callable[[Mapping[int, Any]], str] = lambda answers: ""


@dataclass(frozen=True)
class Identify:
    """The first exchange where all clients have one task; returns :class:`Identified`.

    Attributes
    ----------
    expect : the only clients to take part, which are waited for, if absences are allowed and the run names none.
    """

    expect: tuple[str, ...] | None = None


class Identified(Protocol):
    """Clients in the order of their names, and their data."""

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
        """Return the number of examples of a split that tensors over all clients must hold."""


@dataclass(frozen=True)
class Query:
    """An exchange with the participants. Its result is their answers by name, in the order of the names.

    Clients without a usable answer leave the run, or end it if that is not tolerated.

    Attributes
    ----------
    request : the request, or a function that returns it for a node, given the names of its clients.
    read : given these names and the content of the node's reply, returns answers by client, and problems of others.
        Raises ReplyError where none of it can be used.
    message_type : Flower's type of the message.
    step : number of an exchange of many, for messages.
    """

    request: Request | Callable[[tuple[str, ...]], Request]
    read: Callable[[tuple[str, ...], Any], tuple[Mapping[str, Any], Mapping[str, str]]]
    message_type: str = "query"
    step: int | None = None


@dataclass(frozen=True)
class Consult:
    """An exchange with nodes in another role than hosts of clients, such as aggregators.

    Its result is answers and problems by name; nodes that do not answer still take part.

    Attributes
    ----------
    request : returns the request, given a name.
    read : given a name and the content of its reply, returns the answer. Raises ReplyError.
    """

    nodes: Mapping[str, int]
    request: Callable[[str], Request]
    read: Callable[[str, Any], Any]


@dataclass(frozen=True)
class Without:
    """Continue without some clients. Its result is the names of the others.

    Attributes
    ----------
    error : raised if clients must not be left out; by default an error that lists the reasons.
    """

    lost: Mapping[str, str]
    error: Exception | None = None


@dataclass(frozen=True)
class Keep:
    """Checkpoint a state, from which a stopped run resumes."""

    state: State


@dataclass(frozen=True)
class Recall:
    """Restore the checkpoint of a stopped run; empty if there is none, or ``of`` differs.

    Attributes
    ----------
    of : JSON values that the state depends on, in addition to the experiment without the keys that may change.
    """

    of: tuple[Any, ...] = ()


T = TypeVar("T")
Step = Opening | Identify | Query | Consult | Without | Keep | Recall
Phase = Generator[Step, Any, T]
"""Part of a run: a generator of steps that returns a result."""
