"""``server``: what the server does with the models of all clients: aggregate them over a graph, encode and decode."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import torch
import typer
from flwr.app import Array, ArrayRecord
from rich.table import Table
from torch import Tensor

from fedgraph.data import open_source, parse_data
from fedgraph.graph import ClientGraph, cosine_similarity, squared_distances
from fedgraph.messages import from_record, to_record
from fedgraph.models import Layout
from fedgraph.simulations.benchmarks.measure import (
    JsonFile,
    Repeats,
    Timing,
    in_fresh_process,
    in_turn,
    median,
    number,
    peak_bytes,
    print_report,
    target_line,
    timed,
    timing_table,
    warmed,
    write_raw,
)
from fedgraph.simulations.benchmarks.runs import data_dir
from fedgraph.support.threads import available_cores, pinned_threads

HOPS = 3
NEIGHBOURS = 10
PARAMETERS = 14_000
SMALL_SECONDS = 0.005
LARGE_SECONDS = 1.0
LARGE_GIB = 2.0
PAIR_LOOP = "loop over pairs of clients"
IN_A_ROW = 10
"""Calls of what takes milliseconds that make up one measurement."""


def server(
    clients: Annotated[int, typer.Option(min=NEIGHBOURS + 1, help="Clients of the large random graph.")] = 10_000,
    parameters: Annotated[int, typer.Option(min=1, help="Parameters of every model.")] = PARAMETERS,
    hops: Annotated[int, typer.Option(min=1, help="Hops over the graph.")] = HOPS,
    threads: Annotated[int, typer.Option(min=1, help="Intra-op threads.")] = 1,
    loop: Annotated[bool, typer.Option(help="Measure the loop over clients on the large graph too (once).")] = True,
    repeats: Repeats = 5,
    json_: JsonFile = None,
) -> None:
    """Aggregation over METR-LA's graph and over a large random one, pairwise similarity, encoding and decoding.

    Compared with a loop over clients that averages dictionaries of tensors, and with Flower's own conversions.
    """
    tables, lines = [], []
    raw: dict[str, Any] = {}
    with pinned_threads(threads):
        graph = road_graph()
        models = random_models(graph.num_clients, parameters)
        small = in_turn(_aggregations(graph, models, hops), repeats)
        title = f"{hops} hops over METR-LA's graph, {graph.num_clients} clients x {parameters:,} parameters"
        tables.append(timing_table(title, small, ["loop over clients"]))
        raw["metr-la"] = small
        ours = {name: warmed(work, 1 if name == PAIR_LOOP else IN_A_ROW) for name, work in pairwise(models).items()}
        raw["pairwise"] = in_turn(ours, repeats)
        title = f"All pairs of {graph.num_clients} clients x {parameters:,} parameters"
        tables.append(timing_table(title, raw["pairwise"], [PAIR_LOOP]))
        both = {name: warmed(work, IN_A_ROW) for name, work in conversions(models).items()}
        raw["messages"] = in_turn(both, repeats)
        tables.append(_conversion_table(raw["messages"], models))

    large = [in_fresh_process(f"{__name__}:measure_large", clients=clients, parameters=parameters, hops=hops,
                              threads=threads, repeats=1) for _ in range(repeats)]  # fmt: skip
    results = {"propagate": [Timing(**each) for run in large for each in run["propagate"]]}
    if loop:
        run = in_fresh_process(f"{__name__}:measure_large_loop", clients=clients, parameters=parameters, hops=hops,
                               threads=threads)  # fmt: skip
        results["loop over clients"] = [Timing(**run)]
    peaks = [run["peak"] / 2**30 for run in large]
    raw["large"], raw["large-peak-gib"] = results, peaks
    title = f"{hops} hops over a random graph, {NEIGHBOURS} neighbours each, {clients:,} x {parameters:,} parameters"
    tables.append(timing_table(title, results, ["loop over clients"] if loop else []))
    lines += [
        f"Memory of the whole process that propagates over the large graph: at most {number(min(peaks))} / "
        f"{number(median(peaks))} / {number(max(peaks))} GiB (min / median / max of {repeats} processes), of which the "
        f"models are {clients * parameters * 4 / 2**30:.2f} GiB and as much again is the result.",
        target_line("propagation over METR-LA's graph", _wall(small["propagate"]) * 1000, SMALL_SECONDS * 1000, " ms"),
        target_line("propagation over the large graph", _wall(results["propagate"]), LARGE_SECONDS, " s"),
        target_line("memory of that process", median(peaks), LARGE_GIB, " GiB"),
    ]
    lines.append(f"What takes milliseconds is done {IN_A_ROW} times in a row for one measurement.")
    if loop:
        lines.append("The loop over the large graph was measured once.")
    print_report(
        tables,
        lines,
        f"ours: up to {available_cores()} workers; intra-op threads of each, and of what it is compared "
        f"with: {threads}",
    )
    settings = {"clients": clients, "parameters": parameters, "hops": hops, "threads": threads, "repeats": repeats}
    write_raw(json_, "server", settings, raw)


def road_graph() -> ClientGraph:
    """METR-LA's road graph over all sensors of the prepared week."""
    graph = open_source(parse_data({"set": "metr-la", "part": "week"}), data_dir()).given_graph()
    assert graph is not None
    return graph.symmetrised()


def random_graph(clients: int, neighbours: int) -> ClientGraph:
    """Every client listens to so many others, drawn at random, so that no memory access profits from their order."""
    names = tuple(f"client-{number:05d}" for number in range(clients))
    # Clients stand in a circle. Steps of random length, added up, lead to different others and never around it.
    random = torch.Generator().manual_seed(0)
    steps = torch.randint(1, (clients - 1) // neighbours + 1, (clients, neighbours), generator=random)
    targets = (torch.arange(clients)[:, None] + steps.cumsum(1)) % clients
    sources = torch.arange(clients)[:, None].expand_as(targets)
    edges = torch.stack([sources.flatten(), targets.flatten()])
    return ClientGraph(names, edges, torch.ones(edges.shape[1]), directed=True)


def random_models(clients: int, parameters: int) -> Tensor:
    """Models of random numbers, ``[clients, parameters]``."""
    return torch.randn(clients, parameters, generator=torch.Generator().manual_seed(1))


def as_dicts(models: Tensor) -> list[dict[str, Tensor]]:
    """The same models as state dicts, each tensor with storage of its own, shaped like those of a GRU with 64 units."""
    layout = gru_like(models.shape[1])
    return [layout.row_state(row) for row in models]


def gru_like(parameters: int) -> Layout:
    """Names and shapes of a small GRU with a linear layer; one more tensor takes up what is left."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "head.weight", "head.bias")
    shapes: tuple[tuple[int, ...], ...] = ((192, 1), (192, 64), (192,), (192,), (12, 64), (12,))
    rest = parameters - sum(math.prod(shape) for shape in shapes)
    if rest < 0:
        return Layout(("weight",), ((parameters,),))
    return Layout((*names, "rest"), (*shapes, (rest,))) if rest else Layout(names, shapes)


def loop_over_clients(graph: ClientGraph, models: list[dict[str, Tensor]], hops: int) -> list[dict[str, Tensor]]:
    """What ``graph.propagate`` computes, as averages of state dicts are usually written: client by client."""
    matrix = graph.normalised()
    neighbours: list[list[tuple[int, float]]] = [[] for _ in range(graph.num_clients)]
    for row, column, weight in zip(*matrix.edge_index.tolist(), matrix.weights.tolist(), strict=True):
        neighbours[row].append((column, weight))
    for _ in range(hops):
        mixed = []
        for own in neighbours:
            average = {name: torch.zeros_like(value) for name, value in models[0].items()}
            for other, weight in own:
                for name, value in models[other].items():
                    average[name] += weight * value
            mixed.append(average)
        models = mixed
    return models


def _aggregations(graph: ClientGraph, models: Tensor, hops: int) -> dict[str, Callable[[], list[Timing]]]:
    dicts = as_dicts(models)
    return {
        "propagate": warmed(lambda: graph.propagate(models, hops), IN_A_ROW),
        "loop over clients": warmed(lambda: loop_over_clients(graph, dicts, hops)),
    }


def measure_large(clients: int, parameters: int, hops: int, threads: int, repeats: int) -> dict[str, Any]:
    """Propagation over the large graph after one that is not measured, and this process's largest memory."""
    with pinned_threads(threads):
        graph, models = random_graph(clients, NEIGHBOURS), random_models(clients, parameters)
        measure = warmed(lambda: graph.propagate(models, hops))
        timings = [vars(each) for _ in range(repeats) for each in measure()]
    return {"propagate": timings, "peak": peak_bytes()}


def measure_large_loop(clients: int, parameters: int, hops: int, threads: int) -> dict[str, float]:
    """The loop over clients on the large graph, once."""
    with pinned_threads(threads):
        graph, dicts = random_graph(clients, NEIGHBOURS), as_dicts(random_models(clients, parameters))
        return vars(timed(lambda: loop_over_clients(graph, dicts, hops)))


def pairwise(models: Tensor) -> dict[str, Callable[[], object]]:
    """Distances and similarities between all clients, and distances pair by pair."""
    dicts = as_dicts(models)

    def pair_by_pair() -> list[float]:
        return [
            sum(float((a - b).square().sum()) for a, b in zip(one.values(), other.values(), strict=True))
            for number, one in enumerate(dicts)
            for other in dicts[:number]
        ]

    return {
        "squared distances": lambda: squared_distances(models),
        "cosine similarity": lambda: cosine_similarity(models),
        PAIR_LOOP: pair_by_pair,
    }


def conversions(models: Tensor) -> dict[str, Callable[[], object]]:
    """Models to a message's record and back, ours and Flower's."""
    ours, theirs = to_record({"parameters": models}), ArrayRecord({"parameters": Array(models.numpy())})
    return {
        "encode, ours": lambda: to_record({"parameters": models}),
        "encode, Flower's": lambda: ArrayRecord({"parameters": Array(models.numpy())}),
        "decode, ours": lambda: from_record(ours),
        "decode, Flower's": lambda: theirs.to_torch_state_dict(),
    }


def _conversion_table(results: Mapping[str, list[Timing]], models: Tensor) -> Table:
    megabytes = models.numel() * models.element_size() / 1e6
    table = Table(title=f"Messages of {list(models.shape)} float32, {megabytes:.1f} MB", title_justify="left")
    for heading in ("", "min [MB/s]", "median [MB/s]", "max [MB/s]", "s / Flower's"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, timings in results.items():
        rates = [megabytes / each.wall for each in timings]
        theirs = _wall(results[f"{name.partition(',')[0]}, Flower's"])
        cells = (min(rates), median(rates), max(rates), _wall(timings) / theirs)
        table.add_row(name, *(number(value) for value in cells))
    return table


def _wall(timings: list[Timing]) -> float:
    return median(each.wall for each in timings)
