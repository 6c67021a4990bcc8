"""Many scenarios at once: every kind of message lost, every write failed, and processes killed at random moments."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from disturbances.commands import Command
from disturbances.deployed import Deployed
from disturbances.experiments import NAMED, ROUNDS, prepared
from disturbances.in_process import InProcess
from disturbances.results import workplace
from disturbances.scenario import WRITES, Fault, Holds, Scenario, read_scenario
from disturbances.stage import Stage
from disturbances.trial import Found, try_scenario, undisturbed_run


def line(title: str, found: Found, seconds: float) -> str:
    """A line about what came of a scenario."""
    tries = len(found.attempts)
    text = f"{title}: {found.happened} faults, {tries} start{'s' * (tries > 1)}, {seconds:.1f} s"
    return f"ok      {text}" if not found.problems else f"FAILED  {text}: {'; '.join(found.problems)[:2000]}"


class InProcessScenes:
    """All scenarios of an experiment in this process, beside one run without faults."""

    def __init__(self, name: str, folder: Path, overrides: list[str] | None = None) -> None:
        scenario = Scenario(title=name, experiment=name, set=overrides or [])
        self._folder = folder
        self.tables, self.configs = prepared(scenario, folder)
        self._number = 0
        stage = self.stage()
        self.undisturbed = undisturbed_run(stage).summary()
        self.kinds = stage.sent

    def stage(self) -> InProcess:
        """A stage of its own."""
        self._number += 1
        folder = self._folder / str(self._number)
        return InProcess(folder, tables=self.tables, configs=self.configs, data_dir=self._folder / "no-data")

    def play(self, faults: list[Fault], holds: Holds) -> Found:
        """Try a scenario."""
        return try_scenario(self.stage(), faults, holds, self.undisturbed)


def messages(names: list[str]) -> Iterator[str]:
    """Lose each kind of message, the first and the last one, as request and as reply, under two policies."""
    with workplace() as folder:
        for name in names:
            for policy, holds in (("fail", Holds()), ("skip", Holds(weights="finite"))):
                scenes = InProcessScenes(name, folder / name / policy, [f'experiment.on-missing="{policy}"'])
                for kind in dict.fromkeys(scenes.kinds):
                    for number in sorted({1, scenes.kinds.count(kind)}):
                        for action in ("lose-request", "lose-reply", "repeat-reply"):
                            began = time.monotonic()
                            fault = Fault(when={"message": number, "kind": kind}, action=action)
                            found = scenes.play([fault], holds)
                            title = f"{name}, {policy}: {action} of {kind} {number}"
                            yield line(title, found, time.monotonic() - began)


def writes(names: list[str]) -> Iterator[str]:
    """Fail each write of a run in turn, in each way."""
    with workplace() as folder:
        for name in names:
            scenes = InProcessScenes(name, folder / name, ['experiment.on-missing="fail"'])
            for action in WRITES:
                number = 0
                while True:
                    number += 1
                    began = time.monotonic()
                    found = scenes.play([Fault(when={"write": number}, action=action)], Holds())
                    if not found.happened:
                        yield f"ok      {name}: {action}: {number - 1} writes"
                        break
                    if found.problems:
                        yield line(f"{name}: {action} at write {number}", found, time.monotonic() - began)


@contextmanager
def stage_of(scenario: Scenario, folder: Path) -> Iterator[Stage]:
    """The stage that a scenario takes place on, ready."""
    tables, configs = prepared(scenario, folder)
    common = {"folder": folder, "tables": tables}
    stage: Stage
    if scenario.grid == "in-process":
        stage = InProcess(**common, configs=configs, data_dir=folder / "no-data")
    elif scenario.grid == "nodes":
        clocks = any(fault.action == "step-clock" for fault in scenario.faults)
        stage = Deployed(**common, configs=configs, clocks=clocks)
    else:
        stage = Command(**common, grid=scenario.grid, nodes=len(configs), data_dir=folder / "no-data")
    with stage:
        yield stage


def play(scenario: Scenario, folder: Path) -> Found:
    """Try a scenario, beside the same run without faults in this process."""
    undisturbed = None
    if scenario.holds.weights == "same":
        calm = scenario.model_copy(update={"faults": [], "grid": "in-process"})
        with stage_of(calm, folder / "undisturbed") as stage:
            undisturbed = undisturbed_run(stage).summary()
    with stage_of(scenario, folder / "disturbed") as stage:
        return try_scenario(stage, scenario.faults, scenario.holds, undisturbed)


def scenarios(paths: list[Path]) -> Iterator[str]:
    """Try the scenarios of files, or of all files in folders."""
    for path in paths:
        for file in sorted(path.glob("*.toml")) if path.is_dir() else [path]:
            scenario, began = read_scenario(file), time.monotonic()
            with tempfile.TemporaryDirectory(prefix="disturbed-") as folder:
                found = play(scenario, Path(folder))
            if found.happened < len(scenario.faults):
                found.problems.append(f"only {found.happened} of {len(scenario.faults)} faults happened")
            yield line(f"{file.name}: {scenario.title}", found, time.monotonic() - began)


KILLED = {
    "local": ("server",),
    "ray": ("server", "superlink", "worker"),
    "nodes": ("superlink", "serverapp", "server-executor", "supernode", "executor", "clientapp"),
}
"""What may be killed on each grid."""

METHODS = {
    "local": ("sfl", "sfl-star", "scaffold", "fedper", "ipa", "fedavg", "adam", "cnfgnn", "f3", "vfl", "f3-forecast",
              "fedngm"),
    "ray": ("sfl", "scaffold", "ipa", "f3", "fedngm"),
    "nodes": ("sfl", "scaffold", "ipa", "f3", "fedngm"),
}  # fmt: skip
"""Methods that are killed on each grid: with state at the server, with state at clients, of turns, and of phases."""

KILLS_PER_RUN = 3


def kills(count: int, only: list[str] | None, grids: list[str], seed: int) -> Iterator[str]:
    """Kill processes at random moments, three in a run, until so many are killed; runs are gone on with."""
    chance, done, missed = random.Random(seed), 0, 0
    while done < count and missed < count:
        grid = chance.choice(grids)
        name = chance.choice(only or METHODS[grid])
        # Methods of phases write few lines: of their time, seconds.
        lines, seconds = (6, 8.0) if name in ROUNDS else (1, 40.0)
        if grid == "local":
            lines, seconds = 6, 1.0
        faults = [
            Fault(
                when={"lines": chance.randrange(lines), "seconds": chance.uniform(0, seconds)},
                action="kill",
                target=chance.choice(KILLED[grid]),
                node=chance.randrange(4),
            )
            for _ in range(min(KILLS_PER_RUN, count - done))
        ]
        policy = ['experiment.on-missing="fail"', "experiment.wait=60.0", "experiment.timeout=60.0"]
        if name in NAMED:
            policy.append(f"experiment.min-clients={NAMED[name]}")
        if name in ROUNDS:
            policy.append(f"experiment.rounds={30 if grid == 'local' else 3}")
        scenario = Scenario(title=name, experiment=name, set=policy, grid=grid, faults=faults)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="disturbed-") as folder:
            found = play(scenario, Path(folder))
        done += found.happened
        missed += found.happened == 0
        targets = ", ".join(f"{f.target} at line {f.when.lines} + {f.when.seconds:.1f} s" for f in faults)
        yield line(f"{done}/{count} {grid}, {name}: kill {targets}", found, time.monotonic() - began)
