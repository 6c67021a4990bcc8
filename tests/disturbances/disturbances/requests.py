"""Mutated requests to a node: whether it answers quickly, with an error of its own, and opens no file it should not."""

from __future__ import annotations

import json
import os
import random
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from disturbances.mutations import copied, mutated
from disturbances.replay import Case, Method, Replay
from disturbances.results import time_limit
from fedgraph.messages import EXPERIMENT_KEY

SECONDS = 20
LONGEST_ERROR = 3_000

_UNFORESEEN = re.compile(r"^\w+ in \S+\.py, line \d+")

_TRAPS = ("/etc/passwd", "~/.ssh/id_rsa", "../../../etc/passwd", "/dev/zero", "/dev/stdin", "/proc/self/mem")
_PATHS = ("os:system", "subprocess:Popen", "builtins:exec", "x" * 100_000 + ":Y", "a.b", ":", "/etc/passwd:X",
          "fedgraph.support.errors:ReplyError", "fedgraph.clients.sfl:SFLClient", "json:loads", "a\nb:c")  # fmt: skip


def trap(content: RecordDict, chance: random.Random) -> bool:
    """A value of the experiment becomes the path of a file, or the dotted path of something else."""
    config = content.get("config")
    if not isinstance(config, ConfigRecord) or EXPERIMENT_KEY not in config:
        return False
    if chance.random() < 0.2:
        config["fedgraph-client"] = chance.choice(_PATHS)
        return True
    tables = json.loads(config[EXPERIMENT_KEY])
    name = chance.choice(["data", "model", "train", "method"])
    table = tables[name]
    if table and chance.random() < 0.6:
        key = chance.choice(sorted(table))
    else:
        key = chance.choice(["path", "graph", "name", "public", "pre-trained", "set", "folder", "file"])
    table[key] = chance.choice(_TRAPS + _PATHS)
    if chance.random() < 0.3:
        kinds = ["series", "table", "mixed-table", "images", "bayesian-network", "panel"]
        tables["data"] = {"set": chance.choice(kinds), "path": chance.choice(_TRAPS)}
    config[EXPERIMENT_KEY] = json.dumps(tables)
    return True


def giant(content: RecordDict, chance: random.Random) -> bool:
    """A number of the experiment becomes giant."""
    config = content.get("config")
    if not isinstance(config, ConfigRecord) or EXPERIMENT_KEY not in config:
        return False
    tables = json.loads(config[EXPERIMENT_KEY])
    numbers = [
        (table, key)
        for table in ("data", "model", "method")
        for key, value in sorted(tables[table].items())
        if isinstance(value, int) and not isinstance(value, bool)
    ]
    if not numbers:
        return False
    table, key = chance.choice(numbers)
    tables[table][key] = chance.choice([-1, 10**12, 2**63, 10**30, 0])
    config[EXPERIMENT_KEY] = json.dumps(tables)
    return True


OWN = {"trap": trap, "giant-setting": giant}


@dataclass
class Answer:
    """What came of a mutated request: whether it was refused, with foreseen words, in time, and what it opened."""

    applied: bool = True
    refused: bool = False
    unforeseen: str = ""
    hung: bool = False
    long: bool = False
    opened: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failed(self) -> str:
        """Why this is a failure; empty for an answer as it should be."""
        if self.hung:
            return f"no answer in {SECONDS} s"
        if self.opened:
            return f"opened {self.opened[:3]}"
        return f"unforeseen: {self.unforeseen}" if self.unforeseen else "a long error" if self.long else ""


def recorded_requests(method: Method) -> list[Message]:
    """All requests of an undisturbed run."""
    kept: list[Message] = []
    told = method.grid._good

    def keep(message: Message) -> RecordDict:
        kept.append(message)
        return told(message)

    method.grid._good = keep  # type: ignore[method-assign]
    method.run()
    method.grid._good = told  # type: ignore[method-assign]
    return kept


def try_request(grid: Replay, requests: list[Message], case: Case) -> Answer:
    """Deliver a mutated request to its node."""
    asked = requests[case.reply]
    if case.mutation in OWN:
        content = copied(asked.content)
        applied = OWN[case.mutation](content, random.Random(f"{case.mutation} {case.seed}"))
    else:
        changed = mutated(asked.content, case.mutation, case.seed)
        content, applied = changed or copied(asked.content), changed is not None
    message = Message(content, asked.metadata.dst_node_id, asked.metadata.message_type, group_id="1")
    found, began = Answer(applied), time.monotonic()
    with watched_files() as opened:
        try:
            with time_limit(SECONDS):
                reply = super(Replay, grid)._deliver(message)
        except TimeoutError:
            found.hung = True
            return found
    found.seconds, found.opened = time.monotonic() - began, sorted(opened)
    if reply.has_error():
        found.refused, found.unforeseen = True, reply.error.reason[-300:]
        found.hung = "longer than" in reply.error.reason and "TimeoutError" in reply.error.reason
        return found
    error = reply.content.config_records.get("config", {}).get("error")
    if error is not None:
        found.refused = True
        found.hung = "TimeoutError" in str(error)
        found.long = len(str(error)) > LONGEST_ERROR
        found.unforeseen = str(error)[:300] if _UNFORESEEN.match(str(error)) else ""
    return found


_OPENED: list[set[str]] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _OPENED and event == "open" and isinstance(arguments[0], (str, bytes)):
        path = os.path.abspath(os.fsdecode(arguments[0]))
        if any(path == os.path.abspath(os.path.expanduser(trap)) or path == "/etc/passwd" for trap in _TRAPS):
            _OPENED[-1].add(path)
    elif _OPENED and event in ("os.system", "subprocess.Popen", "os.exec"):
        _OPENED[-1].add(f"{event} {arguments!r}"[:200])


@contextmanager
def watched_files() -> Iterator[set[str]]:
    """The files among those that no request may have opened, and programs, that were started in the block."""
    if not getattr(watched_files, "hooked", False):
        sys.addaudithook(_hook)
        watched_files.hooked = True  # type: ignore[attr-defined]
    _OPENED.append(set())
    try:
        yield _OPENED[-1]
    finally:
        _OPENED.pop()


def node_of(method: Method) -> Replay:
    """The nodes of a recorded run as they are at sites, which have agreed to its experiment."""
    for context in method.grid.contexts.values():
        context.node_config["agreement"] = str(method.agreed)
    return method.grid
