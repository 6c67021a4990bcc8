"""Time and memory of five epochs of fusion training, by the inverse CDF and by Gumbel-Softmax, at the paper's sizes.

Ma, Hoang, Chen (UAI 2023), table 4. Time does not depend on what embeddings say, so these are random ones.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from fedgraph.reproduce import NumberTable, StudyContext, StudyPage
from fedgraph.simulations.benchmarks.fusion import PUBLISHED, TRAINING_SHARE
from fedgraph.simulations.benchmarks.measure import MIB, in_fresh_process, median
from fedgraph.support.settings import Settings

_EPOCHS = 5
_EMBEDDING = 16
_MEMORY = {
    "cpu": "that of the process at its peak, less what it took before training",
    "cuda": "what PyTorch had allocated on the device at its peak",
}


class Table4Options(Settings):
    """The options of the study.

    sets    : data sets of the paper, by name.
    repeats : times that every fit is measured; the median counts.
    workers : threads that draw graphs; None takes the cores that there are.
    device  : ``cpu`` or ``cuda``.
    """

    sets: tuple[Literal["METR-LA", "PEMS-BAY", "PMU-B", "PMU-C"], ...] = ("METR-LA", "PEMS-BAY", "PMU-B", "PMU-C")
    repeats: PositiveInt = 1
    workers: int | None = Field(default=None, ge=1)
    device: Literal["cpu", "cuda"] = "cpu"


def table4_page(context: StudyContext) -> StudyPage:
    """Measure, each fit in a process of its own."""
    options = context.parsed_options(Table4Options)
    lines, local = [], []
    for name in options.sets:
        known = PUBLISHED[name]
        took = in_fresh_process(
            "fedgraph.simulations.benchmarks.fusion:measure_local",
            owners=known.owners,
            samples=known.samples,
            epochs=_EPOCHS,
        )
        local.append((name, known.owners, took["once"], took["every batch"]))
        passes = _EPOCHS * round(TRAINING_SHARE * known.samples)
        for graph, (seconds, megabytes) in known.took.items():
            context.console.print(f"{name}, {graph}")
            runs = [
                in_fresh_process(
                    "fedgraph.simulations.benchmarks.fusion:measure", owners=known.owners, samples=known.samples,
                    size=_EMBEDDING, epochs=_EPOCHS, graph=graph, per="sample", workers=options.workers,
                    device=options.device,
                )
                for _ in range(options.repeats)
            ]  # fmt: skip
            ours = median(run["wall"] for run in runs)
            memory = median(run["gpu"] or run["peak"] - run["before"] for run in runs) / MIB
            lines.append(
                (name, known.owners, graph, ours, seconds, seconds / ours, 1000 * ours / passes, memory, megabytes)
            )
    summary = NumberTable(
        "table4",
        "Five epochs of fusion training",
        (
            "data", "owners", "graph", "seconds", "published", "times faster", "ms per sample and epoch",
            "memory [MiB]", "published [MB]",
        ),
        tuple(lines),
    )  # fmt: skip
    owners = NumberTable(
        "local models",
        "The owners' own models, on the processor",
        ("data", "owners", "embeddings of all samples [s]", "again in every batch of five epochs [s]"),
        tuple(local),
    )
    text = (
        f"A graph is drawn for every sample of a batch of 100, as in the paper. Ours ran on `{options.device}`, the "
        f"published on an A100. Memory is {_MEMORY[options.device]}; how the published one was taken is not said. "
        "Embeddings are random, as long as the paper's. The released program runs the owners' own models again in "
        "every batch, which is in the published seconds; ours are of embeddings that are there."
    )
    return StudyPage(text, summary, (owners,))
