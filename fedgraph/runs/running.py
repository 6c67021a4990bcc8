"""Run the experiment of a run folder to its end, in this process or on Flower, with progress on the terminal."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from clients.app import app as client_app
from fedgraph.experiment import Experiment, load_experiment
from fedgraph.federation.grids import LocalGrid, run_on_flower
from fedgraph.runs.callbacks import Callback
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.reports import LiveDisplay
from fedgraph.support.errors import FedgraphError, RunError
from fedgraph.support.settings import parse
from strategies.app import serve
from strategies.engine.strategy import MethodStrategy


def add_plugin_paths(folders: Sequence[str]) -> None:
    """Append folders to ``sys.path``, so that modules there can be named by dotted path; fedgraph's own come first."""
    sys.path.extend(folder for folder in folders if folder not in sys.path)


def run_one(
    folder: RunFolder,
    grid: str,
    nodes: int,
    data_dir: Path | None,
    console: Console,
    label: str | None = None,
    model_dir: Path | None = None,
    advice: str = "once its experiment.toml is mended, go on with --resume",
    listeners: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Run or continue the experiment of a run folder.

    Parameters
    ----------
    folder : RunFolder
        The run folder.
    grid : {"local", "flower"}
        In this process, or through ``flwr run`` with nodes on Ray.
    nodes : int
        Number of nodes among which clients are divided.
    data_dir : Path or None
        Data folder; by default that of ``FEDGRAPH_DATA``.
    console : Console
        Terminal with the progress bar.
    label : str, optional
        Label of the progress bar; by default the name of the method.
    model_dir : Path, optional
        Folder in which nodes keep the frozen models of their clients; by default with their state, in the run folder.
    advice : str, optional
        How to continue a run that failed, in its error message.
    listeners : sequence of Callback, optional
        Callbacks that follow the run, which must then be in this process.

    Returns
    -------
    dict
        Content of ``summary.json``.

    Raises
    ------
    RunError
        When the run does not finish; the message names the folder to continue with.
    """
    try:
        _run_or_go_on(folder, grid, nodes, data_dir, console, label, model_dir, listeners)
    except FedgraphError as error:
        raise RunError(f"{error}\nRun folder: {folder.path}; {advice}") from error
    return folder.summary()


def _run_or_go_on(
    folder: RunFolder,
    grid: str,
    nodes: int,
    data_dir: Path | None,
    console: Console,
    label: str | None,
    model_dir: Path | None,
    listeners: Sequence[Callback],
) -> None:
    experiment = load_experiment(folder.path / "experiment.toml")
    display = LiveDisplay(console, label or experiment.method.name, _total(experiment))
    run_config = {
        "experiment": str(folder.path / "experiment.toml"),
        "set": shlex.quote(f"output.resume={folder.path}"),
        "data-dir": str(data_dir.resolve()) if data_dir else os.environ.get("FEDGRAPH_DATA", ""),
    }
    # All nodes are on this machine: their errors need not be hidden.
    places = {"FEDGRAPH_STATE": str(folder.path / "nodes"), "FEDGRAPH_FULL_ERRORS": "1"}
    if model_dir is not None:
        places["FEDGRAPH_MODELS"] = str(model_dir.resolve())
    if run_config["data-dir"]:
        places["FEDGRAPH_DATA"] = run_config["data-dir"]
    if grid == "flower":
        log = folder.path / "logs" / "flower.log"
        log.parent.mkdir(exist_ok=True)
        with display:
            run_on_flower(run_config, nodes, log, places, on_wait=_follower(folder, display))
        if not folder.is_finished:
            raise RunError(f"the run did not finish; the end of {log}:\n{_tail(log)}")
    else:
        _run_in_process(run_config, nodes, places, display, listeners)


def _total(experiment: Experiment) -> int | None:
    """Return the number of rounds, or of epochs of a strategy without rounds; None where it is not known."""
    strategy, rounds = experiment.method.strategy_class, experiment.experiment.rounds
    if not issubclass(strategy, MethodStrategy):
        return rounds
    settings = parse(strategy.settings_type, experiment.method_table, f"[{experiment.method.name}]")
    total: int | None = strategy.steps_of(settings, rounds)
    return total


def _run_in_process(
    run_config: dict[str, str],
    nodes: int,
    places: Mapping[str, str],
    display: LiveDisplay,
    listeners: Sequence[Callback],
) -> None:
    keys = {
        "FEDGRAPH_STATE": "state_dir",
        "FEDGRAPH_MODELS": "model_dir",
        "FEDGRAPH_DATA": "data_dir",
        "FEDGRAPH_FULL_ERRORS": "full_errors",
    }
    node_config = {keys[name]: value for name, value in places.items()}
    local = LocalGrid.of_partitions(client_app, nodes, run_config, **node_config)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    with display:
        serve(local, run_config, [display, *listeners])


def _follower(folder: RunFolder, display: LiveDisplay) -> Callable[[], None]:
    """Return a function that shows what another process has written to the run folder since the last call."""
    shown = 0

    def follow() -> None:
        nonlocal shown
        file = folder.path / "metrics.jsonl"
        complete = file.read_text().splitlines(keepends=True) if file.exists() else []
        complete = [line for line in complete if line.endswith("\n")]
        for line in complete[shown:]:
            display.on_line(json.loads(line))
        shown = len(complete)

    return follow


def _tail(path: Path, lines: int = 30) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
