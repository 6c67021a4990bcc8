"""``fusion``: time and memory of training F3's fusion network with drawn graphs, beside the paper's table 4."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.table import Table

from fedgraph.fusion import FusionData, FusionSettings, training
from fedgraph.reproduce import ResultLine, merge_into
from fedgraph.simulations.benchmarks.measure import (
    MIB,
    JsonFile,
    Repeats,
    Timing,
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
from fedgraph.simulations.scripts import ResultsFile
from fedgraph.support.errors import ExperimentError
from fedgraph.support.threads import available_cores


class Published(NamedTuple):
    """A data set of the paper, and what five epochs took there on an A100, by graph: seconds and MB (table 4)."""

    owners: int
    samples: int
    took: dict[str, tuple[float, float]]


PUBLISHED = {
    "METR-LA": Published(207, 2856, {"icdf": (79.69, 568.24), "gumbel": (87.89, 832.38)}),
    "PEMS-BAY": Published(325, 4343, {"icdf": (157.93, 1167.19), "gumbel": (270.52, 1896.11)}),
    "PMU-B": Published(43, 4853, {"icdf": (30.16, 322.59), "gumbel": (42.40, 348.39)}),
    "PMU-C": Published(188, 1884, {"icdf": (54.07, 894.63), "gumbel": (84.89, 1119.13)}),
}

PAPER_OWNERS, _, PAPER = PUBLISHED["METR-LA"]
_COLUMNS = {"icdf": "ICDF", "gumbel": "Gumbel"}
TIMES_FASTER = 10
TRAINING_SHARE = 0.7
_VALIDATION_SHARE = 0.1
_HIDDEN, _STEPS, _BATCH = 16, 12, 100


def fusion(
    owners: Annotated[list[int] | None, typer.Option(min=1, help="Owners; may be given several times.")] = None,
    samples: Annotated[int, typer.Option(min=20, help="Samples, 70 % for training and 10 % for validation.")] = 2856,
    data: Annotated[list[str] | None, typer.Option(help="Sizes of table 4 in place of both: METR-LA ...")] = None,
    size: Annotated[int, typer.Option(min=1, help="Length of an embedding.")] = 16,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of every fit.")] = 5,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads that draw graphs; else all cores.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    repeats: Repeats = 3,
    json_: JsonFile = None,
    result_file: ResultsFile = None,
) -> None:
    """Epochs of fusion training on random embeddings, graphs drawn by the inverse CDF and by Gumbel-Softmax.

    Every fit is a process of its own. An epoch is training and the validation after it, as a run has it; a sample-pass
    is one training sample in one epoch. Time does not depend on what embeddings say.

    Table 4 of Ma, Hoang and Chen (UAI 2023) is --data METR-LA --data PEMS-BAY --data PMU-B --data PMU-C, with a graph
    for every sample alone, and what owners' models take on the processor.
    """
    for name in data or ():
        if name not in PUBLISHED:
            raise ExperimentError(f"--data {name}: there are {', '.join(PUBLISHED)}")
    shapes = {f"{PUBLISHED[name].owners} ({name})": PUBLISHED[name][:2] for name in data or ()}
    shapes = shapes or {f"{count} owners": (count, samples) for count in owners or [29, PAPER_OWNERS]}
    results: dict[str, list[dict[str, float]]] = {}
    for _ in range(repeats):
        for shape, (count, number_of_samples) in shapes.items():
            for per in ("sample",) if data else ("sample", "batch"):
                for graph in PAPER:
                    measured = in_fresh_process(
                        f"{__name__}:measure", owners=count, samples=number_of_samples, size=size, epochs=epochs,
                        graph=graph, per=per, workers=workers, device=device,
                    )  # fmt: skip
                    measured["passes"] = epochs * round(TRAINING_SHARE * number_of_samples)
                    results.setdefault(_name(shape, graph, per), []).append(measured)
    lines = [
        f"Embeddings of {size}, alignment, batches of 100. 'over what was there before': memory of the process at its "
        "peak, less what it took before training, with PyTorch and the embeddings loaded.",
    ]
    told: list[ResultLine] = []
    for name in data or ["METR-LA"]:
        known = PUBLISHED[name]
        shape = f"{known.owners} ({name})" if data else f"{known.owners} owners"
        lines += _beside_the_paper(known, shape, results, told)
        if data:
            local = in_fresh_process(
                f"{__name__}:measure_local", owners=known.owners, samples=known.samples, epochs=epochs
            )
            told += _told(shape, "local models", {f"{what}, s": taken for what, taken in local.items()})
            lines.append(
                f"{shape}: all owners' models take {number(local['once'])} core-s once, and again in every batch, as "
                f"in the released program, {number(local['every batch'])}."
            )
    print_report([_table(results)], lines, f"{workers or available_cores()} workers, 1 intra-op thread each")
    settings = {"shapes": shapes, "size": size, "epochs": epochs, "workers": workers, "device": device,
                "repeats": repeats}  # fmt: skip
    write_raw(json_, "fusion", settings, results)
    if result_file is not None:
        merge_into(result_file, told)


def _beside_the_paper(
    known: Published, shape: str, results: Mapping[str, list[dict[str, float]]], told: list[ResultLine]
) -> Iterator[str]:
    """Yield what the paper has, and whether ours is as fast as was aimed at; add ours to ``told``."""
    for graph, (seconds, megabytes) in known.took.items():
        yield f"The paper, {shape} on an A100, five epochs: {seconds} s and {megabytes} MB with {graph}."
        ours = results.get(_name(shape, graph, "sample"))
        if ours:
            # The paper's numbers per sample, whatever was asked for here.
            theirs = 1000 * seconds / (5 * round(TRAINING_SHARE * known.samples))
            wall = median(each["wall"] for each in ours)
            yield target_line(
                f"a sample-pass with {graph}", 1000 * wall / ours[0]["passes"], theirs / TIMES_FASTER, " ms"
            )
            memory = median(each["gpu"] or each["peak"] - each["before"] for each in ours) / MIB
            told += _told(shape, _COLUMNS[graph], {"s": wall, "MiB": memory})


def _told(shape: str, column: str, numbers: Mapping[str, float]) -> list[ResultLine]:
    return [
        ResultLine(shape, column, metric, value=f"{value:.3g}", source="benchmarks fusion")
        for metric, value in numbers.items()
    ]


def measure(
    owners: int, samples: int, size: int, epochs: int, graph: str, per: str, workers: int | None, device: str
) -> dict[str, float]:
    """Seconds of a fit of so many epochs, its core-seconds, this process's peak memory and that before."""
    data = random_data(owners, samples, size)
    settings = FusionSettings.model_validate(
        {"graph": graph, "draw_per": per, "workers": workers, "device": device, "learning_rates": (0.01,)}
    )
    # What is loaded and started with the first step does not count.
    training.fit(settings.model_copy(update={"epochs": 1}), random_data(owners, 20, size), 0)
    before, there = resident_bytes(), 0
    if device == "cuda":
        gc.collect()  # what other measurements of this process have left does not count
        torch.cuda.reset_peak_memory_stats()
        there = torch.cuda.memory_allocated()
    timing: Timing = timed(lambda: training.fit(settings.model_copy(update={"epochs": epochs}), data, 0))
    on_gpu = torch.cuda.max_memory_allocated() - there if device == "cuda" else 0
    # The kernel counts pages in batches, so that its peak may be a little below what is resident.
    peak = max(peak_bytes(), before)
    return {"wall": timing.wall, "core": timing.core, "peak": peak, "before": before, "gpu": on_gpu}


def measure_local(owners: int, samples: int, epochs: int) -> dict[str, float]:
    """Core-seconds of the owners' LSTMs as the paper has them, one thread, without training them.

    ``once`` computes the embeddings of all samples, as F3 is run here; ``every batch`` runs all models again in every
    batch of training and validation samples of so many epochs, as the released program does.
    """
    torch.set_num_threads(1)
    models = [torch.nn.LSTM(1, _HIDDEN, batch_first=True) for _ in range(owners)]
    read_out = torch.randn(_STEPS)
    windows = torch.randn(samples, _STEPS, 1).split(_BATCH)
    used = round((TRAINING_SHARE + _VALIDATION_SHARE) * len(windows))

    @torch.no_grad()
    def embed(batches: Sequence[torch.Tensor]) -> None:
        for batch in batches:
            for model in models:
                torch.einsum("bth,t->bh", model(batch)[0], read_out)

    embed(windows[:1])
    once = timed(lambda: embed(windows))
    every = timed(lambda: embed(windows[:used] * epochs))
    return {"once": once.core, "every batch": every.core}


def random_data(owners: int, samples: int, size: int) -> FusionData:
    """Random embeddings, labels that follow from them, and splits as in the paper."""
    random = torch.Generator().manual_seed(0)
    embeddings = torch.randn(samples, owners, size, generator=random)
    split = torch.full((samples,), 2, dtype=torch.int8)
    training = round(TRAINING_SHARE * samples)
    split[:training] = 0
    split[training : training + max(1, samples // 10)] = 1
    return FusionData(
        embeddings=embeddings,
        present=torch.ones(samples, owners, dtype=torch.bool),
        labels=(embeddings[..., 0].sum(1) > 0).long(),
        split=split,
        sizes=torch.full((owners,), size),
        classes=2,
    )


def _name(shape: str, graph: str, per: str) -> str:
    return f"{shape}, {graph}, a graph per {per}"


def _table(results: Mapping[str, list[dict[str, Any]]]) -> Table:
    table = Table(title="Fusion training", title_justify="left")
    table.add_column("", no_wrap=True)
    headings = (
        "min [s]", "median [s]", "max [s]", "core-s", "ms per sample-pass", "peak [MiB]", "over what was there before",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right")
    for name, runs in results.items():
        wall = [each["wall"] for each in runs]
        peak, above = (
            median(values) / MIB
            for values in ([run["peak"] for run in runs], [run["peak"] - run["before"] for run in runs])
        )
        core = median(each["core"] for each in runs)
        cells = (min(wall), median(wall), max(wall), core, 1000 * median(wall) / runs[0]["passes"], peak, above)
        table.add_row(name, *(number(value) for value in cells))
    return table
