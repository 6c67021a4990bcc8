"""Runs of a strategy or client class on a small experiment, each with one thing changed."""

from __future__ import annotations

import logging
import os
import random
import shlex
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import torch
from flwr.app import Message
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from fedgraph.commands.checking.disturbance import AGAIN, CUT, ON_RAY, REORDERED, ChangedNodes, PowerCut, restartable
from fedgraph.commands.checking.subject import Subject
from fedgraph.experiment import parse_experiment
from fedgraph.federation.grids import LocalGrid
from fedgraph.runs import RunFolder
from fedgraph.starting.running import run_one
from fedgraph.strategies.app import serve
from fedgraph.support.errors import ContractError, FedgraphError

RELATIVE, ABSOLUTE = 1e-4, 1e-5
"""Relative and absolute tolerance of weights for another order of summation."""


class StoppedError(FedgraphError):
    """A run was stopped by a FedgraphError, the cause of this error."""


@dataclass(frozen=True)
class Finished:
    """A finished run: ``summary.json``, all tensors of its result files, and whether it was disturbed.

    For a run without tensors, its metrics take their place.
    """

    summary: dict[str, Any]
    tensors: dict[str, Tensor]
    changed: bool = False

    @classmethod
    def of(cls, folder: RunFolder, changed: bool) -> Finished:
        """Read a run folder."""
        summary = folder.summary()
        files = [path for path in sorted(folder.path.glob("*.safetensors")) if path != folder.checkpoint]
        tensors = {f"{path.name}: {name}": tensor for path in files for name, tensor in load_file(path).items()}
        measured = torch.tensor(_numbers([summary["metrics"], summary["per_client"]]), dtype=torch.float64)
        return cls(summary, tensors or {"metrics": measured}, changed)

    @property
    def clients(self) -> int:
        """Number of clients."""
        return int(self.summary["clients"])

    def same(self, other: Finished) -> bool:
        """Return whether weights and metrics are bitwise equal."""
        alike = all(self.summary[key] == other.summary[key] for key in ("weights_sha256", "metrics", "per_client"))
        return alike and self._all(other, lambda a, b: torch.equal(a.nan_to_num(), b.nan_to_num()))

    def close(self, other: Finished) -> bool:
        """Return whether weights are equal up to the order of summation."""
        return self._all(other, lambda a, b: torch.allclose(a.double(), b.double(), RELATIVE, ABSOLUTE, equal_nan=True))

    def _all(self, other: Finished, alike: Callable[[Tensor, Tensor], bool]) -> bool:
        mine, theirs = self.tensors, other.tensors
        return mine.keys() == theirs.keys() and all(
            mine[name].shape == theirs[name].shape and alike(mine[name], theirs[name]) for name in mine
        )


def _numbers(value: Any) -> list[float]:
    """Return the numbers of a JSON value in order of keys, with NaN for null."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, list):
        return [number for each in value for number in _numbers(each)]
    return [float("nan") if value is None else float(value)]


class Trials:
    """Runs of one class; finished runs are cached and shared by checks.

    ``run(nodes, change="", on_missing="fail")`` runs the experiment on ``nodes`` nodes, with one disturbance of
    :mod:`~fedgraph.commands.checking.disturbance`. It raises StoppedError when a FedgraphError ends the run,
    ContractError when another error does, and SkipTest when there was no exchange in which to cut the power.

    Parameters
    ----------
    subject : Subject
        The class and its experiment.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject, self.title = subject, subject.title
        self.run = cache(self._run)
        self.repeats = True

    def undisturbed(self, nodes: int, change: str = "") -> Finished:
        """Return an undisturbed run. Raises SkipTest when none finishes, or runs are not reproducible."""
        if self.clients and not self.repeats and change != AGAIN:
            raise SkipTest("runs with the same seed differ: see 'same-seed'")
        return self.run(nodes)

    @property
    def clients(self) -> int:
        """Number of clients. Raises SkipTest when no run finishes."""
        if not self._finishes(1):
            raise SkipTest("no run finishes: see 'finishes'")
        return self.run(1).clients

    @property
    def each(self) -> int:
        """Number of nodes with one client each. Raises SkipTest when no run on them finishes."""
        if not self._finishes(self.clients):
            raise SkipTest("no run on several nodes finishes: see 'number-of-nodes'")
        return self.clients

    @property
    def most(self) -> int:
        """Number of nodes with one client each, or 1 for classes that only run on one node."""
        return self.clients if self._finishes(self.clients) else 1

    def _finishes(self, nodes: int) -> bool:
        try:
            return bool(self.run(nodes))
        except FedgraphError:
            return False

    def _run(self, nodes: int, change: str = "", on_missing: str = "fail") -> Finished:
        what = f"the run on {nodes} node{'s' * (nodes > 1)}{change and f' with {change}'}"
        what += f' and on-missing = "{on_missing}"' if on_missing != "fail" else ""
        scratch = tempfile.TemporaryDirectory(prefix="fedgraph-check-")
        with scratch, _quiet(), restartable(self.subject.modules) as restart:
            folder = RunFolder.create(parse_experiment(self._tables(on_missing)), Path(scratch.name))
            changed = ChangedNodes(change, self.subject.has_rounds, restart)
            try:
                while not folder.is_finished:
                    with suppress(PowerCut):
                        restart()
                        _start(folder, nodes, change, changed)
            except FedgraphError as error:
                raise StoppedError(f"{what} was stopped: {error}") from error
            except Exception as error:
                at = traceback.extract_tb(error.__traceback__)[-1]
                raise ContractError(
                    f"{what} crashed with {type(error).__name__}: {error} ({Path(at.filename).name}, line {at.lineno})"
                    ". Raise an error of fedgraph.support.errors that says what to do"
                ) from error
            finished = Finished.of(folder, changed.happened)
        if change == CUT and not finished.changed:
            raise SkipTest("the run has no exchange in which to stop it")
        if change == AGAIN:
            self.repeats = finished.same(self.run(nodes))
        return finished

    def _tables(self, on_missing: str) -> dict[str, Any]:
        tables = self.subject.experiment.as_dict()
        head: dict[str, Any] = {"on-missing": on_missing}
        if on_missing != "fail":
            head |= {"min-clients": 1, "wait": 0.0}
            if not self.subject.has_rounds:
                # Without rounds, nodes name their clients in their first reply: other names must be refused.
                per_client: dict[str, Any] = next(iter(self.run(1).summary["per_client"].values()))
                tables["clients"] = {"expect": sorted(next(iter(per_client.values())))}
        return {**tables, "experiment": {**tables["experiment"], **head}}


class _ReorderedGrid(LocalGrid):
    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = list(super().send_and_receive(messages, timeout=timeout))
        return replies[-1:] + replies[:-1]


def _start(folder: RunFolder, nodes: int, change: str, changed: ChangedNodes) -> None:
    """Run or resume the experiment of a run folder."""
    if change == ON_RAY:
        run_one(folder, "flower", nodes, None, Console(quiet=True))
        return
    data = {"data-dir": os.environ["FEDGRAPH_DATA"]} if os.environ.get("FEDGRAPH_DATA") else {}
    resume = shlex.quote(f"output.resume={folder.path}")
    run_config = {"experiment": str(folder.path / "experiment.toml"), "set": resume, **data}
    common = {"num-partitions": nodes, "state-dir": str(folder.path / "nodes"), "full-errors": True, "any-files": True}
    configs = [{"partition-id": number, **common, **data} for number in range(nodes)]
    # Numbers from global generators must differ between runs.
    torch.seed()
    np.random.seed()
    random.seed()
    kind, step = (_ReorderedGrid, -1) if change == REORDERED else (LocalGrid, 1)
    serve(kind(changed, configs[::step], run_config), run_config, [changed])


@contextmanager
def _quiet() -> Iterator[None]:
    """Disable logging in the block."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)
