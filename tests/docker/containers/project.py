"""A compose file of ``docker/``, brought up under a name and on ports of the tests' own."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from containers.engine import Engine

DOCKER = Path(__file__).resolve().parents[3] / "docker"
RUNS = "/var/lib/fedgraph/runs"


def until(true: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
    """Wait until something is true; an AssertionError with ``what()`` when it is not in time."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} seconds: {what()}"
        time.sleep(1)


class Project:
    """One of the compose files as it is, but for the name of the image, which is not that of a user's.

    Parameters
    ----------
    engine : Engine
        Where it runs.
    name : str
        The project's name, which containers, networks and volumes begin with.
    file : str
        Name of the compose file, without its ending.
    image : str
        Name of the image.
    folder : Path
        A folder of its own.
    variables : mapping of str to str, optional
        Variables that the file asks for.
    **changes : dict
        Keys of services in which they differ from the file, by service.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        file: str,
        image: str,
        folder: Path,
        variables: Mapping[str, str] | None = None,
        **changes: Mapping[str, Any],
    ) -> None:
        self.engine = engine
        self.name = name
        self._environment = {**engine.environment, **(variables or {})}
        folder.mkdir(parents=True, exist_ok=True)
        self._files = [DOCKER / f"{file}.yaml", folder / f"{name}.json"]
        # As the file has them: the door is not ours.
        told = json.loads(self._compose([self._files[0]], "config", "--format", "json"))["services"]
        ours = {service: {"image": image} for service, keys in told.items() if keys["image"] == "fedgraph"}
        services = {service: {**ours.get(service, {}), **changes.get(service, {})} for service in told}
        self._files[1].write_text(json.dumps({"services": services}))

    def compose(self, *arguments: object, **options: Any) -> str:
        """Run a command of Compose and return what it prints."""
        return self._compose(self._files, *arguments, **options)

    def up(self) -> None:
        """Start it as the pages say, and wait until all services are healthy."""
        self.compose("up", "--detach", "--wait", seconds=300)

    def down(self) -> None:
        """Stop it, and delete its volumes."""
        # What was not stopped in time would be killed: these tests do not wait for the last message.
        self.compose("down", "--volumes", "--timeout", "5", seconds=300)

    def execute(self, service: str, *command: str, **options: Any) -> str:
        """Run a command in the container of a service and return what it prints."""
        return self.compose("exec", "-T", service, *command, **options)

    def logs(self, *services: str) -> str:
        """Return the last lines of the logs."""
        return self.compose("logs", "--no-color", "--tail", "60", *services)

    def crash(self, service: str) -> None:
        """Kill all processes of a container, as a crash would: the engine is not told, and starts them again."""
        started = self._inspect(service, "{{.State.StartedAt}}")
        # Of -1 are excepted the first process, which ends with its child, and the one that kills.
        self.engine.try_docker("exec", self._container(service), "sh", "-c", "kill -9 -1")
        until(
            lambda: self._inspect(service, "{{.State.StartedAt}}") != started, 30, lambda: f"{service} does not crash"
        )

    def is_healthy(self, service: str) -> bool:
        """Return whether a service runs and its health check is content."""
        return self._inspect(service, "{{.State.Status}} {{.State.Health.Status}}") == "running healthy"

    def until_healthy(self, service: str, seconds: float = 180) -> None:
        """Wait until a service is healthy."""
        until(lambda: self.is_healthy(service), seconds, lambda: self.logs(service))

    def submit(self, log: Path, **run_config: str) -> Submitted:
        """Submit the copy of the project in the image, as the pages say."""
        settings = " ".join(f'{key}="{value}"' for key, value in run_config.items())
        command = ["docker", "compose", *self._options(self._files), "exec", "-T", "superlink"]
        command += ["flwr", "run", "/opt/fedgraph", "here", "--stream", "-c", settings]
        with log.open("w") as stream:
            process = subprocess.Popen(command, env=self._environment, stdout=stream, stderr=subprocess.STDOUT)
        return Submitted(process, log)

    def summary(self, name: str) -> dict[str, Any]:
        """Return the summary of the one run whose folder begins with a name."""
        found = self.execute("superlink", "sh", "-c", f"cat {RUNS}/{name}*/summary.json")
        return dict(json.loads(found))

    def _container(self, service: str) -> str:
        return self.compose("ps", "--all", "--quiet", service).strip()

    def _inspect(self, service: str, template: str) -> str:
        return self.engine.docker("inspect", "--format", template, self._container(service)).strip()

    def _options(self, files: list[Path]) -> list[str]:
        return ["--project-name", self.name, *(f"--file={path}" for path in files)]

    def _compose(self, files: list[Path], *arguments: object, **options: Any) -> str:
        return self.engine.docker("compose", *self._options(files), *arguments, env=self._environment, **options)


class Submitted:
    """A run that was submitted, and what is said of it."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def said(self) -> str:
        """Return the log so far."""
        return self._log.read_text(errors="replace")

    def until_said(self, words: str, seconds: float = 400) -> None:
        """Wait until the log has some words."""
        until(lambda: words in self.said() or self._process.poll() is not None, seconds, self.said)
        assert words in self.said(), f"the run ended before '{words}':\n{self.said()[-4000:]}"

    def until_it_ends(self, seconds: float = 600) -> str:
        """Wait until nothing more is said, and return the log."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise AssertionError(f"not over within {seconds:.0f} seconds: {self.said()[-4000:]}") from None
        return self.said()
