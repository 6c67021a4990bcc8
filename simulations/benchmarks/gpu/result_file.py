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
        there = _read(path)
        before = {key: there.get(key) for key in conditions}
        if before != conditions:
            raise ExperimentError(
                f"--out {path}: its parts were measured with {before}, and these would be with {conditions}; name "
                "another file"
            )
        self._content["parts"] = there["parts"]

    @classmethod
    def there(cls, path: Path) -> ResultFile:
        """Return a file that was written before, as it is. Raises ExperimentError when it is none."""
        if not path.exists():
            raise ExperimentError(f"--out {path}: there is no such file")
        file = cls.__new__(cls)
        file.path, file._content = path, _read(path)
        return file

    @property
    def device(self) -> str:
        """The device, and the PyTorch, that the parts were measured with."""
        return f"{self._content['device']}, PyTorch {self._content['machine']['packages']['torch']}"

    @property
    def is_rehearsal(self) -> bool:
        """Whether its numbers say nothing about a GPU."""
        return bool(self._content["rehearsal"] or self._content["tiny"])

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


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        if content["benchmark"] != "gpu" or not isinstance(content["parts"], dict):
            raise ValueError
    except (ValueError, KeyError, TypeError) as error:
        raise ExperimentError(f"--out {path}: this is no file of the benchmark; name another one") from error
    return content
