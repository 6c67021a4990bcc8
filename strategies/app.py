"""The ServerApp: from an experiment file to a finished run folder."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedgraph.algorithms.phases import has_phases
from fedgraph.experiment import Experiment, load_experiment, plugin_folders
from fedgraph.federation import quick
from fedgraph.runs import Callback, Run, RunFolder
from fedgraph.runs.reports import as_text
from fedgraph.runs.reports.page import leave_report
from fedgraph.runs.tracking import tracked
from fedgraph.strategies.engine.chosen import ChosenMethod
from fedgraph.strategies.engine.phase_runs import execute_phases
from fedgraph.strategies.engine.round_runs import execute_rounds
from fedgraph.support.catalogue import data_folder
from fedgraph.support.plugins import add_plugin_paths, is_run_folder
from fedgraph.support.status import report_status, report_warnings
from fedgraph.support.threads import pinned_threads

log = logging.getLogger("fedgraph")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment of the run config; keys ``experiment, set, data-dir, output-dir, seed``."""
    # Without a terminal, log messages go to the handlers of Flower's log, which streams them.
    handlers = logging.getLogger("flwr").handlers[:]
    for handler in handlers:
        log.addHandler(handler)
    report_warnings()
    try:
        folder = serve(grid, context.run_config, number=context.run_id)
        leave_report([Run(folder)])
        report_status(f"run {context.run_id} ended: {folder.path}")
        for line in as_text(folder.summary()).splitlines() if handlers else ():
            log.info(line)
    finally:
        for handler in handlers:
            log.removeHandler(handler)


def serve(
    grid: Grid, run_config: Mapping[str, Any], listeners: Sequence[Callback] = (), number: int | None = None
) -> RunFolder:
    """Run the experiment of a run config; ``listeners``, such as a live display, follow its rounds.

    ``number`` is Flower's number of the run, for status messages and its name at nodes.
    """
    experiment, data_dir = from_run_config(run_config)
    if number is not None:
        report_status(f"run {number} started: {experiment.experiment.name}, {experiment.method.name}")
    with pinned_threads(experiment.train.threads):
        return execute(grid, experiment, data_dir, listeners, number)


def from_run_config(config: Mapping[str, Any]) -> tuple[Experiment, Path]:
    """Return the experiment and the data folder of a Flower run config."""
    name = _of_app(str(config["experiment"]))
    overrides = shlex.split(str(config.get("set", "")))
    if not is_run_folder(Path(name).parent, config):
        add_plugin_paths(plugin_folders(name))
    if int(config.get("seed", -1)) >= 0:
        overrides.append(f"experiment.seed={int(config['seed'])}")
    if config.get("output-dir"):
        overrides.append(f"output.dir={json.dumps(str(config['output-dir']))}")
    experiment = load_experiment(name, overrides)
    own = config.get("data-dir") or os.environ.get("FEDGRAPH_DATA")
    return experiment, data_folder(str(own) if own else None)


def _of_app(experiment: str) -> str:
    """Return the file in the app's folder, if it is one of its files: Flower has put the folder on the search path.

    It is the one that was submitted, wherever the server was started.
    """
    found = (Path(folder, experiment) for folder in sys.path if folder)
    return str(next((path for path in found if path.is_file()), experiment))


def execute(
    grid: Grid,
    experiment: Experiment,
    data_dir: Path,
    listeners: Sequence[Callback] = (),
    number: int | None = None,
) -> RunFolder:
    """Run an experiment over a grid, and return its run folder; ``number`` is Flower's, see :attr:`RunFolder.run`.

    Raises FedgraphError for any error.
    """
    resumed = experiment.output.resume
    folder = RunFolder.open(resumed) if resumed else RunFolder.create(experiment, Path(experiment.output.dir))
    handler = folder.log_to_file()
    try:
        with folder.locked():
            folder.check_unfinished()
            method = ChosenMethod(experiment)
            folder.begin_or_go_on(experiment, method.may_change, number)
            log.info("run folder %s", folder.path)
            run = execute_phases if has_phases(method.strategy_class) else execute_rounds
            with tracked(method.resolved(), folder):
                run(quick(grid), experiment, method, data_dir, folder, listeners)
    except Exception as error:
        log.error("the run stopped: %s", error)
        raise
    finally:
        logging.getLogger("fedgraph").removeHandler(handler)
        handler.close()
    return folder
