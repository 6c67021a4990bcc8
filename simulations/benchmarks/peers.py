"""``peers``: a round of the same FedAvg in fedgraph, pfl-research, fluke and plain Flower on Ray."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

import fedgraph
from fedgraph.data import open_source
from fedgraph.experiment import Experiment
from fedgraph.federation.grids import run_app_on_flower
from fedgraph.models import build
from fedgraph.reproduce import ResultLine, merge_into
from fedgraph.simulations.benchmarks.measure import (
    JsonFile,
    Timing,
    in_turn,
    median,
    number,
    print_report,
    write_raw,
)
from fedgraph.simulations.benchmarks.models import CASES
from fedgraph.simulations.benchmarks.peer_programs.task import Task
from fedgraph.simulations.benchmarks.peer_programs.task import build as build_plain
from fedgraph.simulations.benchmarks.processes import ProcessWatch
from fedgraph.simulations.benchmarks.runs import data_dir, in_process
from fedgraph.simulations.scripts import ResultsFile
from fedgraph.support.errors import FedgraphError, RunError
from fedgraph.support.randomness import generator
from fedgraph.training import shuffling_keys, training_batches

_PROGRAMS = Path(__file__).resolve().parent / "peer_programs"
OURS, ONE, RAY = "fedgraph", "fedgraph, one worker", "Flower on Ray, a client per node"


@dataclass(frozen=True)
class Peer:
    """Another program: the script that does the work in it, and what it is installed as.

    without : what is installed without the dependencies that it asks for itself, of which ``requirements`` names the
              ones that are used.
    """

    script: str
    requirements: tuple[str, ...]
    without: str | None = None


PEERS = {
    "pfl-research 0.6": Peer("pfl_research.py", ("pfl[pytorch]==0.6.0",)),
    "fluke 0.8": Peer(
        "fluke_fl.py",
        (
            *("numpy<3", "pandas", "scikit-learn", "torchmetrics", "rich", "typer", "psutil", "requests", "pyyaml"),
            *("matplotlib", "seaborn", "diskcache", "cerberus", "hydra-core", "omegaconf", "datasets", "opacus"),
            *("wandb", "tensorboard", "clearml"),
        ),
        without="fluke-fl==0.8.1",
    ),
}


class _NotThereError(FedgraphError):
    """A program that cannot be installed here, and why."""


def peers(
    model: Annotated[list[str] | None, typer.Option(help="mlp, cnn (both by default), or resnet9.")] = None,
    clients: Annotated[int, typer.Option(min=2, help="Clients, with 90 images each.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds measured per start, after one that is not.")] = 3,
    repeats: Annotated[int, typer.Option(min=1, help="Starts of each program, in turn.")] = 3,
    folder: Annotated[Path | None, typer.Option(help="Where environments are kept. [~/.cache/fedgraph/peers]")] = None,
    ray: Annotated[bool, typer.Option(help="Also plain Flower on Ray.")] = True,
    results: ResultsFile = None,
    json_: JsonFile = None,
) -> None:
    """One round of FedAvg on Fashion-MNIST in every program: same images, first model, and minibatches of round 1.

    Each program has a virtual environment of its own, which is made on the first run and needs a network; without one
    it is left out.
    """
    environments = folder or Path.home() / ".cache" / "fedgraph" / "peers"
    tables, lines, told = [], [], list[ResultLine]()
    raw: dict[str, dict[str, list[Timing]]] = {}
    installed: dict[str, Path] = {}
    for name, peer in PEERS.items():
        try:
            installed[name] = _environment(name, peer, environments)
        except _NotThereError as error:
            lines.append(f"'{name}' was left out: {error}")
    for kind in model or ["mlp", "cnn"]:
        experiment = CASES[kind].experiment(clients, rounds + 1)
        with tempfile.TemporaryDirectory(prefix="fedgraph-peers-") as scratch:
            task = Path(scratch) / "task.npz"
            same_task(experiment, kind, rounds + 1).write(task)
            losses = {OURS: _our_loss(CASES[kind].tables(clients, rounds + 1), Task.read(str(task)), Path(scratch))}
            alone = CASES[kind].experiment(clients, rounds + 1, workers=1)
            candidates = {OURS: _ours(experiment), ONE: _ours(alone)}
            for name, python in installed.items():
                candidates[name] = _program(name, python, PEERS[name].script, task, losses)
            if ray:
                candidates[RAY] = on_ray(clients, task, losses)
            found = in_turn(candidates, repeats)
        raw[kind] = found
        table, rows = _table(CASES[kind].title, found)
        tables.append(table)
        told += rows
        said = ", ".join(f"{name} {loss:.4f}" for name, loss in losses.items())
        lines.append(f"{CASES[kind].title}: mean cross-entropy over all images after {rounds + 1} rounds: {said}.")
    lines += [
        f"{clients} clients with 90 images, batches of 32, one epoch, medians of {rounds} rounds in each of {repeats} "
        "starts in turn, the first round of a start left out. Each program has one intra-op thread; fedgraph has as "
        "many workers as there are cores, and its core-seconds are of one worker; Ray has a process per core.",
    ]
    print_report(tables, lines, "one intra-op thread")
    write_raw(json_, "peers", {"clients": clients, "rounds": rounds, "repeats": repeats}, raw)
    if results is not None:
        merge_into(results, told)


def _ours(experiment: Experiment) -> Callable[[], list[Timing]]:
    return lambda: in_process(experiment, 2)[1:]


def _our_loss(tables: dict[str, Any], task: Task, scratch: Path) -> float:
    """Return the loss of the global model of a run of ours over all images of the task."""
    run = fedgraph.run(tables, out=scratch, progress=False)
    model = task.start()
    ours, theirs = (
        [*module.parameters(), *(each for each in module.buffers() if each.is_floating_point())]
        for module in (run.module(raw=False), model)
    )
    with torch.no_grad():
        torch._foreach_copy_(theirs, ours)
    return task.loss(model)


def same_task(experiment: Experiment, kind: str, rounds: int) -> Task:
    """Return the task of an experiment of ours as arrays: each client's examples in the order of its first epoch."""
    source = open_source(experiment.data, data_dir())
    data = source.load(source.client_names())
    model, train, seed = build(experiment.model, data.task), experiment.train, experiment.experiment.seed
    counts = data.splits["train"].num_examples
    order = training_batches(shuffling_keys(seed, data.names), counts, train, 1).transpose(0, 1).flatten(1)
    if not bool((counts == counts[0]).all()):
        raise RunError("the programs are given as many examples of every client")
    order = torch.stack([row[row >= 0] for row in order])
    batch = data.splits["train"].batch(order)
    row = model.initial(generator(seed, "initial model"))
    # The parameters of both lie in the same order; running statistics are fresh.
    layout, theirs = model.layout, build_plain(kind)
    ours = [value for name, value in layout.row_state(row).items() if name not in layout.buffers]
    state = theirs.state_dict() | dict(zip(dict(theirs.named_parameters()), ours, strict=True))
    return Task(kind, batch.inputs, batch.targets, state, train.batch_size, train.learning_rate, rounds)


def _environment(name: str, peer: Peer, folder: Path) -> Path:
    """Make the virtual environment of a program, unless it is there; return its interpreter."""
    home = folder / Path(peer.script).stem
    python, made = home / "bin" / "python", home / "made"
    if made.exists():
        return python
    Console(stderr=True).print(f"{name}: making {home} ...", highlight=False)
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home, with_pip=True)
    same_torch = f"torch=={torch.__version__.partition('+')[0]}"
    commands = [["install", same_torch, *peer.requirements]]
    commands += [["install", "--no-deps", peer.without]] if peer.without else []
    for command in commands:
        done = subprocess.run([python, "-m", "pip", "-q", *command], capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(home, ignore_errors=True)
            reasons = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()[-1:]
            raise _NotThereError(f"pip could not install it ({(reasons or ['no reason'])[-1]})")
    made.touch()
    return python


def _program(name: str, python: Path, script: str, task: Path, losses: dict[str, float]) -> Callable[[], list[Timing]]:
    def measure() -> list[Timing]:
        done = subprocess.run(
            [python, script, task], cwd=_PROGRAMS, env=_one_thread(), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RunError(f"'{name}' did not finish; the end of what it said:\n{done.stderr[-2000:]}")
        report = json.loads(done.stdout.splitlines()[-1])
        losses[name] = report["loss"]
        return [Timing(*each) for each in report["rounds"][1:]]

    return measure


def on_ray(clients: int, task: Path, losses: dict[str, float]) -> Callable[[], list[Timing]]:
    """All rounds of plain Flower but the first; notes the loss of its model."""

    def measure() -> list[Timing]:
        with tempfile.TemporaryDirectory(prefix="fedgraph-peers-ray-") as scratch:
            app, times, log = Path(scratch) / "app", Path(scratch) / "times.json", Path(scratch) / "log"
            shutil.copytree(_PROGRAMS / "flower_app", app, ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(_PROGRAMS / "task.py", app)
            with ProcessWatch(interval=0.05) as watch:
                run_app_on_flower(app, {"task": str(task), "times": str(times)}, clients, log, {})
            if not times.is_file():
                raise RunError(f"Flower on Ray did not finish; the end of its log:\n{log.read_text()[-2000:]}")
            report = json.loads(times.read_text())
        losses[RAY] = report["loss"]
        core = watch.core_until
        return [Timing(end - start, core(end) - core(start)) for start, end in pairwise(report["times"][1:])]

    return measure


def _one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _table(title: str, found: Mapping[str, list[Timing]]) -> tuple[Table, list[ResultLine]]:
    """Return medians, and the seconds of fedgraph in units of each program's."""
    table = Table(title=f"One round of FedAvg, {title}", title_justify="left")
    for heading in ("", "seconds", "core-seconds", "fedgraph's seconds to it", "its core-seconds to fedgraph's"):
        table.add_column(heading, justify="right" if heading else "left")
    ours, core = median(each.wall for each in found[OURS]), median(each.core for each in found[ONE])
    lines = []
    for name, timings in found.items():
        wall, own = median(each.wall for each in timings), median(each.core for each in timings)
        values: dict[str, Any] = {
            "seconds": wall,
            "core-s": own,
            "fedgraph to it": ours / wall,
            "core to it": core / own,
        }
        table.add_row(name, *map(number, (wall, own, ours / wall, own / core)))
        lines += [
            ResultLine(name, title, metric, value=f"{value:.4g}", source="benchmarks peers")
            for metric, value in values.items()
        ]
    return table, lines
