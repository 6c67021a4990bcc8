"""``alignment``: one step of aligning a peer with the others, by number of peers; and whole rounds of turns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

import torch
import typer
from rich.table import Table
from torch import Tensor

from fedgraph.data import open_source
from fedgraph.experiment import load_experiment
from fedgraph.models import build
from fedgraph.simulations.benchmarks.baselines import PlainPeers
from fedgraph.simulations.benchmarks.measure import (
    MIB,
    JsonFile,
    Repeats,
    forget_peak,
    in_fresh_process,
    median,
    number,
    peak_bytes,
    print_report,
    resident_bytes,
    target_line,
    timed,
    write_raw,
)
from fedgraph.simulations.benchmarks.runs import data_dir, in_process
from fedgraph.training import TrainSettings, fresh_state
from fedgraph.training.alignment import Distance, PeerAlignment

LAYERS = (784 * 200, 200, 200 * 200, 200, 200 * 10, 10)
"""Numbers in the tensors of the multi-layer perceptron of Gorbett et al. 2023."""

DISJOINT = "ipa/mnist-classes.toml"
RELEASED_SECONDS = 12.0
"""What a round of it takes the authors' program on two cores: 11.5 to 12."""

_ONE_ROUND = ("experiment.rounds=1", "evaluation.targets={}", "output.checkpoint-every=1000000")

Models = list[Tensor]
"""The others' parameters as they lie in memory, after a step."""

LOOP = "peer by peer, layer by layer"
STACKED = "stacked operations"
COMPILED = "compiled"


def alignment(
    peers: Annotated[list[int] | None, typer.Option(min=2, help="Peers; may be given several times.")] = None,
    width: Annotated[int, typer.Option(min=1, help="Models as many times as large as the paper's for MNIST.")] = 1,
    power: Annotated[float, typer.Option(min=1, help="p of the distance.")] = 1.0,
    threads: Annotated[int, typer.Option(min=1, help="Intra-op threads.")] = 1,
    whole_round: Annotated[str | None, typer.Option("--round", help="Also time a round of this experiment.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Time that round as a plain program, too.")] = False,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key of that experiment.")] = None,
    repeats: Repeats = 3,
    json_: JsonFile = None,
) -> None:
    """The alignment term, its gradient and the others' step of Adam: ours, compiled and not, and as a plain loop.

    The loop is what one writes first: norms of differences, peer by peer and layer by layer, differentiated by autograd
    and followed by an optimiser of PyTorch. Every measurement is a process of its own.
    """
    counts = peers or [2, 5, 10, 20]
    parameters = sum(LAYERS) * width
    results: dict[str, list[dict[str, float]]] = {}
    for _ in range(repeats):
        for count in counts:
            for kind in (LOOP, STACKED, COMPILED):
                found = in_fresh_process(
                    f"{__name__}:measure", kind=kind, peers=count, width=width, power=power, threads=threads
                )
                results.setdefault(_name(count, kind), []).append(found)
    lines = [
        f"Models of {parameters:,} parameters, p = {power:g}, Adam. 'memory': of the process at its peak, less what it "
        "took with parameters and moments in place; these take 12 bytes per peer and parameter.",
    ]
    most, least = max(counts), min(counts)
    if most > least:
        spent = [median(each["seconds"] for each in results[_name(count, COMPILED)]) for count in (least, most)]
        # One of the peers is the one that trains.
        growth = spent[1] / spent[0] / ((most - 1) / (least - 1))
        lines.append(target_line(f"time from {least} to {most} peers, over that of others, compiled", growth, 1.5))
    tables = [_table(results, parameters)]
    if whole_round is not None:
        asked = {"name": whole_round, "overrides": set_ or []}
        ours = in_fresh_process(f"{__name__}:measure_round", **asked)
        fastest = min(ours["seconds"])
        lines.append(
            f"A round of {whole_round}, {ours['clients']} peers one after the other, {ours['threads']} intra-op "
            f"threads, the fastest of {len(ours['seconds'])}: {number(fastest)} s, {number(ours['peak'] / MIB)} MiB at "
            "its peak, all in one process."
        )
        results[whole_round] = [ours]
        if plain:
            other = in_fresh_process(f"{__name__}:measure_plain_round", **asked)
            seconds = min(other["seconds"])
            lines.append(
                f"As a plain program in PyTorch: {number(seconds)} s, {number(seconds / fastest)} times as long."
            )
            results[whole_round].append(other)
        if whole_round.endswith(DISJOINT):
            lines.append(target_line("a fifth of the released program's round", fastest, RELEASED_SECONDS / 5, " s"))
    print_report(tables, lines, f"{threads} intra-op thread{'s' if threads > 1 else ''}")
    settings = {"peers": counts, "width": width, "power": power, "threads": threads, "round": whole_round,
                "plain": plain, "set": set_, "repeats": repeats}  # fmt: skip
    write_raw(json_, "alignment", settings, results)


def measure(kind: str, peers: int, width: int, power: float, threads: int) -> dict[str, float]:
    """Seconds of a step, and bytes that it takes beside parameters and moments."""
    torch.set_num_threads(threads)
    parameters = sum(LAYERS) * width
    step = (_loop if kind == LOOP else _ours(kind == COMPILED))(peers, parameters, power)
    # Libraries are loaded, the compiler has run, and moments are there.
    step()
    before, steps = resident_bytes(), max(3, 400_000_000 // (peers * parameters))
    forget_peak()

    def several() -> None:
        for _ in range(steps):
            step()

    return {"seconds": timed(several).wall / steps, "bytes": max(0, peak_bytes() - before)}


def measure_round(name: str, overrides: list[str]) -> dict[str, Any]:
    """Seconds of an experiment's rounds, by default its first, and this process's peak memory."""
    experiment = load_experiment(name, [*_ONE_ROUND, *overrides], "ipa")
    timings = in_process(experiment, nodes=2)
    found = {"seconds": [timing.wall for timing in timings], "peak": peak_bytes()}
    return {**found, "clients": getattr(experiment.data, "clients", 0), "threads": experiment.train.threads}


def measure_plain_round(name: str, overrides: list[str]) -> dict[str, Any]:
    """Seconds of a round of :class:`fedgraph.simulations.benchmarks.baselines.PlainPeers` on the same examples."""
    experiment = load_experiment(name, [*_ONE_ROUND, *overrides], "ipa")
    source = open_source(experiment.data, data_dir())
    data = source.load(source.client_names())
    torch.manual_seed(experiment.experiment.seed)
    peers = PlainPeers(build(experiment.model, data.task), data, experiment.train, experiment.method_table["power"])
    accuracies: list[list[float]] = []
    seconds = [timed(lambda: accuracies.append(peers.round())).wall for _ in range(experiment.experiment.rounds)]
    return {"seconds": seconds, "accuracies": accuracies}


def _drawn(peers: int, parameters: int) -> tuple[Tensor, Tensor, Tensor]:
    """A peer's own parameters, the others' and their weights."""
    random = torch.Generator().manual_seed(0)
    models = 0.05 * torch.randn(peers, parameters, generator=random)
    return models[0].clone(), models[1:].clone(), torch.full((peers - 1,), 1 / peers)


def _ours(compiled: bool) -> Callable[[int, int, float], Callable[[], Models]]:
    def build(peers: int, parameters: int, power: float) -> Callable[[], Models]:
        own, others, weights = _drawn(peers, parameters)
        settings = TrainSettings(optimizer="adam", learning_rate=1e-3, compile=compiled)
        moments = fresh_state(settings, peers - 1, parameters)
        distance, examples = Distance(1.0, True, power), torch.tensor([50])
        term = PeerAlignment(others, weights, distance, True, settings, 1, moments, examples)
        batch = torch.tensor([50.0])

        def step() -> Models:
            term(own[None], slice(0, 1), batch)
            return list(term.others)

        return step

    return build


def _loop(peers: int, parameters: int, power: float) -> Callable[[], Models]:
    own, others, weights = _drawn(peers, parameters)
    sizes = [parameters * layer // sum(LAYERS) for layer in LAYERS]
    sizes[-1] += parameters - sum(sizes)
    trained = [layer.clone().requires_grad_() for layer in own.split(sizes)]
    moved = [[layer.clone().requires_grad_() for layer in other.split(sizes)] for other in others]
    # The peer's own parameters are stepped by local training, and not here.
    optimiser = torch.optim.Adam([layer for other in moved for layer in other], 1e-3)

    def step() -> Models:
        optimiser.zero_grad()
        total = torch.zeros(())
        for other, weight in zip(moved, weights, strict=True):
            for mine, theirs in zip(trained, other, strict=True):
                total = total + weight * torch.linalg.vector_norm(mine - theirs, power) ** power
        total.backward()
        optimiser.step()
        return [layer for other in moved for layer in other]

    return step


def _name(peers: int, kind: str) -> str:
    return f"{peers} peers, {kind}"


def _table(results: dict[str, list[dict[str, float]]], parameters: int) -> Table:
    table = Table(title="One step of the alignment", title_justify="left")
    table.add_column("", no_wrap=True)
    for heading in ("min [ms]", "median [ms]", "max [ms]", "ns per number", "times faster", "memory [MiB]"):
        table.add_column(heading, justify="right")
    for name, runs in results.items():
        milliseconds = [1000 * run["seconds"] for run in runs]
        peers, _, _ = name.partition(" ")
        loop = 1000 * median(run["seconds"] for run in results.get(_name(int(peers), LOOP), [{"seconds": math.nan}]))
        per_number = 1e6 * median(milliseconds) / (int(peers) * parameters)
        cells = (min(milliseconds), median(milliseconds), max(milliseconds), per_number, loop / median(milliseconds),
                 median(run["bytes"] for run in runs) / MIB)  # fmt: skip
        table.add_row(name, *(number(value) for value in cells))
    return table
