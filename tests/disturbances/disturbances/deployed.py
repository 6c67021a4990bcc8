"""A SuperLink and SuperNodes as on separate machines, with an operator who restarts what has ended."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import psutil

from disturbances.processes import PROGRAMS, Moments, family, hit, named
from disturbances.scenario import Fault
from disturbances.stage import Attempt, Stage
from disturbances.system import preloaded, set_clock
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.federation.grids.local_flower import superlink_answers
from fedgraph.runs import RunFolder
from fedgraph.simulations.benchmarks.real_nodes import FederationOnThisMachine, Running

_LONGEST = 420.0
_PATIENCE = 60.0
_DOWN_SECONDS = 3.0


@dataclass
class Deployed(Stage):
    """Real nodes, over TLS; a run that has ended is submitted again, with its folder."""

    tables: dict[str, Any] = field(default_factory=dict)
    configs: list[dict[str, Any]] = field(default_factory=list)
    clocks: bool = False

    def __enter__(self) -> Deployed:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._stack = ExitStack()
        self._sites = [f"site-{number}" for number in range(len(self.configs))]
        environment = {"OMP_NUM_THREADS": "1"} | (preloaded() if self.clocks else {})
        self._federation = FederationOnThisMachine(self.folder / "federation", self._sites, environment)
        self._stack.enter_context(self._federation)
        self._nodes: dict[str, Running] = {}
        for site in self._sites:
            self._start_node(site)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def attempt(self, resumed: RunFolder | None, faults: list[Fault]) -> Attempt:
        """Submit the run, let faults happen, restart what ends, and wait for the end of the run."""
        if resumed is not None:
            self._wait_for_the_server()
        folder = resumed or RunFolder.create(parse_experiment(self.tables), self.runs)
        moments, began = Moments(self.runs, faults), time.monotonic()
        said = len(self._log())
        submitted = self._federation.submit(folder)
        lost: float | None = None
        while time.monotonic() - began < _LONGEST and submitted.process.poll() is None:
            for fault in moments.due():
                if self._happens(fault):
                    moments.passed()
            if self._mend() and lost is None:
                lost = time.monotonic()
            # A server that was killed has taken the run with it.
            if lost is not None and time.monotonic() - lost > 10:
                break
            time.sleep(0.01)
        hangs = submitted.process.poll() is None and lost is None
        submitted.end()
        self._stop_server_app()
        text = self._log()[said:]
        if folder.is_finished:
            return Attempt(happened=moments.happened)
        return Attempt(
            f"the run hangs: {text[-1500:]}" if hangs else text[-1500:] or "it ended", not hangs, moments.happened
        )

    def _happens(self, fault: Fault) -> bool:
        site = self._sites[fault.node % len(self._sites)]
        at_node = fault.target in ("supernode", "executor", "clientapp")
        if fault.action == "step-clock":
            home = self._federation.folder / ("homes/" + site if at_node else "superlink")
            set_clock(home, fault.by)
            return True
        of = self._nodes[site] if at_node else self._federation.superlink
        assert of is not None
        found = named(family(of.process.pid), PROGRAMS[fault.target])
        return any(hit(each, fault) for each in found[:1])

    def _mend(self) -> bool:
        """Restart nodes and server that have ended; returns whether the server had."""
        for site, node in self._nodes.items():
            if node.process.poll() is not None:
                node.kill()
                self._start_node(site)
        superlink = self._federation.superlink
        if superlink is not None and superlink.process.poll() is not None:
            superlink.kill()
            self._federation.start_superlink()
            return True
        return False

    def _wait_for_the_server(self) -> None:
        """As an operator would who is told that it cannot be reached: it may be on its way down, or up."""
        time.sleep(_DOWN_SECONDS)
        self._mend()
        superlink = self._federation.superlink
        assert superlink is not None
        assert superlink_answers(self._federation.port, superlink.process, encrypted=True), self._log()[-2000:]

    def _stop_server_app(self) -> None:
        """Wait until no ServerApp of the run that has ended writes into its folder."""
        deadline = time.monotonic() + _PATIENCE
        superlink = self._federation.superlink
        while superlink is not None and time.monotonic() < deadline:
            left = named(family(superlink.process.pid), PROGRAMS["serverapp"])
            if not [each for each in left if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]:
                return
            time.sleep(0.2)

    def _start_node(self, site: str) -> None:
        config = self.configs[self._sites.index(site)]
        self._nodes[site] = self._federation.start_node(site, config)

    def _log(self) -> str:
        return self._federation.log.read_text(errors="replace")
