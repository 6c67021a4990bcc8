"""``fusion``: time and memory of training F3's fusion network with drawn graphs, beside the paper's table 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.table import Table

from fedgraph.fusion import FusionData, FusionSettings, training
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

PAPER_OWNERS, PAPER_SAMPLES, PAPER = PUBLISHED["METR-LA"]
TIMES_FASTER = 10
TRAINING_SHARE = 0.7
_VALIDATION_SHARE = 0.1
_HIDDEN, _STEPS, _BATCH = 16, 12, 100


def fusion(
    owners: Annotated[list[int] | None, typer.Option(min=1, help="Owners; may be given several times.")] = None,
    samples: Annotated[int, typer.Option(min=20, help="Samples, 70 % for training and 10 % for validation.")] = 2856,
    size: Annotated[int, typer.Option(min=1, help="Length of an embedding.")] = 16,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of every fit.")] = 5,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads that draw graphs; else all cores.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    repeats: Repeats = 3,
    json_: JsonFile = None,
) -> None:
    """Epochs of fusion training on random embeddings, graphs drawn by the inverse CDF and by Gumbel-Softmax.

    Every fit is a process of its own. An epoch is training and the validation after it, as a run has it; a sample-pass
    is one training sample in one epoch.
    """
    counts = owners or [29, PAPER_OWNERS]
    passes = epochs * round(TRAINING_SHARE * samples)
    results: dict[str, list[dict[str, float]]] = {}
    for _ in range(repeats):
        for count in counts:
            for per in ("sample", "batch"):
                for graph in PAPER:
                    measured = in_fresh_process(
                        f"{__name__}:measure", owners=count, samples=samples, size=size, epochs=epochs, graph=graph,
                        per=per, workers=workers, device=device,
                    )  # fmt: skip
                    results.setdefault(_name(count, graph, per), []).append(measured)
    lines = [
        f"{samples} samples, embeddings of {size}, alignment, batches of 100. 'over what was there before': memory of "
        "the process at its peak, less what it took before training, with PyTorch and the embeddings loaded.",
        *(
            f"The paper, {PAPER_OWNERS} owners on an A100, five epochs: {seconds} s and {megabytes} MB with {graph}."
            for graph, (seconds, megabytes) in PAPER.items()
        ),
    ]
    for graph, (seconds, _) in PAPER.items():
        ours = results.get(_name(PAPER_OWNERS, graph, "sample"))
        if ours:
            # The paper's numbers per sample, whatever was asked for here.
            theirs = 1000 * seconds / (5 * round(TRAINING_SHARE * PAPER_SAMPLES))
            per_pass = 1000 * median(each["wall"] for each in ours) / passes
            lines.append(target_line(f"a sample-pass with {graph}", per_pass, theirs / TIMES_FASTER, " ms"))
    print_report([_table(results, passes)], lines, f"{workers or available_cores()} workers, 1 intra-op thread each")
    settings = {"owners": counts, "samples": samples, "size": size, "epochs": epochs, "workers": workers,
                "device": device, "repeats": repeats}  # fmt: skip
    write_raw(json_, "fusion", settings, results)


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
    before = resident_bytes()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    timing: Timing = timed(lambda: training.fit(settings.model_copy(update={"epochs": epochs}), data, 0))
    on_gpu = torch.cuda.max_memory_allocated() if device == "cuda" else 0
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


def _name(owners: int, graph: str, per: str) -> str:
    return f"{owners} owners, {graph}, a graph per {per}"


def _table(results: Mapping[str, list[dict[str, Any]]], passes: int) -> Table:
    table = Table(title=f"Fusion training, {passes:,} sample-passes", title_justify="left")
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
        cells = (min(wall), median(wall), max(wall), core, 1000 * median(wall) / passes, peak, above)
        table.add_row(name, *(number(value) for value in cells))
    return table
