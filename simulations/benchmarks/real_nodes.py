"""A whole federation of real processes on this machine, over TLS with authenticated nodes: for trials and measurements.

It uses the same programs as separate machines, on private ports; all end with the block, or with this process.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console

from fedgraph.commands.deployment.credentials import Credentials, make_test_credentials
from fedgraph.commands.deployment.node_command import supernode_command
from fedgraph.commands.deployment.server_command import register_nodes, superlink_command
from fedgraph.federation.grids import (
    connection_file,
    end_group,
    flower_environment,
    free_port,
    kill_all,
    program,
    start,
    wait_for_superlink,
    write_app,
)
from fedgraph.runs import RunFolder

_HOST = "127.0.0.1"


class Running:
    """A process with all its children."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._ended = False

    def end(self) -> None:
        """End it, as an operator would."""
        if not self._ended:
            self._ended = True
            end_group(self.process)

    def kill(self) -> None:
        """Kill it, as a power cut would."""
        self._ended = True
        kill_all(self.process)


class FederationOnThisMachine:
    """A SuperLink, and SuperNodes that are started and ended one by one.

    Parameters
    ----------
    folder : Path
        Folder for credentials, logs and what nodes keep; ``state/NAME`` is the state folder of a node.
    sites : sequence of str
        Names of the nodes whose keys the SuperLink knows; those of their clients where runs ask for proof.
    environment : mapping of str to str, optional
        Variables added to those of all programs, e.g. ``PYTHONPATH``.
    days : float, optional
        Validity of the server's certificate; if negative it has expired, and no node can join.
    """

    def __init__(
        self, folder: Path, sites: Iterable[str], environment: Mapping[str, str] | None = None, days: float = 1
    ) -> None:
        self.folder = folder
        self.credentials: Credentials = make_test_credentials(folder / "credentials", [_HOST], sites, days)
        self.log = folder / "flower.log"
        self.port = free_port()
        self.superlink: Running | None = None
        self._days = days
        self._environment = dict(environment or {})
        self._stack = ExitStack()

    def __enter__(self) -> FederationOnThisMachine:
        write_app(self.folder / "app")
        self.start_superlink()
        if self._days > 0:
            register_nodes(self.credentials.public_keys, self.address, self.credentials.authority, Console(quiet=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def address(self) -> str:
        """Address of the SuperLink."""
        return f"{_HOST}:{self.port}"

    def start_superlink(self) -> Running:
        """Start the SuperLink, or restart it with the same database."""
        own = self.credentials
        command = superlink_command(
            _HOST, self.port, self.folder / "superlink.db", own.certificate, own.key, own.authority
        )
        self.superlink = self._start(command, self.folder / "superlink")
        wait_for_superlink(self.port, self.superlink.process, self.log, encrypted=True)
        return self.superlink

    def start_node(
        self, site: str, node_config: Mapping[str, Any], superlink: str | None = None, app_code: bool = False
    ) -> Running:
        """Start the SuperNode of a site, which answers every run unless its node config has an ``agreement``.

        ``superlink`` is the address at which it finds the SuperLink, by default the SuperLink's own. With ``app_code``
        messages are answered by the app that a run brings along, as is Flower's way.
        """
        key = self.credentials.private_key(site)
        own = {"agreement": "any", "state-dir": str(self.folder / "state" / site), "private-key": str(key)}
        config = {**own, **node_config}
        command = supernode_command(
            superlink or self.address, free_port(), config, self.credentials.authority, key, False
        )
        return self._start(command, self.folder / "homes" / site, ["--app-code"] if app_code else [])

    def start_site(self, site: str, experiment: Path, *options: str) -> Running:
        """Start the node of a site as the guide says: it answers ``experiment`` alone."""
        own = self.credentials
        command = [
            *("fedgraph", "node", str(experiment), "--superlink", self.address, "--port", str(free_port())),
            *("--root-certificates", str(own.authority), "--private-key", str(own.private_key(site)), "--verbose"),
        ]
        return self._start([*command, *options], self.folder / "homes" / site)

    def submit(self, run: RunFolder) -> Running:
        """Submit the experiment of a run folder, or continue it."""
        resume = shlex.quote(f"output.resume={run.path}")
        settings = f'experiment="{run.path / "experiment.toml"}" set="{resume}"'
        return self.submit_app(self.folder / "app", settings)

    def submit_app(self, app: Path, run_config: str) -> Running:
        """Submit the Flower app of a folder, with a run config as ``flwr run -c`` takes it."""
        home = self.folder / "researcher"
        connection_file(home, self.address, self.credentials.authority)
        return self._start(["flwr", "run", str(app), "here", "--stream", "-c", run_config], home)

    def run(self, run: RunFolder, seconds: float = 240) -> str:
        """Submit the experiment of a run folder and wait until it ends; return the logs of all programs."""
        submitted = self.submit(run)
        try:
            submitted.process.wait(seconds)
        finally:
            submitted.end()
        return self.log.read_text(errors="replace")

    def _start(self, command: list[str], home: Path, options: Sequence[str] = ()) -> Running:
        environment = flower_environment(home, **self._environment)
        # A supervised SuperLink would end, as its own programs refuse an expired certificate at once.
        if command[0].startswith("flower-") and self._days > 0:
            command = ["fedgraph", "supervise", *options, *command]
        running = Running(start([program(command[0]), *command[1:]], environment, self.log, cwd=self.folder))
        self._stack.callback(running.end)
        return running
