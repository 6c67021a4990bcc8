"""Runs of a strategy or client class on a small experiment, each with one thing changed."""

from __future__ import annotations

import logging
import os
import random
import shlex
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal
from unittest import SkipTest

import numpy as np
import torch
from flwr.app import Message
from flwr.serverapp.strategy import Strategy
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from fedgraph.algorithms.phases import has_phases
from fedgraph.commands.checking.disturbance import AGAIN, CUT, ON_RAY, REORDERED, ChangedNodes, PowerCut, restartable
from fedgraph.commands.checking.experiments import class_of, small_experiment, strategy_for
from fedgraph.experiment import load_experiment, parse_experiment
from fedgraph.federation.grids import LocalGrid
from fedgraph.runs import RunFolder
from fedgraph.starting.running import run_one
from fedgraph.strategies.app import serve
from fedgraph.strategies.engine.chosen import ChosenMethod, is_ours
from fedgraph.support.errors import ContractError, ExperimentError, FedgraphError

RELATIVE, ABSOLUTE = 1e-4, 1e-5
"""How far weights may differ where sums are taken in another order, relative to a weight and in itself."""

Nodes = Literal["one", "two", "each", "most"]


class StoppedError(FedgraphError):
    """A run was stopped by an error that is meant for people, which is the cause."""


@dataclass(frozen=True)
class Finished:
    """What a finished run leaves: ``summary.json``, all tensors of its result files, and whether anything was changed.

    Where a run leaves no tensors, the clients' metrics take their place.
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
        per_client = [values for split in summary["per_client"].values() for values in split.values()]
        metrics = [values[client] for values in per_client for client in sorted(values)]
        measured = torch.tensor([torch.nan if value is None else value for value in metrics], dtype=torch.float64)
        return cls(summary, tensors or {"metrics": measured}, changed)

    @property
    def clients(self) -> int:
        """Number of clients."""
        return int(self.summary["clients"])

    def same(self, other: Finished) -> bool:
        """Return whether weights and metrics are the same, bit for bit."""
        alike = all(self.summary[key] == other.summary[key] for key in ("weights_sha256", "metrics", "per_client"))
        return alike and self.close(other, 0.0, 0.0)

    def close(self, other: Finished, relative: float = RELATIVE, absolute: float = ABSOLUTE) -> bool:
        """Return whether weights differ by no more than another order of summation explains."""
        mine, theirs = self.tensors, other.tensors
        return mine.keys() == theirs.keys() and all(
            mine[name].shape == theirs[name].shape
            and torch.allclose(mine[name].double(), theirs[name].double(), relative, absolute, equal_nan=True)
            for name in mine
        )


class Trials:
    """A strategy or client class, an experiment that runs it, and its runs, each made once.

    ``run(nodes, change="", on_missing="fail")`` runs the experiment on so many nodes, with one thing of
    :mod:`~fedgraph.commands.checking.disturbance` changed. It raises StoppedError when the run is stopped on purpose,
    ContractError when anything else ends it, and SkipTest when there was no exchange in which the power could be cut.

    Arguments are those of :func:`~fedgraph.commands.checking.checks_of`. Raises ExperimentError when there is no such
    class, it is neither strategy nor client class, or the experiment does not fit it.
    """

    def __init__(self, what: str | type, experiment: str | Path | None = None, overrides: Iterable[str] = ()) -> None:
        self.path = path = what if isinstance(what, str) else f"{what.__module__}:{what.__qualname__}"
        self.checked = checked = class_of(path)
        self.is_client = not (issubclass(checked, Strategy) or is_ours(checked))
        if self.is_client and not callable(getattr(checked, "handle", None)):
            raise ExperimentError(
                f"'{path}' is neither a strategy (a subclass of fedgraph.algorithms.Algorithm, of "
                "fedgraph.algorithms.phases.PhasedAlgorithm or of flwr.serverapp.strategy.Strategy) nor a client class "
                "(with a classmethod handle(message, node)) nor a data set (a subclass of fedgraph.data.DataSet)"
            )
        own = [f"experiment.client={path}"] if self.is_client else []
        changes = [*own, "experiment.rounds=3", "output.checkpoint-every=1", *overrides]
        if experiment is not None:
            self.experiment = load_experiment(experiment, changes, None if self.is_client else path)
        else:
            self.experiment = small_experiment(strategy_for(checked) if self.is_client else path, changes)
        method = self.experiment.method
        self.client_path = ChosenMethod(self.experiment).client
        self.strategy: type[Any] = method.strategy_class
        self.has_rounds = not has_phases(self.strategy)
        kind = f"a client class, with {method.name}" if self.is_client else "a strategy,"
        self.title = f"{path}, {kind} on {self.experiment.data.as_table()['set']}"
        self.run = cache(self._run)
        self.repeats = True

    def undisturbed(self, nodes: int, change: str = "") -> Finished:
        """Return a run to compare with. Raises SkipTest when two are known to differ."""
        if not self.repeats and change != AGAIN:
            raise SkipTest("two runs with the same seed differ already: see 'same-seed'")
        return self.run(nodes)

    def nodes(self, how: Nodes) -> int:
        """Return one node, two, a node for each client, or as many as finish.

        Raises SkipTest when no run on one node finishes or, for ``each``, none on so many.
        """
        if not self._finishes(1):
            raise SkipTest("no run finishes that this could be compared with: see 'finishes'")
        clients = self.run(1).clients
        if how in ("one", "two"):
            return min(1 if how == "one" else 2, clients)
        if how == "each" and not self._finishes(clients):
            raise SkipTest("no run on several nodes finishes: see 'number-of-nodes'")
        return clients if self._finishes(clients) else 1

    def _finishes(self, nodes: int) -> bool:
        with suppress(FedgraphError):
            return bool(self.run(nodes))
        return False

    def _run(self, nodes: int, change: str = "", on_missing: str = "fail") -> Finished:
        what = f"the run on {nodes} node{'s' * (nodes > 1)}{change and f' with {change}'}"
        what += f' and on-missing = "{on_missing}"' if on_missing != "fail" else ""
        modules = {path.partition(":")[0] for path in (self.experiment.method.strategy, self.client_path)}
        scratch = tempfile.TemporaryDirectory(prefix="fedgraph-check-")
        with scratch, _quiet(), restartable(modules) as restart:
            folder = RunFolder.create(parse_experiment(self._tables(on_missing)), Path(scratch.name))
            changed = ChangedNodes(change, self.has_rounds, restart)
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
                    ". What can go wrong ends a run with an error of fedgraph.support.errors that says what to do"
                ) from error
            found = Finished.of(folder, changed.happened)
        if change == CUT and not found.changed:
            raise SkipTest("the run has no exchange in which it could be stopped")
        if change == AGAIN:
            self.repeats = found.same(self.run(nodes))
        return found

    def _tables(self, on_missing: str) -> dict[str, Any]:
        tables = self.experiment.as_dict()
        head: dict[str, Any] = {"on-missing": on_missing}
        if on_missing != "fail":
            head |= {"min-clients": 1, "wait": 0.0}
            if not self.has_rounds:
                # Without rounds, a node's first answer says whom it hosts; if it is lost, only this names its clients.
                per_client: dict[str, Any] = next(iter(self.run(1).summary["per_client"].values()))
                tables["clients"] = {"expect": sorted(next(iter(per_client.values())))}
        return {**tables, "experiment": {**tables["experiment"], **head}}


class _ReorderedGrid(LocalGrid):
    """Nodes and replies in another order."""

    def __init__(self, app: Any, configs: Sequence[Mapping[str, Any]], run_config: Mapping[str, Any]) -> None:
        super().__init__(app, configs[::-1], run_config)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = list(super().send_and_receive(messages, timeout=timeout))
        return replies[-1:] + replies[:-1]


def _start(folder: RunFolder, nodes: int, change: str, changed: ChangedNodes) -> None:
    """Run or go on with the experiment of a run folder."""
    if change == ON_RAY:
        run_one(folder, "flower", nodes, None, Console(quiet=True))
        return
    data = {"data-dir": os.environ["FEDGRAPH_DATA"]} if os.environ.get("FEDGRAPH_DATA") else {}
    resume = shlex.quote(f"output.resume={folder.path}")
    run_config = {"experiment": str(folder.path / "experiment.toml"), "set": resume, **data}
    common = {"num-partitions": nodes, "state-dir": str(folder.path / "nodes"), "full-errors": True}
    configs = [{"partition-id": number, **common, **data} for number in range(nodes)]
    # Whatever is drawn from global generators is to differ from run to run.
    torch.seed()
    np.random.seed()
    random.seed()
    grid = _ReorderedGrid if change == REORDERED else LocalGrid
    serve(grid(changed, configs, run_config), run_config, [changed])


@contextmanager
def _quiet() -> Iterator[None]:
    """Log nothing in the block."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)
