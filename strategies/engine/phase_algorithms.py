"""The engine runs an algorithm of phases: it sends, waits, leaves out who fails, keeps states and writes results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedgraph.algorithms.phases import Keep, Opening, PhasedAlgorithm, PhaseRun, Query, Recall, Without
from fedgraph.algorithms.phases import Outcome as Found
from fedgraph.federation import OrderedGrid, Present, data_of, nodes_of, split_replies
from fedgraph.messages import Request, to_record
from fedgraph.strategies.engine.phases import Outcome, PhasedStrategy, PhasesPlan
from fedgraph.support.files import json_digest, load_state, save_state
from fedgraph.support.settings import S

log = logging.getLogger("fedgraph")


class PhaseStrategy(PhasedStrategy[S]):
    """A strategy of phases whose mathematics is an algorithm's.

    Parameters
    ----------
    algorithm : PhasedAlgorithm
        The algorithm, with its settings.
    plan : PhasesPlan
        What is the same for every strategy.

    Attributes
    ----------
    present : Present
        Who takes part.
    absent : dict of str to str
        Reasons why others do not, by name.
    """

    def __init__(self, algorithm: PhasedAlgorithm[S], plan: PhasesPlan) -> None:
        super().__init__(algorithm.settings, plan)
        self.algorithm = algorithm
        self.present = Present((), {})
        self.absent: dict[str, str] = {}
        self._data = ""
        self._asked = ""

    @property
    def class_name(self) -> str:
        """The algorithm's, for messages."""
        return type(self.algorithm).__name__

    def check(self) -> None:
        """Raise ExperimentError for settings that cannot work, as the algorithm says."""
        self.algorithm.check(self._run)

    @property
    def _run(self) -> PhaseRun:
        return PhaseRun(self.plan.seed, self.plan.data, self.plan.source)

    def execute(self, grid: Grid) -> tuple[Outcome, ArrayRecord]:
        """Run the algorithm to its end, and write what comes out to the run folder."""
        phases, told = self.algorithm.phases(self._run), None
        while True:
            try:
                step = phases.send(told)
            except StopIteration as end:
                return self._finished(end.value)
            told = self._done(grid, step)

    def _done(self, grid: Grid, step: Opening | Query | Without | Keep | Recall) -> Any:
        """Do what the algorithm yields, and return what it gets."""
        match step:
            case Opening():
                return self._opened(grid, step)
            case Query():
                return self._answers(grid, step)
            case Without():
                return self._without(step.lost, step.error)
            case Recall():
                return self._recalled(step)
            case Keep():
                save_state(self.plan.folder.checkpoint, {**step.state, "asked": self._asked, **self.counters()})

    # ---- exchanges -------------------------------------------------------------------------------------------------

    def _opened(self, grid: Grid, opening: Opening) -> Mapping[int, Any]:
        """Ask all nodes, those too that connect in time, and return their answers by node id."""
        answers = self.ask(grid, self._addressed(opening.request).pack(), opening.message_type, opening.read)
        self.present = Present.on(nodes_of({node: answer.clients for node, answer in answers.items()}))
        self._data = data_of(answer.data for answer in answers.values() if answer.clients)
        log.info("%d clients on %d nodes; data: %s", len(self.present.names), len(self.present.hosts), self._data)
        self._check_present()
        return answers

    def _answers(self, grid: Grid, query: Query) -> dict[str, Any]:
        """Run one exchange with all who take part, and return what is read of their answers."""
        hosted = {node: self.present.clients_of(node) for node in self.present.hosts}

        def read(node: int, content: RecordDict) -> tuple[Mapping[str, Any], Mapping[str, str]]:
            return query.read(hosted[node], content)

        messages = [
            Message(self._addressed(query.request, names).pack(), node, query.message_type)
            for node, names in hosted.items()
        ]
        received = OrderedGrid(grid, self.present, self.traffic).send_and_receive(messages, timeout=self.plan.timeout)
        replies, problems = split_replies(received, hosted, read)
        lost = {name: problem for node, problem in problems.items() for name in hosted[node]}
        answers: dict[str, Any] = {}
        for found, unusable in replies.values():
            answers |= found
            lost |= unusable
        return {name: answers[name] for name in self._without(lost)}

    def _addressed(self, asked: Request | Callable[[tuple[str, ...]], Request], names: tuple[str, ...] = ()) -> Request:
        plan, request = self.plan, asked(names) if callable(asked) else asked
        return replace(request, client=plan.client, experiment=plan.experiment, run=plan.folder.name)

    # ---- who is there ----------------------------------------------------------------------------------------------

    def _without(self, lost: Mapping[str, str], error: Exception | None = None) -> tuple[str, ...]:
        """Go on without some clients, where that is tolerated; return the names of the others."""
        if lost:
            if error is not None and not self.plan.tolerant:
                raise error
            self.present = self.present.without(lost)
            self.absent |= lost
            self._check_present()
        return self.present.names

    def _check_present(self) -> None:
        """Check the number of clients, after every answer and so before anything is sent next."""
        present = len(self.present.names)
        self.check_present(self.absent, present)
        self.algorithm.check_enough(present, self.plan.min_clients)

    # ---- what is kept, and what comes out --------------------------------------------------------------------------

    def _recalled(self, recall: Recall) -> dict[str, Any]:
        """Return what a run that was stopped has kept; nothing when clients or the experiment have changed."""
        path = self.plan.folder.checkpoint
        self._asked = json_digest([self.plan.client, self.plan.experiment, *recall.of])
        if not path.exists():
            return {}
        saved = load_state(path)
        if saved.pop("asked", None) != self._asked:
            log.info("clients or the experiment have changed since this run was stopped: it begins anew")
            return {}
        self.count_on({name: saved.pop(name) for name in self.counters()})
        return saved

    def _finished(self, found: Found) -> tuple[Outcome, ArrayRecord]:
        for name, write in found.files.items():
            write(self.plan.folder.path / name)
        outcome = Outcome(
            found.names, self._data, found.measured, found.metrics, found.parameters, found.rounds, self.absent,
            found.facts, found.task, found.groups,
        )  # fmt: skip
        return outcome, to_record(found.arrays)
