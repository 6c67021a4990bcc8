"""The one file of all that was found: written after each part, and read again by the command that goes on."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedgraph.simulations.benchmarks.gpu.found import Found
from fedgraph.support.errors import ExperimentError
from fedgraph.support.files import write_atomically


class ResultFile:
    """Parts that were measured, or that failed, by name.

    Parameters
    ----------
    path : Path
        JSON; it need not exist yet.
    conditions : dict
        What all parts of a file have in common: the device, and whether sizes are tiny.
    machine : dict
        What is said of the machine and the versions where the file is new.

    Raises
    ------
    ExperimentError
        When there is such a file of other conditions, or it is something else.
    """

    def __init__(self, path: Path, conditions: dict[str, Any], machine: dict[str, Any]) -> None:
        self.path = path
        self._content = {"benchmark": "gpu", **conditions, "machine": machine, "parts": {}}
        if not path.exists():
            return
        try:
            there = json.loads(path.read_text())
            before = {key: there.get(key) for key in ("benchmark", *conditions)}
            parts = there["parts"]
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ExperimentError(f"--out {path}: this is no file of the benchmark; name another one") from error
        if before != {"benchmark": "gpu", **conditions}:
            raise ExperimentError(
                f"--out {path}: its parts were measured with {before}, and these would be with {conditions}; name "
                "another file"
            )
        self._content["parts"] = parts

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        """What is known of each part: ``error``, or the fields of :class:`Found`; and its ``seconds``."""
        parts: dict[str, dict[str, Any]] = self._content["parts"]
        return parts

    def done(self, name: str) -> bool:
        """Return whether a part was measured."""
        return "rows" in self.parts.get(name, {})

    def failed(self, name: str) -> bool:
        """Return whether a part was tried, and failed."""
        return "error" in self.parts.get(name, {})

    def add(self, name: str, title: str, outcome: Found | str, seconds: float) -> None:
        """Note what a part has found, or its error, and write the file."""
        content = {"error": outcome} if isinstance(outcome, str) else asdict(outcome)
        self.parts[name] = {"title": title, "seconds": round(seconds, 1), **content}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, (json.dumps(self._content, indent=1) + "\n").encode())
