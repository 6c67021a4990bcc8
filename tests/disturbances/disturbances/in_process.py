"""Faults in one process: messages that are lost or come twice, and writes that fail."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Message

from disturbances.scenario import Fault
from disturbances.stage import Attempt, Stage
from disturbances.system import Writes
from fedgraph.clients.app import app as client_app
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.federation.grids.in_process import LocalGrid
from fedgraph.runs import RunFolder
from fedgraph.strategies.app import execute
from fedgraph.support.errors import FedgraphError


class LossyGrid(LocalGrid):
    """Loses messages, or delivers replies twice.

    Attributes
    ----------
    sent : list of str
        Kinds of the messages so far.
    happened : int
        How many faults have happened.
    """

    def __init__(self, configs: list[dict[str, Any]], faults: list[Fault]) -> None:
        super().__init__(client_app, configs)
        self._faults = faults
        self.sent: list[str] = []
        self.happened = 0

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Deliver messages and return the replies, but for what happens to them."""
        replies = []
        for message in messages:
            self.sent.append(message.metadata.message_type)
            action = self._due()
            if action != "lose-request":
                delivered = self._deliver(message)
                replies += {"lose-reply": [], "repeat-reply": [delivered, delivered]}.get(action, [delivered])
        return replies

    def _due(self) -> str:
        """What happens to the message that was sent last."""
        if self.happened == len(self._faults):
            return ""
        fault = self._faults[self.happened]
        kind = fault.when.kind or self.sent[-1]
        count = self.sent.count(kind) if fault.when.kind else len(self.sent)
        if kind != self.sent[-1] or count != fault.when.message:
            return ""
        self.happened += 1
        return fault.action


@dataclass
class InProcess(Stage):
    """A run in this process."""

    tables: dict[str, Any] = field(default_factory=dict)
    configs: list[dict[str, Any]] = field(default_factory=list)
    data_dir: Path = Path()
    sent: list[str] = field(default_factory=list)

    def attempt(self, resumed: RunFolder | None, faults: list[Fault]) -> Attempt:
        """Start the run, or go on with it."""
        tables = {**self.tables, "output": {**self.tables.get("output", {}), "dir": str(self.runs)}}
        if resumed is not None:
            tables["output"]["resume"] = str(resumed.path)
        places = {"state-dir": str(self.folder / "state"), "model-dir": str(self.folder / "models"),
                  "data-dir": str(self.data_dir)}  # fmt: skip
        grid = LossyGrid([{**places, **each} for each in self.configs], [f for f in faults if f.when.message])
        failing = next((fault for fault in faults if fault.when.write), None)
        writes = Writes() if failing is not None else None
        found = Attempt()
        block = nullcontext() if failing is None else writes.failing(self.folder, failing.when.write, failing.action)
        try:
            with block:
                execute(grid, parse_experiment(tables), self.data_dir)
        except (FedgraphError, OSError) as error:
            found.error = f"{type(error).__name__}: {error}"
        except Exception as error:
            found.error, found.foreseen = f"{type(error).__name__}: {error}", False
        found.happened = grid.happened if writes is None else min(writes.failed, 1)
        self.sent = grid.sent
        return found
