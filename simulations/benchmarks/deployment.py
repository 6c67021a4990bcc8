"""Each method on real nodes: seconds per exchange over TLS, beside the same run in one process, and where they go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedgraph.experiment import Experiment, load_experiment
from fedgraph.runs import RunFolder
from fedgraph.simulations.benchmarks.measure import JsonFile, median, number, print_report, write_raw
from fedgraph.simulations.benchmarks.real_nodes import FederationOnThisMachine
from fedgraph.starting.running import run_one
from fedgraph.support.errors import RunError

_METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    "sfl": ("sfl/digits.toml", ("experiment.rounds=3", "data.clients=3")),
    "ipa": ("ipa/digits.toml", ("experiment.rounds=2", "data.class-groups=[[0,1,2,3],[4,5,6],[7,8,9]]")),
    "f3": ("f3/digits.toml", ("f3.epochs=20", "train.local-epochs=20")),
    "fedngm": ("fedngm/asia.toml", ("fedngm.sample-quality=false",)),
}


def deployment(
    methods: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(_METHODS)}; all when not given.")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="SuperNodes that the clients are dealt out to.")] = 3,
    json_: JsonFile = None,
) -> None:
    """Seconds of a run of each method on real nodes of this machine, over TLS, and how many exchanges it takes."""
    chosen = methods or list(_METHODS)
    unknown = [name for name in chosen if name not in _METHODS]
    if unknown:
        raise RunError(f"no method {', '.join(unknown)} here; known: {', '.join(_METHODS)}")
    results: dict[str, dict[str, Any]] = {}
    start = _start_seconds()
    with tempfile.TemporaryDirectory(prefix="fedgraph-deployment-") as scratch:
        for name in chosen:
            results[name] = _measure(name, nodes, Path(scratch) / name)
    lines = [
        f"In Flower's own way a node starts a process for each message, which takes {number(start)} s of a core, and "
        "looks for messages every 3 s. Here it forks a warm process, and looks sooner.",
        "'computing' is the same run in one process; 'the rest' is reading the data in each fork, waiting, and "
        "transport. A round is the median of those of the run, with what is measured in it.",
    ]
    print_report([_table(results, nodes)], lines, "threads as the experiments say")
    write_raw(json_, "deployment", {"methods": chosen, "nodes": nodes}, {"start": start, "runs": results})


def _table(results: dict[str, dict[str, Any]], nodes: int) -> Table:
    table = Table(title=f"Runs on {nodes} SuperNodes, over TLS, authenticated", title_justify="left")
    for heading in (
        "method", "rounds", "exchanges", "run [s]", "s/round", "s/exchange", "computing", "the rest",
        "Flower's own way [s]", "its s/round", "times as long", "same weights",
    ):  # fmt: skip
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for name, found in results.items():
        real, own, local = found["real"], found["own way"], found["local"]
        exchanges = real["exchanges"]
        each, computing = real["seconds"] / exchanges, local["seconds"] / exchanges
        weights = {summary["weights_sha256"] for summary in (real, own, local)}
        table.add_row(
            name, str(real["rounds"]), str(exchanges), number(real["seconds"]), number(real["round"]), number(each),
            number(computing), number(each - computing), number(own["seconds"]), number(own["round"]),
            number(own["seconds"] / real["seconds"]), "yes" if len(weights) == 1 else "NO",
        )  # fmt: skip
    return table


def _measure(name: str, nodes: int, folder: Path) -> dict[str, Any]:
    """The summaries of a run in one process and of the same run on real nodes, also in Flower's own way."""
    experiment = load_experiment(_METHODS[name][0], _METHODS[name][1])
    quiet = Console(quiet=True)
    local = run_one(RunFolder.create(experiment, folder / "local"), "local", nodes, None, quiet)
    found = {way: _on_nodes(experiment, nodes, folder / way, way == "own way") for way in ("own way", "real")}
    return {"local": local, **found}


def _on_nodes(experiment: Experiment, nodes: int, folder: Path, app_code: bool) -> dict[str, Any]:
    run = RunFolder.create(experiment, folder)
    with FederationOnThisMachine(folder / "federation", [f"site-{place}" for place in range(nodes)]) as federation:
        for place in range(nodes):
            config: dict[str, Any] = {"partition-id": place, "num-partitions": nodes}
            if os.environ.get("FEDGRAPH_DATA"):
                config["data-dir"] = os.environ["FEDGRAPH_DATA"]
            federation.start_node(f"site-{place}", config, app_code=app_code)
        log = federation.run(run, seconds=900)
    if not run.is_finished:
        raise RunError(f"the run of {experiment.experiment.name} did not finish:\n{log[-3000:]}")
    lines = map(json.loads, run.metrics.read_text().splitlines())
    seconds = [line["seconds"] for line in lines if line.get("seconds") is not None]
    return {**run.summary(), "round": median(seconds) if seconds else float("nan")}


def _start_seconds(repeats: int = 3) -> float:
    """Until a fresh process is ready to answer a message: Python, PyTorch, Flower and this project."""
    times: Sequence[float] = [_timed_start() for _ in range(repeats)]
    return median(times)


def _timed_start() -> float:
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", "import flwr.clientapp, fedgraph.clients.app, fedgraph.clients.engine.base"], check=True
    )
    return time.perf_counter() - began
