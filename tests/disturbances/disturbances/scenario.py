"""A scenario: what happens to a run, when, and what must hold at its end. It is data, a TOML file::

title = "A node is killed while it trains, and comes back"
experiment = "sfl"
grid = "nodes"

[[faults]]
when = {lines = 2, seconds = 1.0}
action = "kill"
target = "supernode"

[holds]
end = "resumed"
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fedgraph.support.settings import Settings, parse

WRITES = ("no-space", "io-error", "short-write")
MESSAGES = ("lose-request", "lose-reply", "repeat-reply")
PROCESSES = ("kill", "pause", "step-clock")


class When(Settings):
    """The moment of a fault: one of ``lines``, ``message`` and ``write``.

    Attributes
    ----------
    lines : int, optional
        Once ``metrics.jsonl`` has so many lines; 0 is once there is a run folder.
    seconds : float
        So long after that.
    message : int, optional
        With the n-th message to a node, counted from 1.
    kind : str
        Count messages of this kind only, such as ``"train"``.
    write : int, optional
        With the n-th time that a file is made, written, flushed or renamed, counted from 1.
    """

    lines: Annotated[int, Field(ge=0)] | None = None
    seconds: Annotated[float, Field(ge=0)] = 0.0
    message: Annotated[int, Field(ge=1)] | None = None
    kind: str = ""
    write: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> When:
        if sum(value is not None for value in (self.lines, self.message, self.write)) != 1:
            raise ValueError("give one of lines, message and write")
        return self


class Fault(Settings):
    """What happens.

    Attributes
    ----------
    when : When
        The moment.
    action : str
        ``kill`` (SIGKILL), ``pause`` (SIGSTOP for ``for`` seconds) or ``step-clock`` (by ``by`` seconds) for processes;
        ``lose-request``, ``lose-reply`` or ``repeat-reply`` for a message; ``no-space`` (from then on), ``io-error``
        (once) or ``short-write`` (half of it, and no space for the rest) for a write.
    target : str
        The program, of those that run on this grid.
    node : int
        Which one, where there are several: the programs of one node.
    pause : float
        Seconds that a process is paused for.
    by : float
        Seconds by which the clock is set forward, or back.
    """

    when: When
    action: Literal["kill", "pause", "step-clock", "lose-request", "lose-reply", "repeat-reply", "no-space", "io-error",
                    "short-write"]  # fmt: skip
    target: Literal["server", "superlink", "serverapp", "server-executor", "supernode", "executor", "clientapp",
                    "worker"] = "server"  # fmt: skip
    node: Annotated[int, Field(ge=0)] = 0
    pause: Annotated[float, Field(gt=0)] = 30.0
    by: float = 3600.0

    @model_validator(mode="after")
    def _fits(self) -> Fault:
        for moment, actions in (("lines", PROCESSES), ("message", MESSAGES), ("write", WRITES)):
            if getattr(self.when, moment) is not None and self.action not in actions:
                raise ValueError(f"when = {{{moment} = ...}} goes with {', '.join(actions)}, not with {self.action}")
        return self


class Holds(Settings):
    """What must hold at the end, beside what always must: see :func:`disturbances.trial.try_scenario`.

    Attributes
    ----------
    end : {"either", "finished", "resumed"}
        The run went on to its end by itself, or it stopped and did once it was resumed.
    weights : {"same", "finite"}
        The final models are those of the undisturbed run, or finite.
    """

    end: Literal["either", "finished", "resumed"] = "either"
    weights: Literal["same", "finite"] = "same"


class Scenario(Settings):
    """A run, what happens to it, and what must hold at the end.

    Attributes
    ----------
    title : str
        What it is, in a sentence.
    experiment : str
        One of the small experiments of the tests, by method, or the path of an experiment file.
    set : list of str
        Keys to override, as for ``fedgraph run --set``.
    grid : {"in-process", "local", "ray", "nodes"}
        In the process of the test; ``fedgraph run``; the same on Ray; or a SuperLink with SuperNodes.
    nodes : int
        Number of nodes among which clients are divided; small experiments with nodes of their own have those.
    faults : list of Fault
        What happens, one after the other.
    holds : Holds
        What must hold.
    """

    title: str
    experiment: str
    set: list[str] = Field(default_factory=list)
    grid: Literal["in-process", "local", "ray", "nodes"] = "in-process"
    nodes: Annotated[int, Field(ge=1)] = 2
    faults: list[Fault] = Field(default_factory=list)
    holds: Holds = Holds()

    @model_validator(mode="after")
    def _fits(self) -> Scenario:
        for fault in self.faults:
            if (fault.action in PROCESSES) == (self.grid == "in-process"):
                raise ValueError(f'{fault.action} cannot happen on the grid "{self.grid}"')
        return self


def read_scenario(path: Path) -> Scenario:
    """Read a scenario. Raises ExperimentError, with what is wrong with each key, where it does not fit."""
    table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return parse(Scenario, table, str(path))
