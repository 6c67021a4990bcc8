"""The engine runs an algorithm of phases: it sends, waits, leaves out who fails, keeps states and writes results."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedgraph.algorithms.phases import Consult, Keep, Opening, PhasedAlgorithm, PhaseRun, Query, Recall, Step, Without
from fedgraph.algorithms.phases import Outcome as Found
from fedgraph.federation import OrderedGrid, Present, data_of, nodes_may_come, nodes_of, split_replies
from fedgraph.messages import Request, to_record
from fedgraph.runs import RunFolder
from fedgraph.strategies.engine.phases import Outcome, PhasedStrategy, PhasesPlan
from fedgraph.support.files import json_digest, load_state, save_state
from fedgraph.support.settings import S

log = logging.getLogger("fedgraph")

_POLL_SECONDS = 0.5


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
        plan = self.plan
        return PhaseRun(
            seed=plan.seed,
            data=plan.data,
            source=plan.source,
            splits=plan.splits,
            tolerant=plan.tolerant,
            defence=plan.defence,
            graph_given=plan.graph_given,
            graph_of=plan.graph_of,
            file_of=lambda run, name: RunFolder.open(run).path / name,
            on_epoch=self._on_epoch,
        )

    def _on_epoch(self, phase: str, epoch: int, losses: Mapping[str, float]) -> None:
        """Write a line to ``metrics.jsonl``, and advance the progress bar."""
        self.plan.folder.append({"round": epoch, "phase": phase, **losses})
        for listener in self.plan.listeners:
            listener.on_epoch(phase, epoch)

    def execute(self, grid: Grid) -> tuple[Outcome, ArrayRecord]:
        """Run the algorithm to its end, and write what comes out to the run folder."""
        phases, told = self.algorithm.phases(self._run), None
        while True:
            try:
                step = phases.send(told)
            except StopIteration as end:
                return self._finished(end.value)
            told = self._done(grid, step)

    def _done(self, grid: Grid, step: Step) -> Any:
        """Do what the algorithm yields, and return what it gets."""
        match step:
            case Opening():
                return self._opened(grid, step)
            case Query():
                return self._answers(grid, step)
            case Consult():
                return self._consulted(grid, step)
            case Without():
                return self._without(step.lost, step.error)
            case Recall():
                return self._recalled(step)
            case Keep():
                self._keep(step.state)

    # ---- exchanges -------------------------------------------------------------------------------------------------

    def _opened(self, grid: Grid, opening: Opening) -> Mapping[int, Any]:
        """Ask all nodes, those too that connect in time, and return their answers by node id."""
        answers = self._asked_until_enough(grid, opening)
        word, known = self.algorithm.word, opening.known
        node_of = nodes_of({node: answer.clients for node, answer in answers.items()}, word)
        self.present = Present.on({name: node for name, node in node_of.items() if known is None or name in known})
        self._data = data_of(answer.data for answer in answers.values() if answer.clients)
        log.info("%d %ss on %d nodes; data: %s", len(self.present.names), word, len(self.present.hosts), self._data)
        self._check_present()
        return answers

    def _asked_until_enough(self, grid: Grid, opening: Opening) -> dict[int, Any]:
        """Ask all nodes, again when another one connects, until nothing is lacking or no more may come."""
        deadline = time.monotonic() + self.plan.roll_call.wait
        while True:
            # Of these exchanges only the last one counts, as for any opening query.
            before, asked = replace(self.traffic), set(grid.get_node_ids())
            content = self._addressed(opening.request).pack()
            answers = self.ask(grid, content, opening.message_type, opening.read)
            lacking = opening.lacking(answers)
            if not lacking:
                return answers
            log.info("waiting for nodes: %s", lacking)
            asked |= set(answers)
            while set(grid.get_node_ids()) <= asked:
                if time.monotonic() > deadline or not nodes_may_come(grid):
                    return answers
                time.sleep(_POLL_SECONDS)
            self.traffic = before

    def _answers(self, grid: Grid, query: Query) -> dict[str, Any]:
        """Run one exchange with all who take part, and return what is read of their answers."""
        hosted = {node: self.present.clients_of(node) for node in self.present.hosts}
        group, where = ("", "") if query.step is None else (str(query.step), f"step {query.step}: ")

        def read(node: int, content: RecordDict) -> tuple[Mapping[str, Any], Mapping[str, str]]:
            return query.read(hosted[node], content)

        messages = [
            Message(self._addressed(query.request, names).pack(), node, query.message_type, group_id=group)
            for node, names in hosted.items()
        ]
        received = OrderedGrid(grid, self.present, self.traffic).send_and_receive(messages, timeout=self.plan.timeout)
        replies, problems = split_replies(received, hosted, read)
        lost = {name: problem for node, problem in problems.items() for name in hosted[node]}
        answers: dict[str, Any] = {}
        for found, unusable in replies.values():
            answers |= found
            lost |= unusable
        return {name: answers[name] for name in self._without(lost, where=where)}

    def _consulted(self, grid: Grid, consult: Consult) -> tuple[dict[str, Any], dict[str, str]]:
        """Run one exchange with nodes for what they are beside their clients; return answers and problems by name."""
        names = {node: name for name, node in consult.nodes.items()}
        requests = {node: self._addressed(consult.request(name)) for node, name in names.items()}
        messages = [Message(request.pack(), node, "query") for node, request in requests.items()]
        ordered = OrderedGrid(grid, Present.on(consult.nodes), self.traffic)
        replies, problems = split_replies(
            ordered.send_and_receive(messages, timeout=self.plan.timeout),
            names,
            lambda node, content: consult.read(names[node], content),
        )
        return (
            {name: replies[node] for node, name in names.items() if node in replies},
            {name: problems[node] for node, name in names.items() if node in problems},
        )

    def _addressed(self, asked: Request | Callable[[tuple[str, ...]], Request], names: tuple[str, ...] = ()) -> Request:
        plan, request = self.plan, asked(names) if callable(asked) else asked
        return replace(request, client=plan.client, experiment=plan.experiment, run=plan.folder.name)

    # ---- who is there ----------------------------------------------------------------------------------------------

    def _without(self, lost: Mapping[str, str], error: Exception | None = None, where: str = "") -> tuple[str, ...]:
        """Go on without some clients, where that is tolerated; return the names of the others."""
        if lost:
            if error is not None and not self.plan.tolerant:
                raise error
            self.present = self.present.without(lost)
            self.absent = {**lost, **self.absent}
            self._check_present(where)
        return self.present.names

    def _check_present(self, where: str = "") -> None:
        """Check the number of clients, after every answer and so before anything is sent next."""
        present = len(self.present.names)
        self.check_present(self.absent, present, self.algorithm.word, where)
        self.algorithm.check_enough(present, self.plan.min_clients)

    # ---- what is kept, and what comes out --------------------------------------------------------------------------

    def _keep(self, state: Mapping[str, Any]) -> None:
        there = {"names": list(self.present.names), "absent": self.absent, "data": self._data}
        kept = {**state, "asked": self._asked, "there": there, **self.counters()}
        save_state(self.plan.folder.checkpoint, kept)

    def _recalled(self, recall: Recall) -> dict[str, Any]:
        """Return what a run that was stopped has kept; nothing when clients or the experiment have changed."""
        path, tables = self.plan.folder.checkpoint, json.loads(self.plan.experiment)
        own = {key: value for key, value in tables["method"].items() if key not in self.algorithm.may_change}
        self._asked = json_digest([self.plan.client, {**tables, "method": own}, *recall.of])
        if not path.exists():
            return {}
        saved = load_state(path)
        there = saved.pop("there", {})
        self.count_on({name: saved.pop(name) for name in self.counters()})
        if saved.pop("asked", None) != self._asked:
            log.info("clients or the experiment have changed since this run was stopped: it begins anew")
            return {}
        if not self.present.names:
            # Nobody is asked again: where clients are now does not matter.
            self.present = Present.on(dict.fromkeys(there["names"], 0))
            self.absent, self._data = dict(there["absent"]), there["data"]
        return saved

    def _finished(self, found: Found) -> tuple[Outcome, ArrayRecord]:
        for name, write in found.files.items():
            write(self.plan.folder.path / name)
        outcome = Outcome(
            found.names, self._data, found.measured, found.metrics, found.parameters, found.rounds, self.absent,
            found.facts, found.task, found.groups,
        )  # fmt: skip
        return outcome, to_record(found.arrays)
