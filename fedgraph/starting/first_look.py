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
from fedgraph.clients.engine.node import forget_data
from fedgraph.clients.engine.rehearsal import rehearse, takes_part
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
    folders: Sequence[RunFolder], node_configs: Sequence[Mapping[str, Any]], run_config: Mapping[str, str]
) -> None:
    """Open every run of some run folders, without training and without leaving files.

    Raises FedgraphError for anything that would end one of the runs, with the name of its method.

    Parameters
    ----------
    node_configs : node config of each node.
    run_config : run config of the ServerApp, without the experiment.
    """
    forget_data()
    quiet = logging.NullHandler()
    log = logging.getLogger("fedgraph")
    log.addHandler(quiet)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    try:
        for folder in folders:
            with tempfile.TemporaryDirectory() as scratch:
                experiment = load_experiment(folder.path / "experiment.toml")
                try:
                    _open(experiment, folder, Path(scratch), node_configs, dict(run_config))
                except FedgraphError as error:
                    method = experiment.method.name
                    raise type(error)(f"{method} cannot run here: {error}", error.quoted) from None
    finally:
        log.removeHandler(quiet)


def _open(
    experiment: Experiment,
    folder: RunFolder,
    scratch: Path,
    node_configs: Sequence[Mapping[str, Any]],
    run_config: dict[str, str],
) -> None:
    method = ChosenMethod(experiment)
    configs = [{**each, "state-dir": str(scratch / "nodes")} for each in node_configs]
    settings = method.settings.as_table(nulls=True)
    for config in configs:
        # A run goes on without nodes that host none of its clients.
        if takes_part(experiment, settings, config):
            rehearse(experiment, method.client, settings, config)
            if "partition-id" in config:
                break  # the others have the same data
    output = experiment.output.model_copy(update={"dir": str(scratch), "track": (), "resume": None})
    trial = RunFolder.create(replace(experiment, output=output), scratch, folder.plugins, {})
    run_config = {
        **run_config,
        "experiment": str(trial.path / "experiment.toml"),
        "set": shlex.quote(f"output.resume={trial.path}"),
    }
    grid = _OpeningGrid(client_app, configs, run_config)
    with suppress(_Begun):
        serve(grid, run_config, ())
