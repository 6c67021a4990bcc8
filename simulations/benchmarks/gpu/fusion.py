"""F3's fusion on the device, beside the times that were published for an A100."""

from __future__ import annotations

from fedgraph.simulations.benchmarks.fusion import PUBLISHED, measure
from fedgraph.simulations.benchmarks.gpu.found import Found
from fedgraph.simulations.benchmarks.measure import MIB, median

_EPOCHS, _SIZE = 5, 16


def fusion(
    device: str, folder: str, data: str, graph: str, per: str, repeats: int, samples: int | None = None,
    owners: int | None = None,
) -> Found:  # fmt: skip
    """Five epochs of F3's fusion on random embeddings of the shape of a data set of the paper's table 4.

    samples, owners : others than the paper's.
    """
    published = PUBLISHED[data]
    theirs, megabytes = published.took[graph]
    runs = [
        measure(owners or published.owners, samples or published.samples, _SIZE, _EPOCHS, graph, per, None, device)
        for _ in range(repeats)
    ]
    seconds = [run["wall"] for run in runs]
    row = {
        "seconds": seconds,
        "published, an A100, s": theirs,
        "published / ours": theirs / median(seconds),
        "MiB on the GPU": max(run["gpu"] for run in runs) / MIB,
        "published, MB": megabytes,
    }
    said = "Published times are with the owners' LSTMs, which run again in every batch there; ours is the fusion alone."
    return Found({f"{data}, {graph}, a graph per {per}": row}, [said], {"runs": runs})
