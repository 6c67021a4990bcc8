"""What an algorithm is: state in, exchanges asked for, answers in, state out. No Flower, no nodes, nobody absent.

A Flower strategy runs it with any ClientApp, where a node is a client; the engine of this project runs it with cohorts,
absent clients, defence and checkpoints. Both get the same rows for the same answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedgraph.algorithms.model_rows import Models, check_rows, combined, matrix, written
from fedgraph.data import SplitName
from fedgraph.graph import ClientGraph, weighted_mean
from fedgraph.models import Layout, StackedModel, TaskSpec
from fedgraph.support.errors import RunError
from fedgraph.support.settings import Configured, S
from fedgraph.training import TrainSettings

log = logging.getLogger("fedgraph")

State = dict[str, Any]
"""What an algorithm remembers: tensors and JSON values, with all models under ``models``. It is the checkpoint."""


@dataclass(frozen=True)
class RunFacts:
    """What an algorithm may have to know of the run that it is to be part of, to refuse what does not fit.

    Attributes
    ----------
    rounds : int or None
        Number of rounds; None where it is not known.
    own_splits : tuple of str
        Splits of clients' own data that are measured.
    averages : str
        ``mean``, or the robust average that stands for it.
    keeps_last : bool
        Whether earlier answers of absent clients stand in for those that are missing.
    train : TrainSettings or None
        How clients train; None where they train as they like.
    nodes : int or None
        Number of nodes that host the clients; None where it is not known.
    task : TaskSpec or None
        The task that all clients have in common.
    model : mapping
        The table ``[model]``.
    room : callable or None
        Returns for how many examples of a split tensors over all clients have room.
    """

    rounds: int | None = None
    own_splits: tuple[str, ...] = ()
    averages: str = "mean"
    keeps_last: bool = False
    train: TrainSettings | None = None
    nodes: int | None = None
    task: TaskSpec | None = None
    model: Mapping[str, Any] = field(default_factory=dict)
    room: Callable[[SplitName], int] | None = None


@dataclass(frozen=True)
class Clients:
    """The clients of a run; everything indexed by client follows ``names``.

    Attributes
    ----------
    names : tuple of str
        Their names, sorted.
    num_examples : Tensor
        Their training examples, int64 ``[clients]``; 1 where not yet known.
    layout : Layout
        Names and shapes of the part of a model that is exchanged.
    graph : ClientGraph or None
        The given client graph over ``names``.
    seed : int
        Of the run.
    initial : callable or None
        Returns an initial model ``[parameters]`` that is drawn for a client, given its name; None where there is none.
    facts : RunFacts
        What else is known of the run.
    """

    names: tuple[str, ...]
    num_examples: Tensor
    layout: Layout
    graph: ClientGraph | None = None
    seed: int = 0
    initial: Callable[[str], Tensor] | None = None
    facts: RunFacts = field(default_factory=RunFacts)

    def __len__(self) -> int:
        return len(self.names)

    def drawn_models(self) -> Tensor:
        """Return an initial model of each client's own, ``[clients, parameters]``; see ``initial``."""
        assert self.initial is not None
        return torch.stack([self.initial(name) for name in self.names])


@dataclass(frozen=True)
class Ask:
    """One exchange: what clients get; they train, and answer with the tensors named in ``returns``.

    Attributes
    ----------
    stacked : mapping of str to Tensor
        ``[clients, ...]``, of which every client gets its row; its model is ``parameters``.
    shared : mapping of str to Tensor
        Tensors that all clients get. A model that all get is ``parameters`` here.
    returns : mapping of str to tuple of int
        Shapes of what a client answers, by name; by default its trained model, ``parameters``.
    to : Tensor or None
        Positions of the clients that are asked, int64; None for all.
    models : tuple of str
        Names of those shared tensors that are models, ``[parameters]`` or ``[models, parameters]``.
    further : callable or None
        Given positions of clients, and whether what they got is measured before they train, returns further shared
        tensors for these.
    types : mapping of str to str
        NumPy types of what is answered and is not float32, by name.
    measures : tuple of str
        Splits on which clients measure the models that they get, in place of training; they answer numbers alone.
    means : bool
        Whether the mean of a node's models, weighted by their examples, will do in place of each of them.
    """

    stacked: Mapping[str, Models]
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    returns: Mapping[str, tuple[int, ...]] | None = None
    to: Tensor | None = None
    models: tuple[str, ...] = ()
    further: Callable[[Tensor, bool], Mapping[str, Tensor]] | None = None
    types: Mapping[str, str] = field(default_factory=dict)
    measures: tuple[SplitName, ...] = ()
    means: bool = False

    @property
    def trains(self) -> bool:
        """Whether clients answer models that they have trained."""
        return not self.measures and (self.returns is None or "parameters" in self.returns)


@dataclass(frozen=True)
class Answers:
    """Usable answers of one exchange.

    Attributes
    ----------
    positions : Tensor
        Positions of the clients that answered, int64 ``[present]``, ascending.
    names : tuple of str
        Their names.
    tensors : mapping of str to Tensor
        What they sent, each ``[present, ...]``.
    num_examples : Tensor
        Their training examples, int64 ``[present]``.
    graph : ClientGraph or None
        The given client graph among them.
    fresh : Tensor
        Whose answers are of this exchange, bool ``[present]``; others stand in for clients that are absent.
    robust : callable or None
        Function of rows ``[present, columns]`` and weights ``[targets, present]`` that returns robust averages
        ``[targets, columns]``, where these stand for weighted means.
    metrics : mapping of str to Tensor
        Numbers that clients of the engine report, such as their loss, each float64 ``[present]``.
    means : mapping of tuple of int to Tensor
        Where an exchange asked for means: that of several clients ``[parameters]``, by their positions.
    """

    positions: Tensor
    names: tuple[str, ...]
    tensors: Mapping[str, Models]
    num_examples: Tensor
    graph: ClientGraph | None
    fresh: Tensor
    robust: Callable[[Tensor, Tensor], Tensor] | None = None
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    means: Mapping[tuple[int, ...], Tensor] = field(default_factory=dict)

    @property
    def models(self) -> Models:
        """Trained models, as they came."""
        return self.tensors["parameters"]

    @property
    def parameters(self) -> Tensor:
        """Trained models as one matrix, ``[present, parameters]``."""
        return matrix(self.models)

    def average(self, weights: Tensor) -> Tensor:
        """Return the mean of the models with weights ``[present]``, or the robust average that stands for it."""
        if self.robust is None:
            return combined(self.models, lambda rows: weighted_mean(rows, weights))
        shares = weights.double() if bool((weights > 0).any()) else torch.ones(len(weights))
        return self.robust(self.parameters, shares[None])[0]


Round = Generator[Ask, Answers, State]
"""A round: exchanges that are asked for, their answers, and the state after it."""

Measuring = Generator[Ask, Answers, None]
"""A measurement: exchanges that are asked for, one of them with ``measures``."""


class Algorithm(Configured[S]):
    """Base class of algorithms, subscripted by their settings: ``class SFL(Algorithm[SFLSettings])``.

    Attributes
    ----------
    name, title, needs, paper : str
        A short name, a title, what a run needs beyond data and model, and where it was published.
    default_client : str or type
        Client class of the engine that does its part at the data, by dotted path or, in a notebook, as a class.
    needs_graph : bool
        Whether a client graph has to be given.
    own_models : bool
        Whether its own table describes the models, so that an experiment has no table ``[model]``.
    defences : tuple of str
        Keys of ``[defence]`` that make sense for it.
    may_change : tuple of str
        Keys of its table that may change in a run that is resumed.
    expected_failures : dict of str to str
        Checks of ``fedgraph check`` that it fails by design, by name, and the reason.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    needs: ClassVar[str] = "nothing"
    paper: ClassVar[str] = ""
    default_client: ClassVar[str | type] = "fedgraph.clients.engine.base:CohortClient"
    needs_graph: ClassVar[bool] = False
    own_models: ClassVar[bool] = False
    defences: ClassVar[tuple[str, ...]] = ("warn", "clip", "krum")
    may_change: ClassVar[tuple[str, ...]] = ()
    expected_failures: ClassVar[dict[str, str]] = {}

    def __init__(self, settings: S) -> None:
        self.settings = settings

    # ---- what an algorithm has to say -------------------------------------------------------------------------------

    def init(self, clients: Clients, models: Models) -> State:
        """Return the state before the first round, given a model of each client ``[clients, parameters]``."""
        return {"models": models}

    def aggregate(self, clients: Clients, state: State, answers: Answers) -> Tensor:
        """Return the next models of the clients that have answered, ``[present, parameters]``."""
        raise NotImplementedError(f"{type(self).__name__} needs an aggregate, or a round of its own")

    def round(self, clients: Clients, state: State, number: int) -> Round:
        """Run a round, numbered from 1: yield what is asked, take the answers, return the next state.

        By default all clients train, and go on with what ``aggregate`` returns; those that do not answer keep their
        models. ``state`` is not to be changed, apart from models in :class:`ModelRows`.
        """
        answers = yield self.ask(clients, state)
        rows = self.aggregate(clients, state, answers)
        where = f"{type(self).__name__}.aggregate, in round {number}, returned"
        shape = len(answers.names), state["models"].shape[1]
        check_rows(where, rows, shape, "a row for each client in answers.names", state["models"])
        return {**state, "models": written(state["models"], answers.positions, rows)}

    def ask(self, clients: Clients, state: State) -> Ask:
        """Return the exchange in which the models of a state are measured, and with which most rounds begin."""
        return Ask({"parameters": state["models"]})

    def readout(self, clients: Clients, state: State) -> Tensor | None:
        """Return the global model ``[parameters]``, by default the mean of all; None where there is none."""
        return combined(state["models"], lambda rows: rows.mean(dim=0))

    # ---- how it is run ---------------------------------------------------------------------------------------------

    def begin(self, clients: Clients, state: State, number: int) -> tuple[Round, Ask]:
        """Begin a round, and return it with the first exchange that it asks for.

        Raises RunError, with what to do, when ``round`` is no generator of :class:`Ask`.
        """
        begun = self.round(clients, state, number)
        where = f"{type(self).__name__}.round"
        if not isinstance(begun, Generator):
            raise RunError(
                f"{where} is no generator: have it yield what clients are asked, `answers = yield self.ask(...)`"
            )
        try:
            ask = next(begun)
        except StopIteration:
            raise RunError(f"{where} ended without an exchange: have it yield an Ask, `answers = yield ...`") from None
        if not isinstance(ask, Ask):
            raise RunError(f"{where} yielded {type(ask).__name__} in place of an Ask: see fedgraph.algorithms.Ask")
        return begun, ask

    def after(self, before: State, returned: object) -> State:
        """Return the state that ``round`` has returned. Raises RunError for anything but a state like ``before``."""
        where = f"{type(self).__name__}.round returned"
        if not isinstance(returned, dict):
            raise RunError(
                f"{where} {type(returned).__name__} in place of the next state: end with `return {{**state, ...}}`"
            )
        lacking = sorted(before.keys() - returned.keys())
        if lacking:
            raise RunError(f"{where} a state without {', '.join(lacking)}: end with `return {{**state, ...}}`")
        return returned

    # ---- what it may say --------------------------------------------------------------------------------------------

    def own_model(self, facts: RunFacts) -> StackedModel | None:
        """Return the model that clients train, where it is not that which the table ``[model]`` describes."""
        return None

    def check(self, clients: Clients) -> None:
        """Raise ExperimentError for clients, a graph or a run that do not fit the settings."""

    @classmethod
    def uses_graph(cls, settings: S) -> bool:
        """Return whether results depend on the given client graph."""
        return True

    def starts(self, clients: Clients, state: State, positions: Tensor) -> Tensor:
        """Return the models from which the clients at ``positions`` train, ``[present, parameters]``."""
        return matrix(state["models"], positions)

    def learned_graph(self, clients: Clients, state: State) -> ClientGraph | None:
        """Return the client graph that was learned; None for an algorithm that learns none."""
        return None

    @property
    def measures(self) -> Literal["before", "after", "apart"]:
        """When a round measures models.

        Where they arrive, ``before`` they are trained; ``after`` training, where clients take turns, each in an
        exchange of its own; or ``apart``, by exchanges of :meth:`measuring`.
        """
        return "before"

    def measuring(self, clients: Clients, state: State, number: int, splits: tuple[SplitName, ...]) -> Measuring:
        """Have the models after ``number`` rounds measured on ``splits``, by default in one exchange with all."""
        yield replace(self.ask(clients, state), measures=splits)

    @property
    def aggregates(self) -> bool:
        """Whether answers of different clients meet; else there is nothing for ``[defence]`` to do."""
        return True

    @property
    def moves_after_measuring(self) -> bool:
        """Whether a round changes models after it has measured them."""
        return False

    def restorable(self, clients: Clients) -> bool:
        """Whether models of an earlier round can be put back in whole; False where clients keep a part of them."""
        return True

    def replaced(self, clients: Clients, state: State, models: Tensor) -> State:
        """Return a state that goes on with other models ``[clients, parameters]``, such as the best of a run."""
        return {**state, "models": models}

    def saved(self, state: State) -> State:
        """Return the state as it is saved."""
        return state

    def loaded(self, clients: Clients, state: State) -> State:
        """Return the state of what :meth:`saved` returned."""
        return state

    def facts(self, clients: Clients, state: State) -> dict[str, Any]:
        """Return further entries of ``summary.json``, at the end of a run."""
        return {}

    @property
    def class_name(self) -> str:
        """Name of the class that computes, for messages."""
        return type(self).__name__

    def summary(self) -> None:
        """Log name and settings, as Flower's strategies do."""
        log.info("%s", self.class_name)
        for key, value in self.settings.as_table().items():
            log.info("\t├── %s: %s", key, value)
