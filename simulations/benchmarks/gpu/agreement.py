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
_DRAWS = frozenset({"module"})


def agreement(device: str, folder: str, kind: str, clients: int, rounds: int) -> Found:
    """Models after a few rounds of SFL, by a CPU and by the device, and by the device once more."""
    on_cpu, first, second = (_models(Path(folder), kind, clients, rounds, each) for each in ("cpu", device, device))
    difference = relative_difference(first, on_cpu)
    same = torch.equal(first, second)
    row = {"difference": f"{difference:.1e}", "twice": "the same, bit for bit" if same else "NOT the same"}
    lines = [] if same else [f"Target: {kind}: two runs on {device} are the same bit for bit: missed."]
    if kind in _DRAWS:
        lines.append(f"{kind}: it draws random numbers in training, other ones on another device.")
    elif not difference <= LARGEST_DIFFERENCE:
        lines.append(f"{kind}: " + target_line("relative difference", difference, LARGEST_DIFFERENCE))
    return Found({f"{kind}, {rounds} rounds of {clients} clients": row}, lines, {"difference": difference})


def relative_difference(models: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the length of the difference of two vectors of parameters, relative to that of the second."""
    return float(torch.linalg.vector_norm(models - wanted) / torch.linalg.vector_norm(wanted))


def _models(folder: Path, kind: str, clients: int, rounds: int, device: str) -> torch.Tensor:
    """Run an experiment; return the models of all clients."""
    data, model = _MODELS[kind]
    tables = {
        "experiment": {"name": f"{kind}-{device}", "method": "sfl", "rounds": rounds},
        "data": _data(folder, data, clients),
        "model": model,
        "train": {"batch-size": 16, "local-steps": 4, "learning-rate": 0.02, "momentum": 0.9, "device": device},
        "graph": {"source": "complete"},
        "evaluation": {"splits": []},
        "output": {"report": False},
    }
    run = fedgraph.run(tables, out=folder / "agreement", nodes=1, progress=False)
    every = [run.models[name] for name in sorted(run.models)]
    return torch.cat([flattened(model) for model in every])


def _data(folder: Path, kind: str, clients: int) -> dict[str, Any]:
    if kind == "traffic":
        return {"set": "synthetic-traffic", "sensors": clients, "days": 1}
    if kind == "graphs":
        return {"set": "stochastic-blocks", "clients": clients}
    return made_up.images(folder, 28, 1, clients, 64)
