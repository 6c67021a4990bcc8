"""``kernels``: what the C++ that comes along brings, end to end, on experiments that come along."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from fedgraph.experiment import load_experiment
from fedgraph.fusion import kernel as fusion
from fedgraph.graphical.network import kernel as graphical
from fedgraph.models import perceptron_kernel, recurrence_kernel
from fedgraph.simulations.benchmarks.measure import JsonFile, Repeats, median, timed, write_raw
from fedgraph.simulations.benchmarks.runs import run_here
from fedgraph.support.threads import pinned_threads
from fedgraph.training.alignment import kernel as alignment

LEAST = 1.5
"""What a kernel must bring on one experiment to be kept."""

KERNELS: dict[str, Any] = {
    "perceptron": perceptron_kernel,
    "recurrence": recurrence_kernel,
    "alignment": alignment,
    "graphical": graphical,
    "fusion": fusion,
}
EXPERIMENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ipa/mnist.toml": ("perceptron alignment", ("evaluation.targets={}",)),
    "ipa/mnist-classes.toml": ("perceptron alignment", ()),
    "sfl/digits-groups.toml": ("perceptron", ()),
    "sfl/metr-la-week.toml": ("recurrence", ("train.compile=true",)),
    "fedngm/asia.toml": ("graphical", ()),
    "f3/digits.toml": ("fusion", ()),
}
"""By experiment the kernels that it uses, and what makes it short."""
ONE_BY_ONE = ("train.compile=false", "train.block-size=1")
"""Overrides with which clients train one after the other, by PyTorch; those of IPA always do."""


def kernels(
    rounds: Annotated[int, typer.Option(help="Rounds of the experiments that have some.")] = 2,
    only: Annotated[str, typer.Option(help="One experiment, of those that come along.")] = "",
    repeats: Repeats = 3,
    json: JsonFile = None,
) -> None:
    """Core-seconds of whole runs with all kernels, without each, and with clients that train one by one; one thread."""
    columns = [Column(name, no_wrap=True) for name in ("experiment", "kernel", "with it", "without", "ratio")]
    table, raw = Table(*columns, "one by one", "ratio", title="core-seconds"), {}
    for file, (used, overrides) in EXPERIMENTS.items():
        if only and file != only:
            continue
        seconds = _of(file, used.split(), [*overrides, f"experiment.rounds={rounds}", "train.threads=1"], repeats)
        raw[file] = seconds
        for name in used.split():
            with_it, *others = (median(seconds[key]) for key in ("all", name, "one by one") if key in seconds)
            table.add_row(
                file, name, f"{with_it:.2f}", *(f"{s:.{d}f}" for t in others for s, d in ((t, 2), (t / with_it, 1)))
            )
    console = Console()
    console.print(table)
    console.print(
        f"A kernel stays that brings {LEAST} to clients that train one by one, on one of them; those of IPA always do."
    )
    write_raw(json, "kernels", {"rounds": rounds, "repeats": repeats}, raw)


def _of(file: str, used: list[str], overrides: list[str], repeats: int) -> dict[str, list[float]]:
    """Core-seconds of runs with all kernels, without each that the experiment uses, and one client by one; in turn."""
    experiment = load_experiment(file, overrides)
    runs = dict.fromkeys(("all", *used), experiment)
    if file.startswith("sfl/"):
        runs["one by one"] = load_experiment(file, [*overrides, *ONE_BY_ONE])
    found: dict[str, list[float]] = {name: [] for name in runs}
    with pinned_threads(1):
        run_here(experiment, 1)  # compiles, and reads the data
        for _ in range(repeats):
            for name, chosen in runs.items():
                with _without(name):
                    found[name].append(timed(partial(run_here, chosen, 1)).core)
    return found


@contextmanager
def _without(name: str) -> Iterator[None]:
    """As if there were no compiler for this kernel."""
    module = KERNELS.get(name)
    if module is None:
        yield
        return
    library = module.library
    module.library = lambda: None
    try:
        yield
    finally:
        module.library = library
