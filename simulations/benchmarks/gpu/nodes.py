"""Several nodes on one GPU: in one process, and on Ray, started as users start them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import fedgraph
from fedgraph.models import flattened
from fedgraph.simulations.benchmarks.gpu.agreement import LARGEST_DIFFERENCE, relative_difference
from fedgraph.simulations.benchmarks.gpu.found import Found
from fedgraph.simulations.benchmarks.gpu.training import week
from fedgraph.simulations.benchmarks.measure import median, target_line


def nodes(
    device: str, folder: str, grid: str, counts: Sequence[int], sensors: int | None, steps: int, rounds: int
) -> Found:
    """A run of FedAvg with all clients on some nodes of the device, beside the same run on one node of this process.

    grid : ``local``, or ``flower``: ``fedgraph run --grid flower``, where nodes on Ray have a share of the GPU each.
    """
    experiment = week(folder, device, sensors, rounds=rounds, **{"local-steps": steps, "batch-size": 64})
    tables = experiment.as_dict()
    tables["output"]["report"] = False
    wanted, seconds = _run(tables, Path(folder), "local", 1)
    found = Found({"in this process, 1 node": {"a round, ms": 1000 * seconds}})
    for count in counts:
        model, seconds = _run(tables, Path(folder), grid, count)
        difference = relative_difference(model, wanted)
        name = f"{'on Ray' if grid == 'flower' else 'in this process'}, {count} nodes"
        found.rows[name] = {"a round, ms": 1000 * seconds, "difference of the model": difference}
        if not difference <= LARGEST_DIFFERENCE:
            found.lines.append(f"{name}: " + target_line("relative difference", difference, LARGEST_DIFFERENCE))
    return found


def _run(tables: dict[str, Any], folder: Path, grid: str, count: int) -> tuple[torch.Tensor, float]:
    """Return the global model of a run, and the seconds of a round, without the first one."""
    run = fedgraph.run(tables, out=folder / "nodes", grid=grid, nodes=count, progress=False)
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    seconds = [float(line["seconds"]) for line in lines if line["phase"] == "training"]
    model = run.global_model
    assert model is not None
    return flattened(model), median(seconds[1:])
