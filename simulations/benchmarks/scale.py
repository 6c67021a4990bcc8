"""``scale``: seconds and bytes per client of a round, for more and more clients."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch
import typer
from rich.table import Table

from fedgraph.experiment import Experiment, parse_experiment
from fedgraph.graph import ClientGraph, write_graph
from fedgraph.runs import Training
from fedgraph.simulations.benchmarks.measure import (
    JsonFile,
    Repeats,
    in_fresh_process,
    median,
    number,
    peak_bytes,
    print_report,
    resident_bytes,
    target_line,
    write_raw,
)
from fedgraph.simulations.benchmarks.runs import RoundClock, run_here

FEATURES = 64
CLASSES = 10
EXAMPLES = 32
HIDDEN = 32
WARM_UP = 10
"""Clients of a first run that loads all code, so that it is not taken for memory of the clients."""

FLAT = 0.2
"""How much more a client may cost among the most clients than at the size before."""


def scale(
    sizes: Annotated[list[int] | None, typer.Option("--clients", help="Numbers of clients. [100, 1000, 10000]")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds measured per start, after one that is not.")] = 3,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that the clients are dealt out to.")] = 2,
    repeats: Repeats = 5,
    json_: JsonFile = None,
) -> None:
    """Whole rounds of SFL on the in-process grid: a small perceptron per client, made-up data, a ring as the graph.

    Every size runs in a process of its own. Memory is the most that the process had in RAM, less what it had once all
    code was loaded: data, models, messages and all.
    """
    chosen = sizes or [100, 1000, 10_000]
    results: dict[int, list[dict[str, Any]]] = {size: [] for size in chosen}
    with tempfile.TemporaryDirectory(prefix="fedgraph-scale-") as scratch:
        for size in (WARM_UP, *chosen):
            write_clients(Path(scratch), size)
        for _ in range(repeats):
            for size in chosen:
                run = in_fresh_process(f"{__name__}:measure", folder=scratch, clients=size, rounds=rounds, nodes=nodes)
                results[size].append(run)
    seconds = {size: [wall / size for run in runs for wall in run["wall"]] for size, runs in results.items()}
    memory = {size: [run["bytes"] / size for run in runs] for size, runs in results.items()}
    held = {size: [run["held"] / size for run in runs] for size, runs in results.items()}
    table = Table(title="One round, per client", title_justify="left")
    headings = ("clients", "min [ms]", "median [ms]", "max [ms]", "core-ms", "ratio", "min [kB]", "median [kB]",
                "max [kB]", "ratio", "held [kB]", "peak [MB]")  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right")
    least_seconds = min(median(values) for values in seconds.values())
    least_memory = min(median(values) for values in memory.values())
    for size, runs in results.items():
        core = median(core / size for run in runs for core in run["core"])
        times, kilobytes = [1000 * each for each in seconds[size]], [each / 1000 for each in memory[size]]
        cells = [min(times), median(times), max(times), 1000 * core, median(times) / (1000 * least_seconds)]
        cells += [min(kilobytes), median(kilobytes), max(kilobytes), 1000 * median(kilobytes) / least_memory]
        table.add_row(
            f"{size:,}",
            *(number(each) for each in [*cells, median(held[size]) / 1000, max(run["peak"] for run in runs) / 1e6]),
        )
    lines = [
        f"SFL on {nodes} nodes in one process: perceptron {FEATURES}-{HIDDEN}-{CLASSES}, "
        "10 local steps of 32 examples, "
        f"{EXAMPLES} examples per client. Ratios are to the cheapest size.",
        "A round is the time from making its messages to having aggregated the replies; the first of every start is "
        "left out. Bytes are the most that the process had in RAM, 'held' what it has after its first round, both less "
        f"what it had after a run of {WARM_UP} clients, with all code loaded; 'peak' is the whole process.",
        "A process has fixed costs, which weigh most where there are few clients.",
        *_targets("seconds", seconds),
        *_targets("bytes", memory),
    ]
    print_report([table], lines, "as many workers as there are cores, 1 intra-op thread each")
    settings = {"rounds": rounds, "nodes": nodes, "repeats": repeats}
    write_raw(json_, "scale", settings, {str(size): runs for size, runs in results.items()})


class MemoryClock(RoundClock):
    """Also notes what the process holds when its first round is over."""

    def __init__(self) -> None:
        super().__init__()
        self.held = 0

    def on_training(self, training: Training) -> None:
        """One more round is over."""
        super().on_training(training)
        self.held = self.held or resident_bytes()


def measure(folder: str, clients: int, rounds: int, nodes: int) -> dict[str, Any]:
    """Seconds, core-seconds and bytes of a run in this process; the first round is left out of the times."""
    run_here(experiment(Path(folder), WARM_UP, 1), nodes, RoundClock())
    before = resident_bytes()
    clock = MemoryClock()
    run_here(experiment(Path(folder), clients, rounds + 1), nodes, clock)
    kept = clock.timings[1:]
    return {
        "wall": [each.wall for each in kept],
        "core": [each.core for each in kept],
        "bytes": peak_bytes() - before,
        "peak": peak_bytes(),
        "held": clock.held - before,
    }


def experiment(folder: Path, clients: int, rounds: int) -> Experiment:
    """SFL on the clients that ``write_clients`` wrote."""
    return parse_experiment(
        {
            "experiment": {"name": f"scale-{clients}", "method": "sfl", "rounds": rounds},
            "data": {
                "set": "table",
                "path": str(_data_file(folder, clients)),
                "label": "label",
                "client-column": "client",
                "shares": [1.0, 0.0, 0.0],
                "scaling": "none",
            },
            "model": {"name": "mlp", "hidden": [HIDDEN]},
            "train": {"learning-rate": 0.1, "batch-size": 32, "local-steps": 10},
            "graph": {"source": "file", "path": str(_graph_file(folder, clients))},
            "sfl": {"hops": 1},
            "evaluation": {"splits": []},
            "output": {"checkpoint-every": 1_000_000},
        }
    )


def write_clients(folder: Path, clients: int) -> None:
    """Random examples of every client as a Parquet file, and a ring of all clients as a graph file."""
    random = np.random.default_rng(0)
    rows = clients * EXAMPLES
    names = [f"client-{position:05d}" for position in range(clients)]
    columns: dict[str, Any] = {
        f"feature-{position:02d}": random.standard_normal(rows, dtype=np.float32) for position in range(FEATURES)
    }
    labels = [f"class-{position}" for position in range(CLASSES)]
    columns["label"] = pa.DictionaryArray.from_arrays(random.integers(CLASSES, size=rows), labels).cast(pa.string())
    columns["client"] = pa.array(np.repeat(names, EXAMPLES))
    parquet.write_table(pa.table(columns), _data_file(folder, clients))
    ring = torch.arange(clients)
    ends = torch.stack([torch.cat([ring, ring.roll(-1)]), torch.cat([ring.roll(-1), ring])])
    write_graph(ClientGraph(tuple(names), ends, torch.ones(2 * clients)), _graph_file(folder, clients))


def _data_file(folder: Path, clients: int) -> Path:
    return folder / f"{clients}.parquet"


def _graph_file(folder: Path, clients: int) -> Path:
    return folder / f"{clients}.npz"


def _targets(what: str, values: dict[int, list[float]]) -> list[str]:
    """What a client costs at the largest size, beside the size before it."""
    *_, before, largest = [None, *sorted(values)]
    if before is None:
        return []
    growth = median(values[largest]) / median(values[before])
    return [target_line(f"{what} per client with {largest:,} clients / with {before:,}", growth, 1 + FLAT)]
