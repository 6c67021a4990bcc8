"""``fedgraph run`` as a process of its own, in one process or on Ray: what happens to it, and going on with it."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import tomli_w

from disturbances.processes import PROGRAMS, Moments, family, hit, name_of, named
from disturbances.scenario import Fault
from disturbances.stage import Attempt, Stage
from disturbances.system import preloaded, set_clock
from fedgraph.federation.grids import flower_environment, kill_all
from fedgraph.runs import RunFolder

_LONGEST = 300.0


@dataclass
class Command(Stage):
    """``fedgraph run``, and ``fedgraph run --resume`` after it."""

    tables: dict[str, Any] = field(default_factory=dict)
    grid: str = "local"
    nodes: int = 2
    data_dir: Path = Path()

    def attempt(self, resumed: RunFolder | None, faults: list[Fault]) -> Attempt:
        """Start the command, let faults happen, and wait until it ends."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log, home = self.folder / "errors.txt", self.folder / "homes"
        set_clock(home, 0)
        environment = flower_environment(home, FEDGRAPH_DATA=str(self.data_dir), OMP_NUM_THREADS="1")
        if any(fault.action == "step-clock" for fault in faults):
            environment |= preloaded()
        with log.open("wb") as errors:
            started = subprocess.Popen(
                [sys.executable, "-m", "fedgraph", "run", *self._arguments(resumed)],
                env=environment, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True,
            )  # fmt: skip
        moments, everybody, began = Moments(self.runs, faults), list[psutil.Process](), time.monotonic()
        while started.poll() is None and time.monotonic() - began < _LONGEST:
            alive = family(started.pid)
            everybody += [each for each in alive if each not in everybody]
            for fault in moments.due():
                if fault.action == "step-clock":
                    set_clock(home, fault.by)
                    moments.passed()
                elif any(hit(each, fault) for each in self._targets(alive, fault)[:1]):
                    moments.passed()
            time.sleep(0.005)
        status = started.poll()
        kill_all(started, everybody)
        text = log.read_text(errors="replace")
        error = "" if status == 0 else f"status {status}: {text[-1500:]}"
        foreseen = status is not None and "Traceback" not in text
        return Attempt(error, foreseen, moments.happened)

    def _arguments(self, resumed: RunFolder | None) -> list[str]:
        own = ["--grid", "flower" if self.grid == "ray" else "local", "--nodes", str(self.nodes)]
        if resumed is not None:
            return ["--resume", str(resumed.path), *own]
        (self.folder / "experiment.toml").write_text(tomli_w.dumps(self.tables))
        return [str(self.folder / "experiment.toml"), "--out", str(self.runs), *own]

    def _targets(self, alive: list[psutil.Process], fault: Fault) -> list[psutil.Process]:
        """Processes that a fault may happen to; the command itself is the server."""
        if fault.target == "server":
            return alive[:1]
        if fault.target == "worker":
            return [each for each in alive if name_of(each).startswith("ray::")]
        return named(alive, "flwr-simulation" if fault.target == "serverapp" else PROGRAMS[fault.target])
