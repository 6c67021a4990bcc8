"""Faults of processes: which program is which, and what can happen to it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from disturbances.scenario import Fault
from fedgraph.commands.deployment.resident import COMMAND
from fedgraph.runs import RunFolder

PROGRAMS = {
    "superlink": "flower-superlink",
    "serverapp": "flwr-serverapp",
    "server-executor": "flower-superexec",
    "supernode": "flower-supernode",
    "executor": "flower-superexec",
    "clientapp": "flwr-clientapp",
}


def name_of(process: psutil.Process) -> str:
    """Name of the program: of the script, where Python runs one."""
    try:
        words, title = process.cmdline(), process.name()
    except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
        return ""
    if tuple(words[: len(COMMAND)]) == COMMAND:
        # A task is a fork of the executor.
        return title if title == PROGRAMS["clientapp"] else words[len(COMMAND)]
    if len(words) > 1 and Path(words[0]).name.startswith("python"):
        return Path(words[1]).name
    # What Ray calls its workers is a title in place of a command.
    return Path(words[0]).name if words else ""


def family(pid: int) -> list[psutil.Process]:
    """A process and all its descendants that live."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def named(processes: list[psutil.Process], program: str) -> list[psutil.Process]:
    """Those processes that are a program, oldest first."""
    with suppress(psutil.NoSuchProcess):
        return sorted((each for each in processes if name_of(each) == program), key=lambda each: each.create_time())
    return []


def hit(process: psutil.Process, fault: Fault) -> bool:
    """Kill or pause a process; returns whether it was alive."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        process.send_signal(signal.SIGKILL if fault.action == "kill" else signal.SIGSTOP)
    except psutil.NoSuchProcess:
        return False
    if fault.action == "pause":
        timer = threading.Timer(fault.pause, lambda: _continue(process))
        timer.daemon = True
        timer.start()
    return True


def _continue(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGCONT)


class Moments:
    """Says when the next of several faults is due, by the lines of ``metrics.jsonl`` in a folder of runs."""

    def __init__(self, runs: Path, faults: list[Fault]) -> None:
        self._runs = runs
        self._faults = list(faults)
        self._since: float | None = None
        self.happened = 0

    def due(self) -> Iterator[Fault]:
        """Yield the next fault, if it is due."""
        if self.happened == len(self._faults):
            return
        fault = self._faults[self.happened]
        if self._since is None and self._lines() >= (fault.when.lines or 0):
            self._since = time.monotonic()
        if self._since is not None and time.monotonic() - self._since >= fault.when.seconds:
            yield fault

    def passed(self) -> None:
        """The fault that was due has happened."""
        self.happened += 1
        self._since = None

    def _lines(self) -> int:
        folders = [RunFolder(path.parent) for path in self._runs.glob("[!.]*/experiment.toml")]
        if not folders:
            return -1
        return folders[0].metrics.read_bytes().count(b"\n") if folders[0].metrics.exists() else 0
