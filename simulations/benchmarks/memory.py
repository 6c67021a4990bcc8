"""``memory``: peak memory of a whole simulation, all of its processes together."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedgraph.experiment import Experiment
from fedgraph.federation.grids import flower_environment
from fedgraph.simulations.benchmarks.measure import (
    MIB,
    JsonFile,
    Repeats,
    median,
    number,
    print_report,
    write_raw,
)
from fedgraph.simulations.benchmarks.processes import ProcessWatch
from fedgraph.simulations.benchmarks.runs import client_names, on_ray, plain_flower, read_experiment

PLAIN = "plain Flower"


def memory(
    experiment: Annotated[str, typer.Argument(help="Experiment file, on METR-LA's week.")] = "sfl/metr-la-week.toml",
    method: Annotated[str, typer.Option(help="Method of ours.")] = "fedavg",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of every simulation.")] = 2,
    steps: Annotated[int, typer.Option(min=0, help="Local steps.")] = 10,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples of a minibatch.")] = 64,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that our clients are dealt out to.")] = 2,
    sensors: Annotated[int | None, typer.Option(min=1, help="Only the first sensors; all when not given.")] = None,
    repeats: Repeats = 3,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key of the experiment.")] = None,
    json_: JsonFile = None,
) -> None:
    """The most memory that all processes of a simulation take at a time: ours in one process and on Ray, plain Flower.

    Everything that is started is counted (SuperLink, Ray, `flwr run`), a page shared between processes once; the
    process that measures is not.
    """
    overrides = [*(set_ or []), f"train.batch-size={batch_size}", f"train.local-steps={steps}"]
    chosen = read_experiment(experiment, [*overrides, f"experiment.rounds={rounds}"], method, sensors)
    clients = len(client_names(chosen))
    candidates: dict[str, Callable[[], object]] = {
        f"ours, {method}, in process": lambda: _in_another_process(chosen, nodes),
        f"ours, {method}, Ray, {nodes} nodes": lambda: on_ray(chosen, nodes),
        PLAIN: lambda: plain_flower(chosen, clients, rounds),
    }
    results: dict[str, list[dict[str, int]]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, run in candidates.items():
            results[name].append(_peak(run))
    lines = [
        f"{rounds} rounds of {clients} clients, {steps} local steps of {batch_size} examples, sampled every 0.05 s. "
        "Proportional set size on Linux: a page that several processes share counts once; elsewhere pages of one "
        f"process alone. '{PLAIN}': one node per client.",
    ]
    threads = "threads as in `rounds`"
    print_report([_table(results)], lines, threads)
    settings = {"experiment": experiment, "rounds": rounds, "steps": steps, "clients": clients, "nodes": nodes}
    write_raw(json_, "memory", settings, results)


def _peak(run: Callable[[], object]) -> dict[str, int]:
    with ProcessWatch(interval=0.05, memory=True) as watch:
        run()
    return {"bytes": watch.peak_memory, "processes": max(sample.number for sample in watch.samples)}


def _table(results: Mapping[str, list[dict[str, int]]]) -> Table:
    table = Table(title="Peak memory of a whole simulation", title_justify="left")
    table.add_column("", no_wrap=True)
    for heading in ("min [MiB]", "median [MiB]", "max [MiB]", "processes", f"memory / {PLAIN}"):
        table.add_column(heading, justify="right")
    theirs = median(each["bytes"] for each in results[PLAIN])
    for name, runs in results.items():
        peaks = [each["bytes"] for each in runs]
        cells = [number(value / MIB) for value in (min(peaks), median(peaks), max(peaks))]
        table.add_row(name, *cells, str(max(each["processes"] for each in runs)), number(median(peaks) / theirs))
    return table


def _in_another_process(experiment: Experiment, nodes: int) -> None:
    """``fedgraph run`` on the in-process grid, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="fedgraph-memory-") as scratch:
        file = Path(scratch) / "experiment.toml"
        file.write_text(experiment.as_toml())
        command = [
            sys.executable, "-c", "from fedgraph.commands.cli import app; app()", "run", str(file), "--nodes",
            str(nodes), "--out", scratch,
        ]  # fmt: skip
        subprocess.run(command, env=flower_environment(Path(scratch)), check=True, stdout=subprocess.DEVNULL)
