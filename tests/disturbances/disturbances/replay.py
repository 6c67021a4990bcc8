"""Runs of an experiment with one mutated reply: good replies are recorded once, and told again without any client."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict

from disturbances.experiments import BEFORE, LIVE, ON_ONE_NODE, experiment
from disturbances.mutations import copied, mutated
from disturbances.results import Judgement, judge, time_limit
from fedgraph.clients.app import app as client_app
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.federation.grids.in_process import LocalGrid
from fedgraph.messages import KEEP_KEY, RUN_KEY
from fedgraph.strategies.app import execute
from fedgraph.support.errors import FedgraphError

SECONDS = 30

DELIVERIES = ("flower-error", "unreachable", "silent", "twice")
"""What may happen to a reply as a whole, beside the mutations of its content."""


@dataclass
class Case:
    """An example: which reply of which experiment is mutated, and how."""

    method: str
    reply: int
    mutation: str
    seed: int


class Replay(LocalGrid):
    """Tells recorded replies again, one of them mutated; a request that was never recorded goes to its client."""

    def __init__(self, configs, live: bool = False):
        super().__init__(client_app, configs)
        self.known: dict[Any, RecordDict] = {}
        self.run_name = ""
        self.live = live
        self.case: Case | None = None
        self.told = 0
        self.applied = False
        self.opening = 0

    def begin(self, case: Case | None) -> None:
        self.case, self.told, self.applied = case, 0, False

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        for message in messages:
            replies += self._replies_to(message)
        return replies

    def _replies_to(self, message: Message) -> list[Message]:
        if message.metadata.dst_node_id not in self.contexts:
            return []
        content = self._good(message)
        case, number = self.case, self.told
        self.told += 1
        if case is None or number != case.reply:
            return [self._reply(copied(content), message)]
        self.applied = True
        if case.mutation == "flower-error":
            return [Message(Error(code=2, reason="Traceback\n" * 100_000), reply_to=message)]
        if case.mutation == "unreachable":
            return [Message(Error(code=3, reason=""), reply_to=message)]
        if case.mutation == "silent":
            return []
        if case.mutation == "twice":
            return [self._reply(copied(content), message) for _ in range(2)]
        changed = mutated(content, case.mutation, case.seed)
        self.applied = changed is not None
        return [self._reply(changed or copied(content), message)]

    def _reply(self, content: RecordDict, message: Message) -> Message:
        reply = Message(content, reply_to=message)
        reply.metadata.__dict__["_message_id"] = f"reply-{self.told}"
        return reply

    def _good(self, message: Message) -> RecordDict:
        if self.live:
            return self._live(message)
        key = _key(message)
        if key not in self.known:
            config = message.content.config_records.get("config", ConfigRecord()).copy()
            if self.run_name and RUN_KEY in config:
                config[RUN_KEY] = self.run_name
            if KEEP_KEY in config:
                config[KEEP_KEY] = 0
            # Records may be shared by the messages to several nodes.
            own = RecordDict({name: record.copy() for name, record in message.content.items()})
            own["config"] = config
            asked = Message(
                own, message.metadata.dst_node_id, message.metadata.message_type, group_id=message.metadata.group_id
            )
            self.known[key] = self._live(asked)
        return self.known[key]

    def _live(self, message: Message) -> RecordDict:
        reply = super()._deliver(message)
        if reply.has_error():
            raise AssertionError(f"a good client failed: {reply.error.reason}")
        return reply.content


def _key(message: Message) -> Any:
    """What a request is about, without the numbers in it."""
    config = message.content.config_records.get("config", {})
    said = {
        name: len(value) if name in ("embed", "update", "keys") else value
        for name, value in config.items()
        if name not in (RUN_KEY, KEEP_KEY, "identity-challenge", "request", "common", "graph", "scaling", "public")
        and not (name == "keys" and isinstance(value, str))
    }
    arrays = [
        # Small arrays of whole numbers say how much is asked for.
        (
            name,
            entry,
            tuple(array.shape),
            array.numpy().tolist() if len(array.data) < 300 and "int" in array.dtype else "",
        )
        for name, record in message.content.items()
        if isinstance(record, ArrayRecord)
        for entry, array in record.items()
    ]
    return message.metadata.dst_node_id, message.metadata.message_type, repr(sorted(said.items())), repr(sorted(arrays))


@dataclass
class Method:
    """An experiment, recorded: its replies, and the folder that all its runs share."""

    name: str
    folder: Path
    tables: dict[str, Any]
    grid: Replay
    replies: int = 0
    opening: int = 0
    first: Path = Path()

    @property
    def agreed(self) -> Path:
        """The experiment as sites agree to it."""
        return self.folder / "agreed.toml"

    @classmethod
    def recorded(cls, name: str, folder: Path) -> Method:
        """Run the experiment undisturbed."""
        before = None
        if name in BEFORE:
            trained = cls.recorded(BEFORE[name], folder / "before")
            before = trained.first
        tables, configs = experiment(name, before)
        places = {
            "state-dir": str(folder / "state"),
            "data-dir": str(folder / "no-data"),
            "full-errors": True,
        }
        if before is not None:
            places["state-dir"] = str(folder / "before" / "state")
        # The run that inference continues from has left models with its clients.
        places["model-dir"] = str((folder.parent if folder.name == "before" else folder) / "models")
        grid = Replay([{**places, **config} for config in configs], name in LIVE)
        method = cls(name, folder, tables, grid, opening=len(configs))
        first = method.run()
        method.first = first
        text = (first / "experiment.toml").read_text()
        method.agreed.write_text(text + "\n[agreement]\nleast-rows = 1\n")
        # Where inference goes on from another run, its name is part of the question.
        grid.run_name = "" if before is not None else first.name
        method.replies = grid.told
        found = judge(first)
        assert found == Judgement(), f"{name}: the undisturbed run itself: {found}"
        return method

    def run(self, case: Case | None = None) -> Path:
        """Run with a mutated reply; return the run folder."""
        where = self.folder / "runs"
        tables = {**self.tables, "output": {**self.tables["output"], "dir": str(where)}}
        self.grid.begin(case)
        return execute(self.grid, parse_experiment(tables), self.folder / "no-data").path

    def try_case(self, case: Case) -> Judgement:
        """Run with a mutated reply, and judge what came of it."""
        try:
            with time_limit(SECONDS):
                folder = self.run(case)
            result = judge(folder)
        except FedgraphError as error:
            result = Judgement(ended=f"{type(error).__name__}: {str(error)[:500]}")
            result.unforeseen = len(str(error)) >= 10_000
            if self.name in ON_ONE_NODE or (case.reply < self.opening and "twice" in case.mutation):
                result = Judgement()
        except Exception as error:
            result = Judgement(ended=f"{type(error).__name__}: {str(error)[:500]}", unforeseen=True)
        result.applied = self.grid.applied
        shutil.rmtree(self.folder / "runs", ignore_errors=True)
        return result
