"""Checks of several runs before the first of them trains."""

from __future__ import annotations

import logging
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Message

from fedgraph.clients.app import app as client_app
from fedgraph.clients.engine.rehearsal import rehearse
from fedgraph.experiment import Experiment, load_experiment
from fedgraph.federation.grids import LocalGrid
from fedgraph.runs import RunFolder
from fedgraph.strategies.app import serve
from fedgraph.strategies.engine.chosen import ChosenMethod
from fedgraph.support.errors import FedgraphError

_OPENING = "query.identify"


class _Begun(BaseException):
    """A run is past its opening query; a BaseException, which is not caught as an error."""


class _OpeningGrid(LocalGrid):
    """A grid that ends a run at the first exchange after the opening query."""

    def _deliver(self, message: Message) -> Message:
        if message.metadata.message_type != _OPENING:
            raise _Begun
        return super()._deliver(message)


def look_at(
    folders: Sequence[RunFolder], nodes: int, run_config: Mapping[str, str], node_config: Mapping[str, Any]
) -> None:
    """Open every run of some run folders, without training and without leaving files.

    Raises FedgraphError for anything that would end one of the runs, with the name of its method.

    Parameters
    ----------
    nodes : number of nodes among which clients are divided.
    run_config : run config of the ServerApp, without the experiment.
    """
    quiet = logging.NullHandler()
    log = logging.getLogger("fedgraph")
    log.addHandler(quiet)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    try:
        for folder in folders:
            with tempfile.TemporaryDirectory() as scratch:
                experiment = load_experiment(folder.path / "experiment.toml")
                try:
                    _open(experiment, folder, Path(scratch), nodes, dict(run_config), dict(node_config))
                except FedgraphError as error:
                    method = experiment.method.name
                    raise type(error)(f"{method} cannot run here: {error}", error.quoted) from None
    finally:
        log.removeHandler(quiet)


def _open(
    experiment: Experiment,
    folder: RunFolder,
    scratch: Path,
    nodes: int,
    run_config: dict[str, str],
    node_config: dict[str, Any],
) -> None:
    method = ChosenMethod(experiment)
    config = {**node_config, "state-dir": str(scratch / "nodes")}
    rehearse(
        experiment,
        method.client,
        method.settings.as_table(nulls=True),
        {**config, "partition-id": 0, "num-partitions": nodes},
    )
    output = experiment.output.model_copy(update={"dir": str(scratch), "track": (), "resume": None})
    trial = RunFolder.create(replace(experiment, output=output), scratch, folder.plugins, {})
    run_config = {
        **run_config,
        "experiment": str(trial.path / "experiment.toml"),
        "set": shlex.quote(f"output.resume={trial.path}"),
    }
    grid = _OpeningGrid.of_partitions(client_app, nodes, run_config, **config)
    with suppress(_Begun):
        serve(grid, run_config, ())
