"""``graphical``: training of neural graphical models, how close they come to the truth, and samples drawn from them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.table import Table as Rows
from torch import Tensor

from fedgraph.data.columns import read_table
from fedgraph.data.encoding import Encoding, Scaling, read_values
from fedgraph.data.schema import Feature, Schema, SchemaSettings, infer_schema
from fedgraph.graphical.inference import SamplingSettings, draw
from fedgraph.graphical.learning import NGMFit, fit_ngm
from fedgraph.graphical.network import NGMSettings
from fedgraph.graphical.network import kernel as network_kernel
from fedgraph.graphical.recovery import RecoverySettings, UnitTable, recover
from fedgraph.graphical.scores import SampleQuality, sample_quality
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
from fedgraph.support.randomness import generator
from fedgraph.support.settings import parse
from fedgraph.support.threads import available_cores

RELEASED_SECONDS = 18.0
"""What the authors' program takes for one client: 10 features, 5,000 rows, 2,000 epochs, on two cores."""

CORRELATION = 0.8
RELEASED_CORRELATION = 0.6
"""What its samples of a chain with this correlation have."""

TIMES_FASTER = 5.0
"""How much faster than the released program clients are to be trained, full batch against full batch."""

MOST_APART = 0.05
FILE = Path("cdc-infant") / "natality_2014_100k.csv.gz"
BIRTHS = parse(
    SchemaSettings,
    {
        "drop": ["apgar10", "uld_breech"],
        "kinds": dict.fromkeys(("combgest", "apgar5", "precare"), "ordinal") | {"dplural": "integer"},
    },
    "[features]",
)
_TRAINING, _HELD_OUT, _COMPARED = 16_000, 4_000, 20_000


def graphical(
    clients: Annotated[list[int] | None, typer.Option(min=1, help="Clients; may be given several times.")] = None,
    rows: Annotated[int, typer.Option(min=50, help="Rows of each client.")] = 5000,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of full batches, each a step on all rows.")] = 2000,
    samples: Annotated[int, typer.Option(min=10, help="Rows that are drawn from the model of births.")] = 100_000,
    repeats: Repeats = 1,
    json_: JsonFile = None,
) -> None:
    """Models of a Gaussian chain of 10 features, and samples of one of 43 features of births.

    Models are trained with full batches and as by default, by minibatches until nothing gets better, each with compiled
    code and without, in turn. Without the file of births in the data folder (FEDGRAPH_DATA), a random table of the same
    size takes its place. Every measurement is a process of its own.
    """
    counts = clients or [1, 3]
    chains: dict[str, list[dict[str, Any]]] = {}
    births: list[dict[str, Any]] = []
    for _ in range(repeats):
        for count in counts:
            for full in (epochs, None):
                for compile in (True, False):
                    arguments = {"clients": count, "rows": rows, "full": full, "compile": compile}
                    found = in_fresh_process(f"{__name__}:measure_chain", **arguments)
                    chains.setdefault(_name(count, full, compile), []).append(found)
        births.append(in_fresh_process(f"{__name__}:measure_births", samples=samples))
    first, drawn = chains[_name(counts[0], epochs, True)][0], births[0]
    fits = zip(first["r_squared"], first["possible"], strict=True)
    lines = [
        "R^2 of each feature of the chain and, in brackets, of its true conditional expectation: "
        + ", ".join(f"{ours:.3f} ({best:.3f})" for ours, best in fits),
        f"Correlations of neighbours, {CORRELATION}, differ in samples by at most {first['apart']:.3f}; by the "
        f"released procedure they are {first['released']:.3f} on average ({RELEASED_CORRELATION} in that program).",
        f"{samples:,} rows of {drawn['table']}: {drawn['edges']} edges.\n{drawn['quality']}",
        *(_ratio(chains, count, full) for count in counts for full in (epochs, None)),
        target_line("neighbours' correlations", first["apart"], MOST_APART),
    ]
    if (rows, epochs) == (5000, 2000):
        for count in counts:
            name = f"training of {_clients(count)}, a fifth of the released program's time"
            best = min(run["wall"] for run in chains[_name(count, epochs, True)])
            lines.append(target_line(name, best, count * RELEASED_SECONDS / TIMES_FASTER, " s"))
    tables = [_table(chains, f"Training, {rows:,} rows"), _table({"births": births}, "Sampling")]
    print_report(tables, lines, f"{available_cores()} threads for compiled training and for sampling, 1 for the other")
    settings = {"clients": counts, "rows": rows, "epochs": epochs, "samples": samples, "repeats": repeats}
    write_raw(json_, "graphical", settings, {**chains, "births": births})


def measure_chain(clients: int, rows: int, full: int | None, compile: bool) -> dict[str, Any]:
    """Time of a fit, its R^2 beside the best possible, and the correlations of neighbours in samples.

    full : epochs of full batches; None: minibatches and early stopping, as by default.
    """
    names = [f"client-{place}" for place in range(clients)]
    tables = [chain(rows, "rows", name) for name in names]
    held_out = [chain(1000, "held out", name) for name in names]
    schema = Schema(tuple(Feature(f"x{place}", "real") for place in range(tables[0].shape[1])))
    graph = torch.ones(len(schema.features), len(schema.features)).triu(1).tril(1).bool()
    graph |= graph.T.clone()
    settings = NGMSettings(compile=compile)
    if full is not None:
        settings = NGMSettings(epochs=full, batch_size=None, patience=full, compile=compile)
    # Compiling takes a few seconds once on every machine.
    network_kernel.library()
    fits: list[NGMFit] = []
    before = resident_bytes()
    timing = timed(lambda: fits.append(fit_ngm(schema, graph, tables, held_out, names, settings, 0)))
    peak, fit = peak_bytes(), fits[0]
    inner = 2 * CORRELATION**2 / (1 + CORRELATION**2)
    samples = draw(fit.network, fit.parameters, 20_000, names, 0)
    apart = [
        float((_neighbours(ours) - _neighbours(theirs)).abs().max())
        for ours, theirs in zip(samples, tables, strict=True)
    ]
    released = draw(fit.network, fit.parameters, 1000, names, 0, settings=SamplingSettings(method="released"))
    return {
        "wall": timing.wall,
        "core": timing.core,
        "peak": peak,
        "before": before,
        "epochs": int(fit.trained.run.max()),
        "r_squared": fit.r_squared[0].tolist(),
        "possible": [CORRELATION**2, *[inner] * (len(schema.features) - 2), CORRELATION**2],
        "apart": max(apart),
        "released": float(_neighbours(released[0]).mean()),
    }


def measure_births(samples: int) -> dict[str, Any]:
    """Time and memory of drawing rows from a model of births, and how good they are."""
    name, schema, encoding, units = births_table()
    training, held_out, compared, _ = units.tensor_split(
        (_TRAINING, _TRAINING + _HELD_OUT, _TRAINING + _HELD_OUT + _COMPARED)
    )
    table = UnitTable("births", schema.names, training, schema.unit_feature)
    graph = recover(RecoverySettings(), [table], 0)[0].graph
    settings = NGMSettings(epochs=15)
    fit = fit_ngm(schema, graph.adjacency, [training], [held_out], ["births"], settings, 0)
    drawn: list[Tensor] = []
    forget_peak()
    before = resident_bytes()
    timing = timed(lambda: drawn.append(draw(fit.network, fit.parameters, samples, ["births"], 0)[0]))
    peak = peak_bytes()
    quality: SampleQuality = sample_quality(schema, encoding.encode(encoding.decode(drawn[0])), compared)
    return {
        "wall": timing.wall,
        "core": timing.core,
        "peak": peak,
        "before": before,
        "table": f"{name}, {len(schema.features)} features, {len(schema.unit_feature)} units",
        "edges": len(graph.edges),
        "quality": quality.as_text(),
        "r_squared": dict(zip(schema.names, fit.r_squared[0].tolist(), strict=True)),
    }


def chain(rows: int, *key: str, features: int = 10) -> Tensor:
    """Rows of a Gaussian chain, mean 0.5 and deviation 0.1, ``[rows, features]``."""
    noise = torch.randn(rows, features, generator=generator(0, *key))
    columns = [noise[:, 0]]
    for place in range(1, features):
        columns.append(CORRELATION * columns[-1] + (1 - CORRELATION**2) ** 0.5 * noise[:, place])
    return 0.5 + 0.1 * torch.stack(columns, 1)


def births_table() -> tuple[str, Schema, Encoding, Tensor]:
    """A name, the schema, and units ``[rows, units]`` of births in random order, or of a table of the same size."""
    folder = os.environ.get("FEDGRAPH_DATA")
    if folder and (Path(folder) / FILE).is_file():
        table = read_table(Path(folder) / FILE, missing=("", "NA"))
        schema = infer_schema(table, BIRTHS)
        values = read_values(table, schema, BIRTHS)
        name = "births of 2014"
    else:
        name, schema, values = "random rows", *_random_table()
    encoding = Encoding(schema, Scaling.measured(values, schema, 0.01))
    order = torch.randperm(len(values), generator=generator(0, "births"))
    return name, schema, encoding, encoding.encode(values)[order]


def _random_table() -> tuple[Schema, np.ndarray[Any, np.dtype[np.float64]]]:
    """18 numbers, 21 binary and 4 categorical features of 19 units in all, all cut from a chain of 43."""
    widths = [1] * 18 + [2] * 21 + [5, 5, 5, 4]
    kinds = ["real" if width == 1 else "binary" if width == 2 else "categorical" for width in widths]
    features = tuple(
        Feature(f"x{place}", kind, tuple(map(str, range(width))) if width > 1 else ())  # type: ignore[arg-type]
        for place, (width, kind) in enumerate(zip(widths, kinds, strict=True))
    )
    values = chain(_TRAINING + _HELD_OUT + _COMPARED, "random table", features=len(widths)).double().numpy()
    for place, width in enumerate(widths):
        if width > 1:
            cuts = np.quantile(values[:, place], np.arange(1, width) / width)
            values[:, place] = np.searchsorted(cuts, values[:, place])
    return Schema(features), values


def _clients(count: int) -> str:
    return f"{count} client{'s' * (count > 1)}"


def _name(count: int, full: int | None, compile: bool) -> str:
    how = "minibatches" if full is None else f"{full:,} full batches"
    return f"{_clients(count)}, {how}, {'compiled' if compile else 'PyTorch'}"


def _ratio(chains: Mapping[str, list[dict[str, Any]]], count: int, full: int | None) -> str:
    """By the best run of each, and by epoch: rounding decides in which one training ends."""
    compiled, plain = (
        {key: min(run[key] / run["epochs"] for run in chains[_name(count, full, compile)]) for key in ("wall", "core")}
        for compile in (True, False)
    )
    wall, core = (plain[key] / compiled[key] for key in ("wall", "core"))
    return (
        f"{_name(count, full, True)}: {wall:.1f} times as fast, {core:.1f} times in core-seconds; "
        f"{1e3 * compiled['wall']:.2f} ms an epoch."
    )


def _neighbours(rows: Tensor) -> Tensor:
    return torch.corrcoef(rows.T).diagonal(1)


def _table(results: Mapping[str, list[dict[str, Any]]], title: str) -> Rows:
    table = Rows(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for heading in ("min [s]", "median [s]", "max [s]", "core-s", "peak [MiB]", "over what was there before"):
        table.add_column(heading, justify="right")
    for name, runs in results.items():
        wall = [run["wall"] for run in runs]
        peak, before = (median(run[key] for run in runs) / MIB for key in ("peak", "before"))
        cells = (min(wall), median(wall), max(wall), median(run["core"] for run in runs), peak, peak - before)
        table.add_row(name, *(number(value) for value in cells))
    return table
