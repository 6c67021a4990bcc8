"""Each method on real nodes: seconds per exchange over TLS, beside the same run in one process, and where they go."""

from __future__ import annotations

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

from fedgraph.experiment import load_experiment
from fedgraph.runs import RunFolder
from fedgraph.simulations.benchmarks.measure import JsonFile, median, number, print_report, write_raw
from fedgraph.simulations.benchmarks.real_nodes import FederationOnThisMachine
from fedgraph.starting.running import run_one
from fedgraph.support.errors import RunError

_POLL = 3.0
"""Seconds between two looks of a Flower SuperNode for messages."""

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
        f"A process that answers a message takes {number(start)} s of a core to start; Flower starts one per message.",
        f"Nodes look for messages every {number(_POLL)} s, so that on average half of that is waited per exchange.",
        "'computing' is the same run in one process; 'starting' that of a process on every node that is asked, on this "
        "machine's cores; 'the rest' is installing the app and reading the data in each of them, waiting for nodes to "
        "look, and transport.",
    ]
    print_report([_table(results, start, nodes)], lines, "threads as the experiments say")
    write_raw(json_, "deployment", {"methods": chosen, "nodes": nodes}, {"start": start, "runs": results})


def _table(results: dict[str, dict[str, Any]], start: float, nodes: int) -> Table:
    table = Table(title=f"Runs on {nodes} SuperNodes, over TLS, authenticated", title_justify="left")
    for heading in (
        "method", "rounds", "exchanges", "run [s]", "s/exchange", "computing", "starting", "the rest", "same weights",
    ):  # fmt: skip
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for name, found in results.items():
        real, local = found["real"], found["local"]
        exchanges = real["exchanges"]
        each, computing = real["seconds"] / exchanges, local["seconds"] / exchanges
        asked = 1 if name == "ipa" else nodes
        starting = start * max(1.0, asked / (os.cpu_count() or 1))
        table.add_row(
            name, str(real["rounds"]), str(exchanges), number(real["seconds"]), number(each), number(computing),
            number(starting), number(each - computing - starting),
            "yes" if real["weights_sha256"] == local["weights_sha256"] else "NO",
        )  # fmt: skip
    return table


def _measure(name: str, nodes: int, folder: Path) -> dict[str, Any]:
    """The summaries of a run in one process and of the same run on real nodes."""
    experiment = load_experiment(_METHODS[name][0], _METHODS[name][1])
    quiet = Console(quiet=True)
    local = run_one(RunFolder.create(experiment, folder / "local"), "local", nodes, None, quiet)
    run = RunFolder.create(experiment, folder / "real")
    with FederationOnThisMachine(folder / "federation", [f"site-{place}" for place in range(nodes)]) as federation:
        for place in range(nodes):
            config: dict[str, Any] = {"partition-id": place, "num-partitions": nodes}
            if os.environ.get("FEDGRAPH_DATA"):
                config["data-dir"] = os.environ["FEDGRAPH_DATA"]
            federation.start_node(f"site-{place}", config)
        log = federation.run(run, seconds=900)
    if not run.is_finished:
        raise RunError(f"the run of {name} did not finish:\n{log[-3000:]}")
    return {"local": local, "real": run.summary()}


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
