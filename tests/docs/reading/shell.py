"""A shell in which the lines of a page are typed: as shown, but for how long they train, and addresses and folders."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

import typer.main
from typer.testing import CliRunner

from fedgraph.algorithms.phases import has_phases
from fedgraph.commands.cli import app
from fedgraph.experiment import built_ins, load_experiment
from fedgraph.federation.grids.local_flower import (
    connection,
    connection_file,
    end_group,
    free_port,
    start,
)
from fedgraph.federation.grids.programs import flower_environment, program
from reading.pages import REPOSITORY

COMMANDS = typer.main.get_command(app).commands

ELSEWHERE = {
    "make run": "installs everything first, which takes minutes; `fedgraph tour`, all else of it, is run",
    "make venv": "installs everything; `.ci/run` begins with it",
    "make test": "runs these tests",
    "make test-process": "runs these tests",
    "make test-all": "runs these tests",
    "make test-docker": "needs a container engine; the tests that it runs say what they do",
    "make test-flower": "fetches another version of Flower",
    "make test-versions": "fetches other versions of all that is installed",
    "make docs": "fetches Sphinx; tests/test_docs.py builds the pages where it is there",
    "pip install": "installs into an environment of one's own; tests/test_wheel.py does so, from a wheel",
    "pip download": "fetches wheels for another machine",
    "python3 -m pip install": "installs what the line before fetched",
    "docker compose": "needs a container engine; tests/docker does what these pages say, `make test-docker`",
    "curl --cacert": "asks the door of a server that has a name; tests/docker/test_server_and_sites.py asks it",
    "ssh -N": "a tunnel to another machine",
    "ray start": "a cluster of several machines; tests/test_ray_cluster.py has one of two nodes",
    "fedgraph run FILE --grid flower": "runs on that cluster; tests/test_ray_cluster.py does",
    "flwr run . lab --stream -c": "submits to sites, and resumes; tests/docker/test_server_and_sites.py does both",
}
"""Beginnings of lines that are not run here, and why."""

# What makes training short, where its method or its data set has the key.
SHORT = {
    "data.limit": 1000, "experiment.rounds": 2, "train.local-epochs": 1, "train.local-steps": 2, "f3.epochs": 2,
    "f3.draws": 2, "f3-forecast.steps": 20, "f3-forecast.evaluate-every": 10, "f3-forecast.local-rounds": 1,
    "fedngm.ngm.epochs": 2, "fedngm.ngr.epochs": 2, "fedngm.distillation.samples": 500, "fedngm.marginalised": 20,
    "fedngm.yardsticks": "false", "fedngm.sample-quality": "false",
}  # fmt: skip
SHORT_COMMANDS = {
    "worth": "--seeds 0,1 --rates 1 --set experiment.rounds=1 --quiet",
    "sweep": "--trials 2 --seeds 0 --set experiment.rounds=1 --quiet",
}
SHORT_BENCHMARK = ["--device", "cpu", "--tiny", "--part", "machine"]
ONCE = ("tour", "worth", "sweep", "reproduce")
"""Commands that take long, and whose results no later line takes up: the same line is not run on a second page."""

_TYPED: set[tuple[str, ...]] = set()
_SECONDS = 300.0
_NO_DATA = re.compile("fedgraph data|does not hold the files of the data set|there is no table")
_TIME = r"-\d{8}-\d{6}(-\d+)?"


def reason_elsewhere(words: Sequence[str]) -> str | None:
    """Return why a line is not run here; None if it is."""
    line = " ".join(words)
    return next((reason for begin, reason in ELSEWHERE.items() if f"{line} ".startswith(f"{begin} ")), None)


def shortened(words: Sequence[str]) -> list[str]:
    """Return what is added to a command of fedgraph so that training is short."""
    if words[0] in SHORT_COMMANDS:
        return SHORT_COMMANDS[words[0]].split()
    if words[0] == "reproduce":
        return one_cell(words[1]) if len(words) > 1 else []
    if words[0] != "run" or "--resume" in words:
        return []
    shown = COMMANDS["run"].make_context("run", list(words[1:])).params
    tables = load_experiment(shown["experiment"], shown.get("set_") or ()).as_dict()
    method = tables["experiment"].get("method")
    known = {f"train.{key}" for key in ("local-epochs", "local-steps") if (tables.get("train") or {}).get(key)}
    known |= {"data.limit"} if tables["data"]["set"] in ("mnist", "fashion-mnist", "cifar10") else set()
    known |= {"experiment.rounds"} if not has_phases(built_ins()[method]) else set()
    known |= {key for key in SHORT if key.startswith(f"{method}.")}
    return ["--quiet", *(part for key in sorted(known) for part in ("--set", f"{key}={SHORT[key]}"))]


def one_cell(name: str) -> list[str]:
    """Return the options by which one cell of a table is made, that of the first row whose method has rounds."""
    paper, _, table = name.partition("-")
    tables = tomllib.loads((REPOSITORY / "simulations" / paper / "tables" / f"{table}.toml").read_text())
    methods = {row["label"]: built_ins().get(row.get("method", "")) for row in tables["rows"]}
    row = next(label for label, method in methods.items() if method is not None and not has_phases(method))
    cell = ["--rows", row, "--columns", tables["columns"][0]["key"], "--seeds", "0"]
    return [*cell, "--set", "experiment.rounds=1", "--quiet"]


class Shell:
    """Types the lines of a page in the working folder, and ends what they have started.

    Parameters
    ----------
    environment : callable
        Sets a variable for this line and all that follow.
    simulation : callable
        Returns the address of a SuperLink that simulates nodes, for ``flwr run``.
    short_tour : callable
        Returns a context in which the tour is short.
    """

    def __init__(
        self,
        environment: Callable[[str, str], None],
        simulation: Callable[[], str],
        short_tour: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.folder = Path.cwd()
        self.lacking: list[str] = []
        self._set = environment
        self._simulation = simulation
        self._short_tour = short_tour
        self._stack = ExitStack()
        self._port = free_port()

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def type(self, variables: Mapping[str, str], words: list[str]) -> None:
        """Run a line, and wait until it has ended, or for a server or node until it is ready."""
        if reason_elsewhere(words):
            return
        try:
            words = [part for word in words for part in self._here(word)]
        except NoRunError:
            if self.lacking:
                return
            raise
        for name, value in variables.items():
            self._set(name, value)
        if words[0] == "export":
            for word in words[1:]:
                self._set(*word.split("=", 1))
        elif words[:2] in (["fedgraph", "server"], ["fedgraph", "node"], ["fedgraph", "supervise"]):
            self._fedgraph_program(words)
        elif words[0] == "flower-supernode":
            self._start([program(words[0]), *words[1:], "--port", str(free_port())], "SuperNode ID")
        elif words[0] == "fedgraph":
            self._fedgraph(words[1:])
        elif words[:2] == ["flwr", "run"]:
            self._flwr_run(words)
        else:
            python = [sys.executable] if words[0] in ("python", "python3") else [words[0]]
            if words[1:3] == ["-m", "fedgraph.simulations.benchmarks"]:
                words += SHORT_BENCHMARK
                if tuple(words[2:]) in _TYPED:
                    return
                _TYPED.add(tuple(words[2:]))
            self._finish([*python, *words[1:]])

    def _fedgraph(self, words: list[str]) -> None:
        if words[0] in ONCE:
            if tuple(words) in _TYPED:
                return
            _TYPED.add(tuple(words))
        if words[:2] == ["run", "--resume"]:
            # As if it had been stopped before the end.
            Path(words[2], "summary.json").unlink()
        with self._short_tour() if words[0] == "tour" else nullcontext():
            result = CliRunner().invoke(app, [*words, *shortened(words)])
        if result.exit_code and _NO_DATA.search(result.output):
            self.lacking.append(" ".join(words))
        else:
            assert result.exit_code == 0, (words, result.output, result.exception)

    def _fedgraph_program(self, words: list[str]) -> None:
        if words[1] == "server":
            words, said = [*words, "--port", str(self._port)], "listening on"
        elif words[1] == "node":
            words += ["--superlink", f"127.0.0.1:{self._port}", "--port", str(free_port())]
            said = "connected to"
        else:
            words, said = [*words, "--port", str(free_port())], "SuperNode ID"
        if "--check" in words:
            self._fedgraph(words[1:])
        else:
            self._start([program("fedgraph"), *words[1:]], said)

    def _start(self, command: list[str], said: str) -> None:
        log = self.folder / f"log-{len(list(self.folder.glob('log-*')))}"
        started = start(command, flower_environment(self.folder / "flower-home"), log, cwd=self.folder)
        self._stack.callback(end_group, started)
        deadline = time.monotonic() + _SECONDS
        while not re.search(said, log.read_text()):
            assert started.poll() is None, (command, log.read_text())
            assert time.monotonic() < deadline, (command, log.read_text())
            time.sleep(0.1)

    def _flwr_run(self, words: list[str]) -> None:
        home = self.folder / "flower-home"
        connection_file(home, self._simulation() if "lab" not in words else "127.0.0.1:1")
        with (home / "config.toml").open("a") as stream:
            stream.write(connection("lab", f"127.0.0.1:{self._port}", self.folder / "credentials" / "ca.crt"))
        # For every message of a real node Flower starts a process.
        short = ["-c", 'set="experiment.rounds=1"'] if "lab" in words else []
        said = self._finish([program("flwr"), *words[1:], *short], home)
        # Its exit status is 0 even when the run fails.
        assert "finished" in said, said[-4000:]
        assert "Exit Code" not in said, said[-4000:]

    def _finish(self, command: list[str], home: Path | None = None) -> str:
        done = subprocess.run(
            command, env=flower_environment(home), cwd=self.folder, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def _here(self, word: str) -> list[str]:
        """Return a word with this machine's addresses, folders and runs; patterns of runs become several."""
        word = re.sub(r"(SERVER|fed\.example):\d+|127\.0\.0\.1:8000", f"127.0.0.1:{self._port}", word)
        word = re.sub(r"/(srv|var/lib)/", rf"{self.folder}/\1/", word)
        if "*" in word and word.startswith("runs/"):
            found = sorted(str(path) for path in Path().glob(word))
            if not found:
                raise NoRunError(f"no run is named {word}")
            return found
        word = re.sub(r"(runs/[\w.-]*?\w)-\.\.\.", lambda found: newest(found[1], ".*"), word)
        return [re.sub(rf"(runs/[\w.-]*?\w){_TIME}", lambda found: newest(found[1]), word)]


class NoRunError(AssertionError):
    """A line names a run that no line before has made."""


def newest(begin: str, more: str = "") -> str:
    """Return the newest run folder of this name, and perhaps more of it, before its time."""
    found = [path for path in Path("runs").glob("*") if re.fullmatch(f"{re.escape(begin)}{more}{_TIME}", str(path))]
    if not found:
        raise NoRunError(f"no line of the page has made a run {begin}-...")
    return str(max(found, key=lambda path: path.stat().st_mtime_ns))
