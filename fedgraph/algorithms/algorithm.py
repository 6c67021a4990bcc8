"""The interface of an algorithm, independent of Flower, nodes and absent clients.

A Flower strategy runs it with any ClientApp, where a node is a client; the engine runs it with cohorts, absent clients,
defence and checkpoints. Both compute the same rows from the same answers.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from dataclasses import replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from fedgraph.algorithms.exchange import Answers, Ask, Clients, Evaluation, Round, RunFacts, State
from fedgraph.algorithms.method import Method
from fedgraph.algorithms.model_rows import Models, check_rows, combined, matrix, written
from fedgraph.data import SplitName
from fedgraph.graph import ClientGraph
from fedgraph.models import StackedModel
from fedgraph.support.errors import RunError
from fedgraph.support.settings import S

log = logging.getLogger("fedgraph")

_FIRST = 'return {"models": models}, and whatever else is remembered'


class Algorithm(Method[S]):
    """Base class of algorithms, subscripted by their settings: ``class SFL(Algorithm[SFLSettings])``.

    A class whose clients are not predicted one by one by their own models has a static method ``predicted(run, data,
    ...)``, which takes those of the options ``client``, ``windows`` and ``target`` that apply, by name, and returns a
    :class:`fedgraph.data.preprocessing.Predicted`.

    Attributes
    ----------
    needs_graph : bool
        Whether a client graph is required.
    """

    default_client: ClassVar[str | type] = "fedgraph.clients.engine.base:CohortClient"
    defences: ClassVar[tuple[str, ...]] = ("warn", "clip", "krum")
    needs_graph: ClassVar[bool] = False

    def __init__(self, settings: S) -> None:
        self.settings = settings
        if type(self).round is Algorithm.round and type(self).aggregate is Algorithm.aggregate:
            raise RunError(f"{self.class_name} needs an aggregate, or a round of its own: see fedgraph.algorithms")

    # ---- to be implemented ------------------------------------------------------------------------------------------

    def init(self, clients: Clients, models: Models) -> State:
        """Return the state before the first round, given a model of each client ``[clients, parameters]``.

        In a Flower app it is called again when a client joins later, with all clients and the read-out as their model.
        Only the new client's model and rows of tensors ``[clients, ...]`` are used.
        """
        return {"models": models}

    def aggregate(self, clients: Clients, state: State, answers: Answers) -> Tensor:
        """Return the next models of the clients that have answered, ``[present, parameters]``."""
        raise NotImplementedError

    def round(self, clients: Clients, state: State, number: int) -> Round:
        """Run a round, numbered from 1: yield exchanges, receive the answers, return the next state.

        By default all clients train and continue with what ``aggregate`` returns; those that do not answer keep their
        models. ``state`` must not be modified, except models in :class:`ModelRows`.
        """
        answers = yield self.ask(clients, state)
        rows = self.aggregate(clients, state, answers)
        where = f"{self.class_name}.aggregate, in round {number}, returned"
        shape = len(answers.names), state["models"].shape[1]
        check_rows(where, rows, shape, "a row for each client in answers.names", state["models"])
        return {**state, "models": written(state["models"], answers.positions, rows)}

    def ask(self, clients: Clients, state: State) -> Ask:
        """Return the exchange that evaluates the models of a state; most rounds begin with it."""
        return Ask({"parameters": state["models"]})

    def readout(self, clients: Clients, state: State) -> Tensor | None:
        """Return the global model ``[parameters]``, by default the mean of all; None if there is none."""
        return combined(state["models"], lambda rows: rows.mean(dim=0))

    # ---- how it is run ---------------------------------------------------------------------------------------------

    def first_state(self, clients: Clients, models: Models) -> State:
        """Return the result of ``init``. Raises RunError if it is not a dict with ``models``."""
        returned: object = self.init(clients, models)
        where = f"{self.class_name}.init returned"
        if not isinstance(returned, dict):
            raise RunError(f"{where} {type(returned).__name__} in place of a state: {_FIRST}")
        if "models" not in returned:
            raise RunError(f"{where} a state without models: {_FIRST}")
        return returned

    def begin(self, clients: Clients, state: State, number: int) -> tuple[Round, Ask]:
        """Begin a round, and return it with its first exchange. Raises RunError for other than a generator."""
        begun = self.round(clients, state, number)
        where = f"{self.class_name}.round"
        if not isinstance(begun, Generator):
            raise RunError(f"{where} must be a generator that yields the requests, `answers = yield self.ask(...)`")
        try:
            ask = self._proceeding(begun, None, clients.graph)
        except StopIteration:
            raise RunError(f"{where} ended without an exchange: have it yield an Ask, `answers = yield ...`") from None
        if not isinstance(ask, Ask):
            raise RunError(f"{where} yielded {type(ask).__name__} in place of an Ask: see fedgraph.algorithms.Ask")
        return begun, ask

    def proceed(self, begun: Round, answers: Answers) -> Ask:
        """Send the answers of an exchange to a round, and return its next exchange; StopIteration at its end.

        An error of a round that uses a missing client graph gets a note with advice.
        """
        return self._proceeding(begun, answers, answers.graph)

    def _proceeding(self, begun: Round, answers: Answers | None, graph: ClientGraph | None) -> Ask:
        try:
            return begun.send(answers)  # type: ignore[arg-type]
        except AttributeError as error:
            if graph is None and error.obj is None and hasattr(ClientGraph, error.name or ""):
                error.add_note(
                    f"No client graph is given, so answers.graph and clients.graph are None: set needs_graph = True in "
                    f"{self.class_name} to refuse such runs"
                )
            raise

    def after(self, before: State, returned: object) -> State:
        """Return the state that ``round`` has returned. Raises RunError for anything but a state like ``before``."""
        where = f"{self.class_name}.round returned"
        if not isinstance(returned, dict):
            raise RunError(
                f"{where} {type(returned).__name__} in place of the next state: end with `return {{**state, ...}}`"
            )
        lacking, added = sorted(before.keys() - returned.keys()), sorted(returned.keys() - before.keys())
        if lacking:
            raise RunError(f"{where} a state without {', '.join(lacking)}: end with `return {{**state, ...}}`")
        if added:
            raise RunError(f"{where} a state that also has {', '.join(added)}: have init return all that is remembered")
        return returned

    # ---- may be overridden ------------------------------------------------------------------------------------------

    def own_model(self, facts: RunFacts) -> StackedModel | None:
        """Return the model that clients train, if it is not the one of the table ``[model]``."""
        return None

    def check(self, clients: Clients) -> None:
        """Raise ExperimentError for clients, a graph or a run that do not fit the settings."""

    def starts(self, clients: Clients, state: State, positions: Tensor) -> Tensor:
        """Return the models that the clients at ``positions`` start training from, ``[present, parameters]``."""
        return matrix(state["models"], positions)

    def learned_graph(self, clients: Clients, state: State) -> ClientGraph | None:
        """Return the client graph that was learned; None for an algorithm that learns none."""
        return None

    @property
    def evaluates(self) -> Literal["before", "after", "apart"]:
        """When a round evaluates models.

        ``before`` training, as received; ``after`` training, where clients take turns; or ``apart``, by the exchanges
        of :meth:`evaluation`.
        """
        return "before"

    def evaluation(self, clients: Clients, state: State, number: int, splits: tuple[SplitName, ...]) -> Evaluation:
        """Evaluate the models after ``number`` rounds on ``splits``, by default in one exchange with all clients."""
        yield replace(self.ask(clients, state), evaluates=splits)

    @property
    def aggregates(self) -> bool:
        """Whether answers of different clients are combined; else ``[defence]`` has no effect."""
        return True

    @property
    def moves_after_evaluation(self) -> bool:
        """Whether a round changes models after their evaluation."""
        return False

    def restorable(self, clients: Clients) -> bool:
        """Whether models of an earlier round can be restored; False if clients keep a part of them."""
        return True

    def replaced(self, clients: Clients, state: State, models: Tensor) -> State:
        """Return a state that continues with other models ``[clients, parameters]``, such as the best of a run."""
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
