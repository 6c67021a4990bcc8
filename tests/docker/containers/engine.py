"""A container engine, as its client sees it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Engine:
    """A container engine that answers; ``environment`` has all environment variables of its client."""

    environment: Mapping[str, str] = field(repr=False)

    def docker(self, *arguments: object, seconds: float = 600, **more: Any) -> str:
        """Run the client and return what it prints; an AssertionError has what it said when it fails."""
        done = self.try_docker(*arguments, seconds=seconds, **more)
        assert done.returncode == 0, (
            f"docker {' '.join(map(str, arguments))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
        return done.stdout

    def try_docker(self, *arguments: object, seconds: float = 600, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run the client, which may fail."""
        options = {"env": self.environment, "timeout": seconds, "capture_output": True, "text": True, **more}
        return subprocess.run(["docker", *map(str, arguments)], check=False, **options)

    def lacks(self) -> str:
        """Return what it lacks for these tests; an empty text when it has all."""
        for arguments, what in (
            (("info", "--format", "{{.ServerVersion}}"), "no container engine answers"),
            (("compose", "version"), "docker has no Compose plugin"),
            (("buildx", "version"), "docker has no Buildx plugin"),
        ):
            try:
                done = self.try_docker(*arguments, seconds=60)
            except (FileNotFoundError, subprocess.TimeoutExpired):
                return "no container engine answers"
            if done.returncode != 0:
                return what
        return ""
