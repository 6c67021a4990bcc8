"""Runs of an experiment with one mutated reply: good replies are recorded once, and told again without any client."""

from __future__ import annotations

import json
import logging
import math
import shutil
import signal
import tempfile
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Error, Message, RecordDict
from safetensors.torch import load_file

from fedgraph.clients.app import app as client_app
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.federation import opening_query
from fedgraph.federation.grids.in_process import LocalGrid
from fedgraph.messages import KEEP_KEY, RUN_KEY
from fedgraph.strategies.app import execute
from fedgraph.support.errors import FedgraphError
from fuzzing.experiments import BEFORE, LIVE, ON_ONE_NODE, experiment
from fuzzing.mutations import copied, mutated

ABSURD = 1e6
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


@dataclass
class Judgement:
    """What came of an example.

    ``ended`` is why the run ended, ``broken`` what is not finite in its results, ``absurd`` the largest number there
    if it is beyond ``ABSURD``; ``applied`` is whether the mutation found anything to change.
    """

    applied: bool = True
    ended: str = ""
    foreseen: bool = True
    broken: str = ""
    absurd: float = 0.0


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
        key = _key(message)
        if key not in self.known or self.live:
            config = message.content.config_records.get("config", {})
            if self.live:
                return self._live(message)
            if self.run_name and RUN_KEY in config:
                config = config.copy()
                config[RUN_KEY] = self.run_name
            if KEEP_KEY in config:
                config = config.copy()
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
            "any-files": True,
        }
        if before is not None:
            places["state-dir"] = str(folder / "before" / "state")
        # The run that inference continues from has left models with its clients.
        places["model-dir"] = str((folder.parent if folder.name == "before" else folder) / "models")
        grid = Replay([{**places, **config} for config in configs], name in LIVE)
        method = cls(name, folder, tables, grid, opening=len(configs))
        first = method.run()
        method.first = first
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
            result.foreseen = len(str(error)) < 10_000
            if self.name in ON_ONE_NODE or (case.reply < self.opening and "twice" in case.mutation):
                result.ended = ""
        except Exception as error:
            result = Judgement(ended=f"{type(error).__name__}: {str(error)[:500]}", foreseen=False)
        result.applied = self.grid.applied
        shutil.rmtree(self.folder / "runs", ignore_errors=True)
        return result


def judge(folder: Path) -> Judgement:
    """Look at all numbers in the results of a run."""
    found = Judgement()
    for file in sorted(folder.rglob("*.safetensors")):
        # What a checkpoint has beside results may be infinite where nothing was measured.
        if file.name == "checkpoint.safetensors":
            continue
        for name, tensor in load_file(file).items():
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            if not bool(torch.isfinite(tensor).all()):
                found.broken = f"{file.name}: {name}"
            else:
                found.absurd = max(found.absurd, float(tensor.abs().max()))
    for file in (folder / "summary.json", folder / "metrics.jsonl", folder / "feature-graph.json"):
        for line in (
            (file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()])
            if (file.exists())
            else ()
        ):
            for path, number in _numbers(json.loads(line), file.name):
                if not math.isfinite(number):
                    found.broken = path
                elif not any(word in path for word in ("bytes", "seconds", "seed", "timestamp", "examples", "rows")):
                    found.absurd = max(found.absurd, abs(number))
        if file.exists() and file.stat().st_size > 3_000_000:
            found.broken = f"{file.name} has {file.stat().st_size} bytes"
    if found.absurd <= ABSURD:
        found.absurd = 0.0
    return found


def _numbers(value: Any, path: str) -> Iterable[tuple[str, float]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _numbers(inner, f"{path}/{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value


@contextmanager
def time_limit(seconds: int):
    """Raise TimeoutError in a block that takes longer."""

    def late(number, frame):
        raise TimeoutError(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def workplace():
    """A folder for all runs, in memory where there is one, and no waiting or talking meanwhile."""
    memory = Path("/dev/shm")
    levels = {name: logging.getLogger(name).level for name in ("fedgraph", "flwr")}
    poll = opening_query._POLL_SECONDS
    for name in levels:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    opening_query._POLL_SECONDS = 0.001
    try:
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory if memory.is_dir() else None) as folder:
            yield Path(folder)
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        opening_query._POLL_SECONDS = poll
