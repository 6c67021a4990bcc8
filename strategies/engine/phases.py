"""Engine for algorithms of phases: exchanges, failing clients, states and results."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedgraph.algorithms.phases import (
    Consult,
    Identify,
    Keep,
    Opening,
    Outcome,
    PhasedAlgorithm,
    PhaseRun,
    Query,
    Recall,
    Step,
    Without,
)
from fedgraph.federation import (
    Federation,
    OrderedGrid,
    Present,
    RollCall,
    Traffic,
    ask_all_nodes,
    by_reason,
    data_of,
    identify,
    nodes_may_come,
    nodes_of,
    split_replies,
)
from fedgraph.messages import Request
from fedgraph.runs import RunFolder
from fedgraph.support.errors import RunError
from fedgraph.support.files import json_digest, save_state
from fedgraph.support.status import report_status

log = logging.getLogger("fedgraph")

_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class PhasesPlan:
    """Settings of a run of phases: nodes and results.

    Attributes
    ----------
    client : dotted path of the client class that answers the requests.
    experiment : the nodes' part of the experiment, as JSON.
    roll_call : clients that the run waits for.
    timeout : seconds to wait for the answers of nodes.
    run : information for the algorithm.
    """

    client: str
    experiment: str
    roll_call: RollCall
    timeout: float
    folder: RunFolder
    run: PhaseRun


class PhasesRun:
    """Runs an algorithm of phases over nodes.

    Parameters
    ----------
    algorithm : the algorithm, with its settings.

    Attributes
    ----------
    absent : reasons for absence, by name.
    nodes : number of nodes that host clients.
    """

    def __init__(self, algorithm: PhasedAlgorithm[Any], plan: PhasesPlan) -> None:
        self.algorithm, self.plan = algorithm, plan
        self.present, self.data, self.nodes = Present((), {}), "", 0
        self.absent: dict[str, str] = {}
        self.traffic = Traffic()
        self._began = time.monotonic()
        self._asked = ""

    @property
    def class_name(self) -> str:
        """Name of the algorithm, for messages."""
        return type(self.algorithm).__name__

    @property
    def seconds(self) -> float:
        """Seconds of the run, including those before the checkpoint of a resumed run."""
        return time.monotonic() - self._began

    def run(self, grid: Grid) -> Outcome:
        """Run the algorithm, write its results to the run folder, and return them.

        Raises FedgraphError for missing or too few clients, and errors of the algorithm.
        """
        self.algorithm.check(self.plan.run)
        log.info("%s", self.class_name)
        for key, value in self.algorithm.settings.as_table().items():
            log.info("\t├── %s: %s", key, value)
        outcome = self._ended(grid)
        for name, write in outcome.files.items():
            write(self.plan.folder.path / name)
        return outcome

    def _ended(self, grid: Grid) -> Outcome:
        phases, result, where = self.algorithm.phases(self.plan.run), None, f"{self.class_name}.phases"
        if not isinstance(phases, Generator):
            raise RunError(f"{where} must be a generator that yields the requests, `answers = yield Opening(...)`")
        while True:
            try:
                step = phases.send(result)
            except StopIteration as end:
                if not isinstance(end.value, Outcome):
                    raise RunError(f"{where} returned {type(end.value).__name__} in place of an Outcome") from None
                return end.value
            result = self._done(grid, step)

    def _done(self, grid: Grid, step: Step) -> Any:
        """Execute a step of the algorithm, and return its result."""
        match step:
            case Opening():
                return self._opened(grid, step)
            case Identify():
                return self._identified(grid, step)
            case Query():
                return self._answers(grid, step)
            case Consult():
                return self._consulted(grid, step)
            case Without():
                return self._without(step.lost, step.error)
            case Recall():
                return self._recalled(step)
            case Keep():
                return self._keep(step.state)
            case _:
                steps = ", ".join(kind.__name__ for kind in get_args(Step))
                raise RunError(f"{self.class_name}.phases yielded {type(step).__name__} in place of one of {steps}")

    # ---- exchanges -------------------------------------------------------------------------------------------------

    def _opened(self, grid: Grid, opening: Opening) -> Mapping[int, Any]:
        """Query all nodes, including those that connect within the timeout; return answers by node id."""
        answers = self._asked_until_enough(grid, opening)
        word, known = self.algorithm.word, opening.known
        node_of = nodes_of({node: answer.clients for node, answer in answers.items()}, word)
        self.present = Present.on({name: node for name, node in node_of.items() if known is None or name in known})
        self.data = data_of(answer.data for answer in answers.values() if answer.clients)
        self.nodes = sum(bool(answer.clients) for answer in answers.values())
        log.info("%d %ss on %d nodes; data: %s", len(self.present.names), word, self.nodes, self.data)
        self._check_present({})
        count = len(self.present.names)
        report_status(f"exchange {self.traffic.exchanges}: answers for {count} clients from {self.nodes} nodes")
        return answers

    def _identified(self, grid: Grid, step: Identify) -> Federation:
        """Query all nodes for their clients and data."""
        plan = self.plan
        roll_call, notes = plan.roll_call, plan.folder.notes
        if plan.run.tolerant and roll_call.expect is None:
            # The algorithm itself tells who is missing of those that it expects.
            roll_call, notes = replace(roll_call, expect=step.expect), notes if step.expect is None else []
        federation = identify(
            grid, plan.client, plan.experiment, roll_call, False,
            on_wait=_waiting, traffic=self.traffic, tolerate=plan.run.tolerant, notes=notes,
        )  # fmt: skip
        self.present, self.data, self.nodes = federation, federation.data, len(federation.hosts)
        log.info("%d clients on %d nodes; data: %s", len(federation.names), self.nodes, federation.data)
        return federation

    def _asked_until_enough(self, grid: Grid, opening: Opening) -> dict[int, Any]:
        """Query all nodes, again when another one connects, until all clients are present or no more may connect."""
        deadline, notes = time.monotonic() + self.plan.roll_call.wait, self.plan.folder.notes
        while True:
            # Only the last of these exchanges counts, as for any opening query.
            before, noted, requested = replace(self.traffic), len(notes), set(grid.get_node_ids())
            content = self._addressed(opening.request).pack()
            answers = ask_all_nodes(
                grid,
                content,
                opening.message_type,
                opening.read,
                self.plan.roll_call,
                timeout=self.plan.timeout,
                tolerate=self.plan.run.tolerant,
                on_wait=_waiting,
                traffic=self.traffic,
                notes=notes,
            )
            lacking = opening.lacking(answers)
            if not lacking:
                return answers
            _waiting(lacking)
            requested |= set(answers)
            while set(grid.get_node_ids()) <= requested:
                if time.monotonic() > deadline or not nodes_may_come(grid):
                    return answers
                time.sleep(_POLL_SECONDS)
            self.traffic = before
            del notes[noted:]

    def _answers(self, grid: Grid, query: Query) -> dict[str, Any]:
        """Run one exchange with all participants, and return their answers."""
        hosted = {node: self.present.clients_of(node) for node in self.present.hosts}
        group, where = ("", "") if query.step is None else (str(query.step), f"step {query.step}: ")

        def read(node: int, content: RecordDict) -> tuple[Mapping[str, Any], Mapping[str, str]]:
            return query.read(hosted[node], content)

        messages = [
            Message(self._addressed(query.request, names).pack(), node, query.message_type, group_id=group)
            for node, names in hosted.items()
        ]
        received = OrderedGrid(grid, self.present, self.traffic).send_and_receive(messages, timeout=self.plan.timeout)
        replies, problems = split_replies(received, hosted, read, self.plan.timeout)
        lost = {name: problem for node, problem in problems.items() for name in hosted[node]}
        answers: dict[str, Any] = {}
        for found, unusable in replies.values():
            answers |= found
            lost |= unusable
        return {name: answers[name] for name in self._without(lost, where=where)}

    def _consulted(self, grid: Grid, consult: Consult) -> tuple[dict[str, Any], dict[str, str]]:
        """Run one exchange with nodes in a role other than hosts; return answers and problems by name."""
        names = {node: name for name, node in consult.nodes.items()}
        requests = {node: self._addressed(consult.request(name)) for node, name in names.items()}
        messages = [Message(request.pack(), node, "query") for node, request in requests.items()]
        ordered = OrderedGrid(grid, Present.on(consult.nodes), self.traffic)
        replies, problems = split_replies(
            ordered.send_and_receive(messages, timeout=self.plan.timeout),
            names,
            lambda node, content: consult.read(names[node], content),
            self.plan.timeout,
        )
        return (
            {name: replies[node] for node, name in names.items() if node in replies},
            {name: problems[node] for node, name in names.items() if node in problems},
        )

    def _addressed(self, asked: Request | Callable[[tuple[str, ...]], Request], names: tuple[str, ...] = ()) -> Request:
        plan, request = self.plan, asked(names) if callable(asked) else asked
        if not isinstance(request, Request):
            raise RunError(
                f"{self.class_name}.phases must send an instance of fedgraph.messages.Request or a subclass; got "
                f"{type(request).__name__}"
            )
        return replace(request, client=plan.client, experiment=plan.experiment, run=request.run or plan.folder.run)

    # ---- participants ----------------------------------------------------------------------------------------------

    def _without(self, lost: Mapping[str, str], error: Exception | None = None, where: str = "") -> tuple[str, ...]:
        """Continue without some clients, if allowed; return the names of the others."""
        if lost:
            if error is not None and not self.plan.run.tolerant:
                raise error
            self.present = self.present.without(lost)
            new = {name: reason for name, reason in lost.items() if name not in self.absent}
            self.absent |= new
            self._check_present(new, where)
        return self.present.names

    def _check_present(self, lost: Mapping[str, str], where: str = "") -> None:
        """Check that the run may continue, and log the reasons of newly lost clients.

        An error contains the reasons, and recommends to continue without clients only if others remain.
        """
        word, present, least = self.algorithm.word, len(self.present.names), self.plan.roll_call.min_clients
        reasons, enough = "; ".join(by_reason(self.absent)), present >= max(1, least)
        if self.absent and not self.plan.run.tolerant:
            plural = "s" if len(self.absent) > 1 else ""
            advice = '. To go on without them, set [experiment] on-missing = "skip"' if present else ""
            advice += " and a lower min-clients" if present and not enough else ""
            raise RunError(f"{where}nothing usable from {len(self.absent)} {word}{plural} ({reasons}){advice}")
        if not enough:
            raise RunError(
                f"{where}only {present} of at least {least} {word}s ([experiment] min-clients) sent anything usable "
                f"({reasons or 'no node hosts one'})"
            )
        for reason in by_reason(lost):
            log.warning("%snothing usable from %s %s", where, word, reason)
        self.algorithm.check_enough(present, least)

    # ---- state and results -----------------------------------------------------------------------------------------

    def _keep(self, state: Mapping[str, Any]) -> None:
        present = {"names": list(self.present.names), "absent": self.absent, "data": self.data}
        counters = {"traffic": dict(vars(self.traffic)), "seconds": self.seconds}
        save_state(self.plan.folder.checkpoint, {**state, "asked": self._asked, "there": present, **counters})

    def _recalled(self, recall: Recall) -> dict[str, Any]:
        """Return the stored state of a stopped run; empty if clients or the experiment have changed."""
        folder, tables = self.plan.folder, json.loads(self.plan.experiment)
        own = {key: value for key, value in tables["method"].items() if key not in self.algorithm.may_change}
        self._asked = json_digest([self.plan.client, {**tables, "method": own}, *recall.of])
        if not folder.checkpoint.exists():
            return {}
        saved = folder.kept()
        present = saved.pop("there", {})
        self._count_on(saved.pop("traffic"), saved.pop("seconds"))
        if saved.pop("asked", None) != self._asked:
            folder.notes.append(
                "clients, or what they are asked for, had changed since the run was stopped: it began again"
            )
            log.warning("%s", folder.notes[-1])
            return {}
        if not self.present.names:
            # No further requests: the current nodes of clients do not matter.
            self.present = Present.on(dict.fromkeys(present["names"], 0))
            self.absent, self.data = dict(present["absent"]), present["data"]
        return saved

    def _count_on(self, traffic: Mapping[str, int], seconds: float) -> None:
        """Add the counts before the run was stopped to those since it was resumed."""
        counted = vars(self.traffic)
        self.traffic = Traffic(**{name: number + counted[name] for name, number in traffic.items()})
        self._began -= seconds


def _waiting(text: str) -> None:
    log.info("waiting for nodes: %s", text)
