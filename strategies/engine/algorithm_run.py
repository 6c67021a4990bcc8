"""An algorithm in a run: its exchanges with the nodes, and the state of the engine.

Each exchange handles absent clients, ``[defence]`` and evaluation. :mod:`fedgraph.strategies.engine.loop` is the loop
over rounds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from fedgraph.algorithms import Algorithm, Answers, Ask, Clients, RunFacts, check_models, check_state, own_splits
from fedgraph.data import SplitName
from fedgraph.federation import Federation
from fedgraph.graph import ClientGraph
from fedgraph.models import PersonalLayers, PersonalLayersSettings, finite_rows, initial_model
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.absence import AbsencePolicy
from fedgraph.strategies.engine.defence import Defence
from fedgraph.strategies.engine.kept_states import KeptStates
from fedgraph.strategies.engine.nodes import Nodes
from fedgraph.strategies.engine.replies import Reader, Replies, joined
from fedgraph.support.errors import ExperimentError, RunError, quoted
from fedgraph.support.files import State

_KEPT_BY_THE_ENGINE = ("absence", "progress", "defence", "frozen", "kept-states")


@dataclass
class Progress:
    """Progress of a run.

    Attributes
    ----------
    rounds : number of finished rounds.
    measured : last metrics by name, float64 ``[clients]``, NaN for absent clients.
    after : number of rounds before ``measured``.
    kept : clients whose nodes keep the evaluated models, because the server has others.
    kept_after : the round under which they keep them; that of restored models is before ``after``.
    broken : clients whose models had non-finite outputs, with the first such round.
    """

    rounds: int = 0
    measured: dict[str, Tensor] = field(default_factory=dict)
    after: int | None = None
    kept: list[str] = field(default_factory=list)
    kept_after: int | None = None
    broken: dict[str, int] = field(default_factory=dict)

    def state(self) -> State:
        """Return the progress as a state, for saving."""
        own = {"kept": list(self.kept), "kept_after": self.kept_after, "broken": dict(self.broken)}
        return {"rounds": self.rounds, "measured": dict(self.measured), "after": self.after, **own}

    @classmethod
    def of_state(cls, state: State) -> Progress:
        """Restore what :meth:`state` returned."""
        return cls(**state)


class AlgorithmRun:
    """Runs the rounds of an algorithm, with a model per client.

    Raises ExperimentError when the required client graph is missing, and for settings that the algorithm refuses.

    Parameters
    ----------
    algorithm : the algorithm, with its settings.
    plan : algorithm-independent settings.
    initial : the initial model, by the names of its layers.

    Attributes
    ----------
    clients : the clients, as the algorithm sees them.
    layout : names and shapes of the exchanged part of a model, without personal layers and frozen layers, which are
        sent once.
    absence : handles clients without a usable reply.
    defence : checks the answers of clients before aggregation.
    progress : rounds so far, and the last metrics.
    states : what nodes keep for their clients.
    """

    def __init__(
        self, algorithm: Algorithm[Any], federation: Federation, plan: RunPlan, initial: Mapping[str, Tensor]
    ) -> None:
        if algorithm.needs_graph and federation.graph is None:
            raise ExperimentError(
                f'{algorithm.class_name} needs a client graph: give the experiment [graph] source = "data", '
                '"labels", "complete" or "file"'
            )
        self.algorithm, self.federation, self.plan = algorithm, federation, plan
        settings, facts = algorithm.settings, _facts(federation, plan)
        personal = settings.personal_layers if isinstance(settings, PersonalLayersSettings) else ()
        layers, own = PersonalLayers.of(plan.layout, personal, plan.frozen is not None), algorithm.own_model(facts)
        self.layout, draw = layers.shared if own is None else own.layout, plan.initial_model_of
        self.clients = Clients(
            federation.names,
            federation.weights,
            self.layout,
            federation.graph,
            plan.seed,
            None if draw is None else lambda name: layers.split(draw(name)[None])[0][0],
            facts,
        )
        algorithm.check(self.clients)
        self.absence = AbsencePolicy(federation, plan)
        self.progress, self.states = Progress(), KeptStates(plan.attempts)
        self.defence = Defence(plan.defence, federation, self.layout.num_trainable)
        row = self.layout.row(initial) if own is None else initial_model(own, plan.seed)
        self.state = algorithm.first_state(self.clients, row.repeat(len(self.clients), 1))
        check_state(f"{algorithm.class_name}.init returned", algorithm.saved(self.state))
        taken = sorted(self.state.keys() & set(_KEPT_BY_THE_ENGINE))
        if taken:
            raise RunError(
                f"{algorithm.class_name}.init returned a state with the reserved name '{taken[0]}': use another name"
            )

    @property
    def models(self) -> Tensor:
        """Current models, ``[clients, parameters]``."""
        return cast(Tensor, self.state["models"])

    def replace_models(self, models: Tensor) -> None:
        """Continue with other models ``[clients, parameters]``, such as the best ones of the run."""
        self.state = self.algorithm.replaced(self.clients, self.state, models)

    # ---- exchanges ---------------------------------------------------------------------------------------------------

    def round(self, number: int, nodes: Nodes) -> Iterator[Replies]:
        """Run a round, which updates ``state`` at its end.

        Yields the reports of clients in each training exchange, before aggregation. Received models are evaluated in
        the first exchange; if clients take turns, trained models in each.
        """
        algorithm, plan, reports = self.algorithm, self.plan, list[Replies]()
        in_turns = algorithm.evaluates == "after"
        splits = {"before": plan.splits_after(number - 1), "after": plan.splits_after(number), "apart": ()}
        begun, ask = algorithm.begin(self.clients, self.state, number)
        while True:
            measured = splits[algorithm.evaluates] if ask.trains and (in_turns or not reports) else ()
            replies = self.exchange(nodes, number, ask, measured)
            if ask.trains:
                reports.append(replace(replies, tensors={}, means={}))
                yield reports[-1]
            # In turns, an absent client keeps its model.
            answers = replies.answers() if in_turns else self._answers(number, ask, replies)
            try:
                ask = algorithm.proceed(begun, answers)
            except StopIteration as end:
                after = algorithm.after(self.state, end.value)
                break
        if in_turns:
            self.absence.enforce(number, joined(self.federation, reports))
        self._check_models(number, after["models"])
        check_state(f"{algorithm.class_name}.round, in round {number}, returned", algorithm.saved(after))
        self.state = after

    def measure(self, number: int, nodes: Nodes) -> Replies:
        """Evaluate the current models after ``number`` rounds."""
        measuring = self.algorithm.evaluation(self.clients, self.state, number, self.plan.splits)
        ask, measured = next(measuring), Replies.of(self.federation, torch.zeros(0, dtype=torch.int64), {}, {}, {})
        while True:
            replies = self.exchange(nodes, number, ask)
            if ask.evaluates:
                measured = replace(replies, not_asked=self._not_drawn(ask))
            else:
                self.absence.enforce(number, replies)
            try:
                ask = measuring.send(replies.answers())
            except StopIteration:
                return measured

    def exchange(
        self,
        nodes: Nodes,
        number: int,
        ask: Ask,
        splits: Sequence[SplitName] = (),
        predictions: Reader | None = None,
    ) -> Replies:
        """Run one exchange; sent models are evaluated on ``splits``, or predict, see :meth:`Nodes.ask`."""
        shapes = {"parameters": (self.layout.num_parameters,)} if ask.returns is None else dict(ask.returns)
        stacked = {name: cast(Tensor, each) for name, each in ask.stacked.items()}
        server_round = number if ask.number is None else ask.number
        replies = nodes.ask(
            server_round,
            stacked,
            ask.shared,
            ask.evaluates or splits,
            None if ask.evaluates or predictions is not None else shapes,
            ask.further,
            predictions,
            ask.types,
            ask.to,
            ask.means,
        )
        self.states.update(server_round, replies)
        return replies

    def _answers(self, number: int, ask: Ask, replies: Replies) -> Answers:
        """Return the answers for the algorithm from usable or earlier replies, after the defence."""
        if not ask.trains:
            self.absence.enforce(number, replies)
            return replies.answers()
        replies = self.absence.taking_part(number, replies)
        if self.algorithm.aggregates:
            starts = self.algorithm.starts(self.clients, self.state, replies.positions)
            replies = self.defence.replies(number, replies, starts)
        return replies.answers(None if self.plan.defence.average == "mean" else self.defence.averages)

    def _not_drawn(self, ask: Ask) -> dict[str, str]:
        """Return the clients that are not evaluated, as a Flower strategy has not drawn them, and why."""
        requested = set(range(len(self.clients)) if ask.to is None else ask.to.tolist())
        others = [name for place, name in enumerate(self.clients.names) if place not in requested]
        return dict.fromkeys(others, f"not drawn by {self.algorithm.class_name} (fraction-evaluate)")

    def _check_models(self, number: int, models: Tensor) -> None:
        """Raise RunError if the algorithm did not make a finite model for each client."""
        where = f"{self.algorithm.class_name}.round, in round {number}, returned"
        check_models(f"{where} models", models, self.models)
        names = self.federation.names
        bad = [name for name, fine in zip(names, finite_rows(models).tolist(), strict=True) if not fine]
        if bad:
            raise RunError(
                f"{where} NaN or infinite values for {quoted(bad)} from finite answers: look for a division by zero, "
                "or for parameters that grow without bound ([train] learning-rate, clip-norm)"
            )

    # ---- results -----------------------------------------------------------------------------------------------------

    def readout(self) -> Tensor | None:
        """Return the global model ``[parameters]``, or None."""
        return self.algorithm.readout(self.clients, self.state)

    def learned_graph(self) -> ClientGraph | None:
        """Return the learned client graph, or None."""
        return self.algorithm.learned_graph(self.clients, self.state)

    def facts(self) -> dict[str, Any]:
        """Return the algorithm's part of ``summary.json``."""
        return self.algorithm.facts(self.clients, self.state)

    def with_frozen(self, models: Tensor) -> Tensor:
        """Return models ``[clients, columns]`` with the shared frozen layers."""
        frozen = self.plan.frozen
        if frozen is None:
            return models
        whole = self.plan.layout.part({*self.layout.names, *frozen.layout.names})
        parts = PersonalLayers(whole, self.layout, whole.part(()), frozen.layout)
        return parts.join(models, models[:, :0], frozen.row)

    @property
    def restorable(self) -> bool:
        """Whether ``replace_models`` restores complete models; False if clients keep a part of them."""
        frozen = () if self.plan.frozen is None else self.plan.frozen.layout.names
        whole = len(self.layout.names) + len(frozen) == len(self.plan.layout.names)
        return whole and self.algorithm.restorable(self.clients)

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def saved(self) -> State:
        """Return the state of algorithm and engine for a resumed run."""
        return {
            **self.algorithm.saved(self.state),
            "absence": self.absence.state(),
            "progress": self.progress.state(),
            "defence": self.defence.state(),
            "kept-states": self.states.state(),
            "frozen": "" if self.plan.frozen is None else self.plan.frozen.fingerprint,
        }

    def load(self, saved: State) -> None:
        """Restore what :meth:`saved` returned.

        Raises KeyError for the state of another algorithm, and RunError for other frozen layers.
        """
        own = {name: value for name, value in saved.items() if name not in _KEPT_BY_THE_ENGINE}
        expected = self.algorithm.saved(self.state)
        if own.keys() != expected.keys():
            raise KeyError(f"{sorted(own)} instead of {sorted(expected)}")
        self.absence.load_state(saved["absence"])
        self.progress = Progress.of_state(saved["progress"])
        self.defence.load_state(saved.get("defence", {}))
        self.states.load_state(saved.get("kept-states", {}))
        if saved.get("frozen", "") != ("" if self.plan.frozen is None else self.plan.frozen.fingerprint):
            raise RunError(
                "the frozen layers of [model] have changed since the run was stopped: make its constructor set the "
                "same values (such as those of a file), or start a new run"
            )
        self.state = self.algorithm.loaded(self.clients, own)


def _facts(federation: Federation, plan: RunPlan) -> RunFacts:
    experiment = json.loads(plan.experiment)
    return RunFacts(
        rounds=plan.rounds,
        own_splits=own_splits(experiment.get("data", {}), plan.splits),
        averages=plan.defence.average,
        keeps_last=plan.on_missing == "keep-last",
        train=plan.train,
        nodes=len(federation.hosts),
        task=federation.task,
        model=experiment.get("model", {}),
        room=lambda split: federation.room(split, plan.on_missing != "fail"),
    )
