"""Runs of a strategy or client class on a small experiment, each with its own disturbance."""

from __future__ import annotations

import logging
import os
import random
import shlex
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from fedgraph.clients.app import app as client_app
from fedgraph.commands.checking.disturbances import (
    Disturbed,
    OwnModules,
    Place,
    PowerCut,
    PowerCuts,
    Serve,
    lost,
    restarting,
)
from fedgraph.commands.checking.subject import Subject
from fedgraph.experiment import parse_experiment
from fedgraph.federation.grids import LocalGrid
from fedgraph.runs import RunFolder
from fedgraph.starting.running import run_one
from fedgraph.strategies.app import serve as serve_run
from fedgraph.support.errors import ContractError, FedgraphError

RELATIVE, ABSOLUTE = 1e-4, 1e-5
"""How far weights may differ where sums are taken in another order, relative to a weight and in itself."""

TOLERANT: dict[str, Any] = {"on_missing": "skip", "min_clients": 1, "wait": 0.0}
"""Keys of ``[experiment]`` with which clients may be absent."""


@dataclass(frozen=True)
class Finished:
    """What a finished run has left.

    Attributes
    ----------
    summary : dict
        ``summary.json``.
    tensors : dict of str to Tensor
        All tensors of its result files, by file and name.
    """

    summary: dict[str, Any]
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, folder: RunFolder) -> Finished:
        """Read a run folder."""
        files = [path for path in sorted(folder.path.glob("*.safetensors")) if path != folder.checkpoint]
        return cls(
            folder.summary(),
            {f"{path.name}: {name}": tensor for path in files for name, tensor in load_file(path).items()},
        )

    @property
    def clients(self) -> int:
        """Number of clients."""
        return int(self.summary["clients"])

    def difference(self, other: Finished) -> float:
        """Return 0.0 for the same weights, bit for bit; else by how much they differ, in units of the tolerance.

        Above 1 they differ by more than another order of summation explains. Where nothing but a checksum of weights is
        left, numbers that were measured are compared in their place.
        """
        keys = ("weights_sha256", "metrics", "per_client")
        mine, theirs = self.tensors, other.tensors
        if all(self.summary[key] == other.summary[key] for key in keys) and _same(mine, theirs):
            return 0.0
        numbers = [pair for key in keys[1:] for pair in _pairs(self.summary[key], other.summary[key])]
        if mine.keys() != theirs.keys() or any(mine[name].shape != theirs[name].shape for name in mine):
            return float("inf")
        pairs = [(mine[name].double(), theirs[name].double()) for name in mine]
        # An accuracy jumps by an example; losses and errors do not.
        pairs += [(torch.tensor(a).double(), torch.tensor(b).double()) for a, b in numbers] if not mine else []
        return max([1e-9, *(_furthest(a, b) for a, b in pairs if a.numel())])


def _same(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> bool:
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def _furthest(a: Tensor, b: Tensor) -> float:
    apart = (a - b).abs() / (ABSOLUTE + RELATIVE * b.abs())
    return float(torch.where(a.isnan() & b.isnan(), 0.0, apart).nan_to_num(nan=float("inf")).max())


def _pairs(mine: Any, theirs: Any) -> Iterator[tuple[float, float]]:
    """Yield the numbers at the same places of two JSON values; NaN where one has none."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        for key in {*mine, *theirs}:
            yield from _pairs(mine.get(key), theirs.get(key))
    else:
        yield tuple(float("nan") if value is None else float(value) for value in (mine, theirs))  # type: ignore[misc]


class Trials:
    """Runs of one class, in this process unless said; those that several checks need are run once.

    Parameters
    ----------
    subject : Subject
        What is checked, and on which experiment.

    Attributes
    ----------
    repeats : bool
        Whether a second run with the same seed has come to the same weights, as far as this was tried.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._modules = OwnModules(subject.modules)
        self.repeats = True

    def run(self, nodes: int, answer: Serve = client_app, grid: type[LocalGrid] = LocalGrid, **head: Any) -> Finished:
        """Run the experiment.

        Parameters
        ----------
        nodes : int
            Number of nodes.
        answer : callable, optional
            Takes the place of the ClientApp.
        grid : type, optional
            Class of the grid.
        **head
            Keys of ``[experiment]`` that differ, with underscores for dashes.

        Raises
        ------
        FedgraphError
            When the run is stopped on purpose.
        ContractError
            When anything else ends it.
        """
        with self._folder(head) as folder:
            self._serve(folder, nodes, answer, grid)
            return Finished.of(folder)

    def finish(self, what: str, nodes: int, *arguments: Any, **named: Any) -> Finished:
        """Run the experiment as :meth:`run` does, and raise ContractError where it does not finish."""
        try:
            return self.run(nodes, *arguments, **named)
        except ContractError:
            raise
        except FedgraphError as error:
            raise ContractError(f"{what}: the run was stopped: {error}") from error

    def resumed(self, nodes: int) -> Finished:
        """Run the experiment with power cuts, each time with everything loaded anew.

        Raises
        ------
        SkipTest
            When the run has no exchange and no epoch in which it could be cut.
        """
        cuts = PowerCuts(within=2 if self.has_rounds else 1)
        with self._folder({}) as folder:
            while not folder.is_finished:
                with suppress(PowerCut):
                    self._serve(folder, nodes, cuts.serve, LocalGrid, [cuts])
            if not cuts.happened:
                raise SkipTest("the run has no exchange in which it could be stopped")
            return Finished.of(folder)

    def with_restarts(self, nodes: int) -> Finished:
        """Run the experiment on nodes that are restarted before every message."""
        return self.finish("nodes that are restarted", nodes, restarting(self._modules))

    def on_ray(self, nodes: int) -> Finished:
        """Run the experiment through ``flwr run``, with nodes on Ray."""
        with self._folder({}) as folder:
            run_one(folder, "flower", nodes, None, Console(quiet=True))
            return Finished.of(folder)

    # ---- runs that several checks need -----------------------------------------------------------------------------

    @cached_property
    def _one_node(self) -> Finished | FedgraphError:
        return self._or_error(lambda: self.finish("on one node", 1))

    @cached_property
    def _apart(self) -> Finished | FedgraphError:
        clients = self.one_node.clients
        return self._or_error(lambda: self.finish(f"on {clients} nodes, one for each client", clients))

    @staticmethod
    def _or_error(run: Callable[[], Finished]) -> Finished | FedgraphError:
        try:
            return run()
        except FedgraphError as error:
            return error

    @property
    def one_node(self) -> Finished:
        """The undisturbed run on one node. Raises SkipTest when it does not finish."""
        if isinstance(self._one_node, FedgraphError):
            raise SkipTest("no run finishes that this could be compared with: see 'finishes'")
        return self._one_node

    @property
    def apart(self) -> Finished:
        """The undisturbed run on a node for each client. Raises SkipTest when it does not finish."""
        if isinstance(self._apart, FedgraphError):
            raise SkipTest("no run on several nodes finishes: see 'number-of-nodes'")
        return self._apart

    @property
    def widest(self) -> Finished:
        """:attr:`apart`, or :attr:`one_node` for what runs on one node alone."""
        return self.one_node if isinstance(self._apart, FedgraphError) else self.apart

    def must_finish(self, apart: bool = False) -> Finished:
        """Return one of these two runs. Raises the error that ended it."""
        found = self._apart if apart else self._one_node
        if isinstance(found, FedgraphError):
            raise found
        return found

    @cached_property
    def with_lost_replies(self) -> Finished:
        """The run on a node for each client in which replies are lost at :attr:`places`, and left out."""
        answer = Disturbed(self.places, lost)
        return self.finish('with on-missing = "skip"', self.apart.clients, answer, **TOLERANT)

    @property
    def has_rounds(self) -> bool:
        """Whether the method has rounds."""
        return self.subject.has_rounds

    @property
    def places(self) -> list[Place]:
        """Where replies are lost or spoilt: the first client's in round 1, the second's in round 2."""
        return [Place(0, 1), Place(1, 2)] if self.has_rounds else [Place(0, None)]

    # ---- one run ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _folder(self, head: Mapping[str, Any]) -> Iterator[RunFolder]:
        """Make a run folder for the time of the block, in which nothing is logged to the terminal."""
        tables = self.subject.tables
        changed = {key.replace("_", "-"): value for key, value in head.items()}
        tables = {**tables, "experiment": {**tables["experiment"], "on-missing": "fail", **changed}}
        if not self.has_rounds and head:
            # Without rounds, whom a node hosts is in its first answer: that nobody else may be named is said here.
            per_client: dict[str, Any] = next(iter(self.apart.summary["per_client"].values()))
            tables["clients"] = {"expect": sorted(next(iter(per_client.values())))}
        loggers = [logging.getLogger(name) for name in ("fedgraph", "flwr")]
        before = [(logger.level, logger.propagate) for logger in loggers]
        ours, flowers = loggers
        ours.propagate = False
        flowers.setLevel(logging.CRITICAL)
        with tempfile.TemporaryDirectory(prefix="fedgraph-check-") as scratch, self._modules.kept():
            try:
                yield RunFolder.create(parse_experiment(tables), Path(scratch))
            finally:
                for logger, (level, propagate) in zip(loggers, before, strict=True):
                    logger.setLevel(level)
                    logger.propagate = propagate

    def _serve(
        self, folder: RunFolder, nodes: int, answer: Serve, grid: type[LocalGrid], listeners: Sequence[Any] = ()
    ) -> None:
        self._modules.restart()
        run_config = {
            "experiment": str(folder.path / "experiment.toml"),
            "set": shlex.quote(f"output.resume={folder.path}"),
            "data-dir": os.environ.get("FEDGRAPH_DATA", ""),
        }
        node = {"state_dir": str(folder.path / "nodes"), "full_errors": True, "any_files": True}
        if run_config["data-dir"]:
            node["data_dir"] = run_config["data-dir"]
        local = grid.of_partitions(answer, nodes, run_config, **node)  # type: ignore[arg-type]
        try:
            with _generators_anew():
                serve_run(local, run_config, listeners)
        except FedgraphError:
            raise
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            raise ContractError(
                f"the run crashed with {type(error).__name__}: {error} ({Path(at.filename).name}, line {at.lineno}). "
                "What can go wrong ends a run with an error of fedgraph.support.errors that says what to do"
            ) from error


@contextmanager
def _generators_anew() -> Iterator[None]:
    """Have whatever is drawn from global generators in the block differ from run to run."""
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.seed()
        np.random.seed()
        random.seed()
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
