"""The parts of the benchmark in their order, the cheapest and most telling first: data alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedgraph.simulations.benchmarks.gpu.agreement import KINDS
from fedgraph.simulations.benchmarks.models import CASES


@dataclass(frozen=True)
class Part:
    """A part that is measured and written by itself.

    title : of its table.
    work  : ``module:function`` of this package.
    limit : seconds after which it is ended. A part begins where a fourth of them is left of the budget.
    sizes : its arguments. tiny : those of a rehearsal that differ.
    """

    title: str
    function: str
    limit: int
    sizes: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def work(self) -> str:
        """The function by its dotted path."""
        return f"{__package__}.{self.function}"

    @property
    def tiny(self) -> Mapping[str, Any]:
        """The arguments of a rehearsal."""
        return {**self.sizes, **self.changes}


_ROUND = {"sensors": None, "steps": 10, "batch_size": 64, "measured": 12}
_TINY_ROUND = {"sensors": 3, "steps": 2, "batch_size": 8, "measured": 1}
_TINY_MODELS: Mapping[str, Mapping[str, object]] = {
    "mlp": {"hidden": [4]}, "mlp-small": {"hidden": [2]}, "gru": {"hidden": 3}, "lstm": {"hidden": 2},
    "cnn": {"channels": [2]}, "cnn-wide": {"channels": [2, 2]}, "resnet9": {"width": 2},
}  # fmt: skip
_FEW, _MANY = 100, 1000


def _agreement() -> Iterator[tuple[str, Part]]:
    for kind in KINDS:
        sizes, tiny = {"kind": kind, "clients": 6, "rounds": 5}, {"clients": 2, "rounds": 2}
        title = f"CPU and GPU, and the GPU twice: {kind}"
        yield f"agreement/{kind}", Part(title, "agreement:agreement", 40, sizes, tiny)


def _models(chosen: int) -> Iterator[tuple[str, Part]]:
    for name, case in CASES.items():
        if chosen in case.clients and name != "resnet9":
            sizes = {"case": name, "clients": chosen, "rounds": 13, "repeats": 3 if chosen <= _FEW else 2}
            tiny = {"clients": min(chosen, 3), "rounds": 1, "repeats": 1, "table": _TINY_MODELS.get(name)}
            title = f"One round of FedAvg, three minibatches of 32: {case.title}, {chosen:,} clients"
            limit = 60 if chosen <= _FEW else 150
            yield f"models/{name}/{chosen}", Part(title, "training:model", limit, sizes, tiny)


def _resnet9() -> Iterator[tuple[str, Part]]:
    for block in (None, 10):
        sizes = {"case": "resnet9", "clients": 100, "rounds": 1, "repeats": 1, "block": block, "images": 500}
        tiny = {"clients": 2, "table": _TINY_MODELS["resnet9"], "images": 90}
        title = "An epoch of 500 images by 100 ResNet9" + (f", {block} at once" if block else "")
        yield f"resnet9/{block or 'whole'}", Part(title, "training:model", 90, sizes, tiny)


def _growth(*chosen: int) -> Iterator[tuple[str, Part]]:
    for clients in chosen:
        sizes = {"clients": clients, "steps": 10, "batch_size": 64, "repeats": 3 if clients <= _MANY else 1}
        tiny = {"clients": max(2, clients // _MANY), "steps": 1, "batch_size": 8, "repeats": 1}
        yield f"growth/{clients}", Part(f"{clients:,} GRUs of 64 units, 10 steps", "training:growth", 60, sizes, tiny)


def _fusion(data: str) -> Iterator[tuple[str, Part]]:
    for graph in ("icdf", "gumbel"):
        for per in ("sample", "batch"):
            sizes = {"data": data, "graph": graph, "per": per, "repeats": 3}
            title = f"Five epochs of F3's fusion as on {data}: {graph}, a graph per {per}"
            tiny = {"samples": 20, "owners": 3, "repeats": 1}
            yield f"fusion/{data}/{graph}-{per}", Part(title, "fusion:fusion", 60, sizes, tiny)


def _in_order() -> Iterator[tuple[str, Part]]:
    yield "machine", Part(
        "The machine", "machine:facts", 40,
        {"size": 8192, "copied": 1 << 28, "repeats": 10}, {"size": 64, "copied": 1 << 12, "repeats": 2},
    )  # fmt: skip
    yield from _agreement()
    yield "gru", Part(
        "A round of 207 GRUs of 64 units, 10 steps of 64 examples", "training:gru", 90,
        {**_ROUND, "repeats": 3}, {**_TINY_ROUND, "repeats": 1},
    )  # fmt: skip
    yield "tests", Part("Tests that need a GPU", "machine:suite", 90)
    yield from _growth(10, 100, 1000)
    yield "nodes/process", Part(
        "Several nodes in one process", "nodes:nodes", 60,
        {"grid": "local", "counts": [2, 4, 8], "sensors": None, "steps": 10, "rounds": 7},
        {"counts": [2], "sensors": 3, "steps": 1, "rounds": 2},
    )  # fmt: skip
    yield from _fusion("METR-LA")
    yield from _models(_FEW)
    yield from _resnet9()
    yield from _fusion("PEMS-BAY")
    yield "nodes/ray", Part(
        "Several nodes on Ray, which share the GPU", "nodes:nodes", 150,
        {"grid": "flower", "counts": [4], "sensors": None, "steps": 10, "rounds": 7},
        {"counts": [2], "sensors": 3, "steps": 1, "rounds": 2},
    )  # fmt: skip
    yield (
        "flower",
        Part(
            "A round of 207 GRUs, beside plain Flower", "training:flower", 180, {**_ROUND, "measured": 2}, _TINY_ROUND
        ),
    )
    yield "resnet9/flower", Part(
        "An epoch of 500 images by 100 ResNet9, beside plain Flower", "training:images_by_flower", 240,
        {"case": "resnet9", "clients": 100, "images": 500, "measured": 1}, {"clients": 2, "images": 33},
    )  # fmt: skip
    yield from _models(10)
    yield from _models(_MANY)
    yield from _growth(10_000)


PARTS: Mapping[str, Part] = dict(_in_order())
"""By name."""
