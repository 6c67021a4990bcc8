"""Where a scenario takes place: starts a run, lets faults happen to it, and goes on with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from disturbances.scenario import Fault
from fedgraph.runs import RunFolder


@dataclass
class Attempt:
    """A start of a run, or of the rest of it.

    Attributes
    ----------
    error : str
        Why it did not end well; empty if it did.
    foreseen : bool
        Whether that is an error that the program reports in words.
    happened : int
        How many of the faults happened meanwhile.
    """

    error: str = ""
    foreseen: bool = True
    happened: int = 0


@dataclass
class Stage(ABC):
    """A grid with its nodes, as a context manager; what it needs lies in ``folder``, run folders in ``folder/runs``."""

    folder: Path

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    @property
    def runs(self) -> Path:
        """Folder of the run folders."""
        return self.folder / "runs"

    @abstractmethod
    def attempt(self, resumed: RunFolder | None, faults: list[Fault]) -> Attempt:
        """Start the run, or go on with it; the faults happen in turn, those that do not are left for the next time."""
