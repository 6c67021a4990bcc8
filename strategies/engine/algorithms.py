"""The engine runs an algorithm: cohorts, absent clients, defence, checkpoints and measurements around its exchanges."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fedgraph.algorithms import Algorithm, Answers, Ask, Clients, Round, RunFacts
from fedgraph.algorithms import State as AlgorithmState
from fedgraph.federation import Federation
from fedgraph.graph import ClientGraph
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.base import CohortStrategy, Outgoing
from fedgraph.strategies.engine.loop import check_returned
from fedgraph.strategies.engine.nodes import Nodes
from fedgraph.strategies.engine.replies import Replies
from fedgraph.support.files import State
from fedgraph.support.settings import S

_KEPT_BY_THE_ENGINE = ("absence", "progress", "defence", "frozen")


class AlgorithmStrategy(CohortStrategy[S]):
    """A strategy of rounds whose mathematics is an algorithm's.

    Parameters
    ----------
    algorithm : Algorithm
        The algorithm, with its settings.
    federation : Federation
        Clients of the run.
    plan : RunPlan
        What is the same for every strategy.

    Attributes
    ----------
    clients : Clients
        The clients, as the algorithm sees them.
    algorithm_state : dict of str to Any
        Its state.

    Raises
    ------
    ExperimentError
        When the algorithm needs a client graph and there is none, and for whatever else it refuses.
    """

    def __init__(self, algorithm: Algorithm[S], federation: Federation, plan: RunPlan) -> None:
        self.algorithm, self.needs_graph = algorithm, algorithm.needs_graph
        self.algorithm_state: AlgorithmState = {}
        super().__init__(algorithm.settings, federation, plan)
        shared_test = "test" if json.loads(plan.experiment).get("data", {}).get("test") == "shared" else ""
        facts = RunFacts(
            plan.rounds,
            tuple(split for split in plan.splits if split != shared_test),
            plan.defence.average,
            plan.on_missing == "keep-last",
            plan.train,
        )
        self.clients = Clients(
            federation.names,
            federation.num_examples["train"],
            self.layout,
            federation.graph,
            plan.seed,
            None if plan.initial_model_of is None else self._initial,
            facts,
        )
        algorithm.check(self.clients)
        self.algorithm_state = algorithm.init(self.clients, self.models)
        self._round: Round | None = None
        self._next: AlgorithmState = {}
        self._nodes: Nodes | None = None

    def _initial(self, name: str) -> Tensor:
        return self.exchanged(self.plan.initial_models([name]))[0]

    @property
    def models(self) -> Tensor:
        """Current models, ``[clients, parameters]``."""
        return cast(Tensor, self.algorithm_state["models"])

    @models.setter
    def models(self, models: Tensor) -> None:
        self.algorithm_state = {**self.algorithm_state, "models": models}

    # ---- the exchanges ---------------------------------------------------------------------------------------------

    def initialise(self, initial_arrays: ArrayRecord) -> None:
        """Give every client the initial model, or what the algorithm makes of it."""
        super().initialise(initial_arrays)
        self.algorithm_state = self.algorithm.init(self.clients, self.models)

    def outgoing(self, server_round: int) -> Outgoing:
        """Return what the algorithm sends where models are measured."""
        ask = self.algorithm.ask(self.clients, self.algorithm_state)
        return _tensors(ask.stacked), dict(ask.shared)

    def shared_with(self, positions: Tensor, measures: bool) -> dict[str, Tensor]:
        """Return further tensors that the algorithm sends to the clients at ``positions``."""
        further = self.algorithm.ask(self.clients, self.algorithm_state).further
        return {} if further is None else dict(further(positions, measures))

    def measure(self, server_round: int, nodes: Nodes) -> Replies:
        """Evaluate the current models, in an exchange of its own; what is sent is computed once, not for each node."""
        ask = self.algorithm.ask(self.clients, self.algorithm_state)
        stacked, splits = _tensors(ask.stacked), self.plan.splits
        if ask.further is None:
            return nodes.ask(server_round, stacked, ask.shared, splits)
        return nodes.ask(server_round, stacked, ask.shared, splits, further=ask.further)

    def starts(self, positions: Tensor) -> Tensor:
        """Return the models from which the clients at ``positions`` trained, as the algorithm says."""
        return self.algorithm.starts(self.clients, self.algorithm_state, positions)

    def begin(self, server_round: int) -> Ask:
        """Begin a round of the algorithm, and return the first exchange that it asks for."""
        self._round, ask = self.algorithm.begin(self.clients, self.algorithm_state, server_round)
        return ask

    def train_round(self, server_round: int, nodes: Nodes) -> Replies:
        """Run the first exchange of a round, or all of them where clients take turns."""
        ask = self.begin(server_round)
        assert self._round is not None
        if ask.to is None:
            splits = self.plan.splits_after(server_round - 1) if self.measures == "before" else ()
            self._nodes = nodes
            return self._asked(ask, server_round, nodes, splits)
        turns: list[Replies] = []
        while True:
            turns.append(self._asked(ask, server_round, nodes, self.plan.splits_after(server_round)))
            try:
                ask = self._round.send(turns[-1].answers())
            except StopIteration as end:
                self._round = None
                self._next = self.algorithm.after(self.algorithm_state, end.value)
                return _joined(self.federation, turns)

    def _asked(self, ask: Ask, server_round: int, nodes: Nodes, splits: Sequence[Any]) -> Replies:
        shapes = self.reply_shapes() if ask.returns is None else dict(ask.returns)
        stacked, further = _tensors(ask.stacked), ask.further
        if further is None:
            return nodes.ask(server_round, stacked, ask.shared, splits, shapes, only=ask.to)
        return nodes.ask(server_round, stacked, ask.shared, splits, shapes, further, only=ask.to)

    def aggregate(self, server_round: int, replies: Replies) -> Tensor:
        """Hand the replies in, run the further exchanges that the algorithm asks for, and take its next state."""
        while self._round is not None:
            try:
                ask = self._round.send(self._answers(replies))
            except StopIteration as end:
                self._round = None
                self._next = self.algorithm.after(self.algorithm_state, end.value)
                break
            assert self._nodes is not None
            replies = self.absence.taking_part(server_round, self._asked(ask, server_round, self._nodes, ()))
        models = self._next["models"]
        meaning = "a row for each client, in the order of their names, and a column for each parameter"
        check_returned(
            f"{self.class_name}.round {server_round} returned models", models, tuple(self.models.shape), meaning
        )
        return models if len(replies.names) == len(models) else models[replies.positions]

    def _answers(self, replies: Replies) -> Answers:
        return replies.answers(None if self.plan.defence.average == "mean" else self.defence.averages)

    def write_back(self, replies: Replies, models: Tensor) -> None:
        """Go on with the state after the round."""
        self.algorithm_state = self._next

    # ---- what the algorithm says of itself -------------------------------------------------------------------------

    @property
    def measures(self) -> Literal["before", "after", "apart"]:
        """When a round measures models, as the algorithm says."""
        return self.algorithm.measures

    @property
    def moves_after_measuring(self) -> bool:
        """Whether a round changes models after it has measured them, as the algorithm says."""
        return self.algorithm.moves_after_measuring

    @property
    def restorable(self) -> bool:
        """Whether earlier models can be put back in whole; see :class:`CohortStrategy`."""
        return super().restorable and self.algorithm.restorable(self.clients)

    def replace_models(self, models: Tensor) -> None:
        """Continue with other models, such as the best of the run."""
        self.algorithm_state = self.algorithm.replaced(self.clients, self.algorithm_state, models)

    def global_model(self) -> Tensor | None:
        """Return the read-out, ``[parameters]``; None where there is none."""
        return self.algorithm.readout(self.clients, self.algorithm_state)

    def learned_graph(self) -> ClientGraph | None:
        """Return the client graph that the algorithm learned."""
        return self.algorithm.learned_graph(self.clients, self.algorithm_state)

    def facts(self) -> dict[str, Any]:
        """Return what the algorithm has to say in ``summary.json``."""
        return self.algorithm.facts()

    @property
    def class_name(self) -> str:
        """The algorithm's, for messages."""
        return type(self.algorithm).__name__

    def state(self) -> State:
        """Return what a resumed run needs: the state of the algorithm, and what the engine keeps beside it."""
        return {**super().state(), **self.algorithm.saved(self.algorithm_state)}

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned. Raises KeyError for the state of another algorithm."""
        own = {name: value for name, value in state.items() if name not in _KEPT_BY_THE_ENGINE}
        if own.keys() != self.algorithm_state.keys():
            raise KeyError(f"{sorted(own)} in place of {sorted(self.algorithm_state)}")
        super().load_state(state)
        self.algorithm_state = self.algorithm.loaded(self.clients, own)


def _tensors(stacked: Any) -> dict[str, Tensor]:
    return {name: cast(Tensor, each) for name, each in stacked.items()}


def _joined(federation: Federation, turns: Sequence[Replies]) -> Replies:
    """Join the replies of all turns in the order of the clients' names; what they sent has gone to the algorithm."""
    heard = sorted((turn for turn in turns if turn.names), key=lambda turn: int(turn.positions[0]))
    absent = {name: reason for turn in turns for name, reason in turn.absent.items()}
    names = {name for turn in heard for name in turn.metrics}
    nothing = torch.full((1,), torch.nan, dtype=torch.float64)
    metrics = {name: torch.cat([turn.metrics.get(name, nothing) for turn in heard]) for name in sorted(names)}
    positions = torch.tensor([int(turn.positions[0]) for turn in heard], dtype=torch.int64)
    kept = tuple(name for turn in heard for name in turn.kept)
    return replace(Replies.of(federation, positions, {}, metrics, absent), kept=kept)
