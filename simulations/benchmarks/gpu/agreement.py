"""Whether a GPU computes what a CPU does, and the same twice: runs of every kind of model that comes along."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import fedgraph
from fedgraph.models import flattened
from fedgraph.simulations.benchmarks.gpu import made_up
from fedgraph.simulations.benchmarks.gpu.found import Found
from fedgraph.simulations.benchmarks.measure import target_line

LARGEST_DIFFERENCE = 1e-3
"""Between models computed on a CPU and on a GPU, or on one node and on several, relative to their length."""

_MODELS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("images", {"name": "mlp", "hidden": [32]}),
    "cnn": ("images", {"name": "cnn", "channels": [8, 16]}),
    "resnet9": ("images", {"name": "resnet9", "width": 8}),
    "module": ("images", {"name": "fedgraph.simulations.benchmarks.models:ConvolutionNet"}),
    "gru": ("traffic", {"name": "gru", "hidden": 16}),
    "lstm": ("traffic", {"name": "lstm", "hidden": 16}),
    "rnn": ("traffic", {"name": "rnn", "hidden": 16, "read-out": "steps"}),
    "gcn": ("graphs", {"name": "gcn", "hidden": 8}),
    "graphsage": ("graphs", {"name": "graphsage", "hidden": 8}),
    "gin": ("graphs", {"name": "gin", "hidden": 8}),
}
"""By kind of model, its data and its table. What a module draws in training, as dropout does, differs by device."""

KINDS = tuple(_MODELS)
_DRAWS, _CONVOLUTIONS = frozenset({"module"}), frozenset({"cnn", "resnet9"})

_USUAL_RATE, _RATES = 0.02, {"resnet9": 0.005}
"""Learning rates. At the usual one two runs of a ResNet9 on a CPU differ by 5e-3 where only the order of sums does."""

_DIFFERENCE, _ROUNDING = "difference", "rounding alone"


def agreement(device: str, folder: str, kind: str, clients: int, rounds: int) -> Found:
    """Models after a few rounds of SFL, by a CPU and by the device, and by the device once more.

    Rounding alone is how far another run on the CPU comes to that computes all clients in one operation as a GPU does,
    so that sums are in another order: 0 where a GPU computes clients one after the other too. It is not there where a
    model draws random numbers, which are others in that order.
    """

    def models(where: str, compiles: bool | str = "auto") -> torch.Tensor:
        return _models(Path(folder), kind, clients, rounds, where, compiles)

    first, second = models(device), models(device)
    differences, same = {}, torch.equal(first, second)
    lines = [] if same else [f"Target: {kind}: two runs on {device} are the same bit for bit: missed."]
    if kind in _DRAWS:
        lines.append(f"{kind}: it draws random numbers in training, other ones on another device.")
    else:
        on_cpu = models("cpu")
        # Convolutions are stacked on a CPU where they are compiled, which is left out; others without native code.
        with torch.compiler.set_stance("force_eager"):
            rounding = relative_difference(models("cpu", compiles=kind in _CONVOLUTIONS), on_cpu)
        differences = {_DIFFERENCE: relative_difference(first, on_cpu), _ROUNDING: rounding}
        if not differences[_DIFFERENCE] <= LARGEST_DIFFERENCE:
            lines.append(f"{kind}: " + target_line("relative difference", differences[_DIFFERENCE], LARGEST_DIFFERENCE))
    row = {"learning rate": str(_rate(kind)), **differences, "twice the same": same}
    lines.append(
        f"'{_ROUNDING}': two runs on the CPU, the second with its sums in another order, as a GPU has them. The "
        f"learning rate is lower where this would come to more than {LARGEST_DIFFERENCE} at {_USUAL_RATE}."
    )
    return Found({f"{kind}, {rounds} rounds of {clients} clients": row}, lines, dict(differences))


def _rate(kind: str) -> float:
    return _RATES.get(kind, _USUAL_RATE)


def relative_difference(models: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the length of the difference of two vectors of parameters, relative to that of the second."""
    return float(torch.linalg.vector_norm(models - wanted) / torch.linalg.vector_norm(wanted))


def _models(folder: Path, kind: str, clients: int, rounds: int, device: str, compiles: bool | str) -> torch.Tensor:
    """Run an experiment; return the models of all clients."""
    data, model = _MODELS[kind]
    tables = {
        "experiment": {"name": f"{kind}-{device}", "method": "sfl", "rounds": rounds},
        "data": _data(folder, data, clients),
        "model": model,
        "train": {"batch-size": 16, "local-steps": 4, "learning-rate": _rate(kind), "momentum": 0.9, "device": device,
                  "compile": compiles},
        "graph": {"source": "complete"},
        "evaluation": {"splits": []},
        "output": {"report": False},
    }  # fmt: skip
    run = fedgraph.run(tables, out=folder / "agreement", nodes=1, progress=False)
    every = [run.models[name] for name in sorted(run.models)]
    return torch.cat([flattened(model) for model in every])


def _data(folder: Path, kind: str, clients: int) -> dict[str, Any]:
    if kind == "traffic":
        return {"set": "synthetic-traffic", "sensors": clients, "days": 1}
    if kind == "graphs":
        return {"set": "stochastic-blocks", "clients": clients}
    return made_up.images(folder, 28, 1, clients, 64)
