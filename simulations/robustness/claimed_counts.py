"""One client of ten claims 2^40 examples: what the others' models lose, method by defence.

python -m fedgraph.simulations.robustness.claimed_counts --results simulations/robustness/results/claimed-counts.csv
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pandas as pd
import torch
import typer
from flwr.app import Message
from rich.progress import track

from fedgraph.clients import app
from fedgraph.runs import Run
from fedgraph.simulations.scripts import Out, Page, ResultsFile, Seeds
from fedgraph.simulations.scripts import run as run_script
from fedgraph.starting import running
from fedgraph.training import Cohort

CLAIMED = 2**40
ATTACKER = "client-00"
UPDATES = {"unchanged": 1.0, "zero": 0.0, "reversed": -1.0}
"""What the attacker sends in place of its update: so many times it."""
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "sfl": {"graph": {"source": "complete"}, "sfl": {"weighting": "examples"}},
    "pfedgraph": {},
}
DEFENCES: dict[str, dict[str, float]] = {"none": {}, "clip": {"clip": 2.0}, "krum": {"krum": 0.1}}
_TABLES: dict[str, Any] = {
    "data": {"set": "digits", "clients": 10, "partition": "iid"},
    "model": {"name": "mlp", "hidden": [32]},
    "train": {"optimizer": "sgd", "learning-rate": 0.1, "batch-size": 16, "local-epochs": 2, "compile": False},
}


def run(folder: Path, method: str, defence: dict[str, float], rounds: int = 30, nodes: int = 2, seed: int = 0) -> Run:
    """Run a method with a defence on ten equal parts of the digits, drawn by the seed."""
    tables = {
        **_TABLES,
        **METHODS[method],
        "experiment": {"name": "claims", "method": method, "rounds": rounds, "seed": seed},
        "data": _TABLES["data"] | {"partition-seed": seed},
        "defence": defence,
    }
    return running.run(tables, nodes=nodes, out=folder, progress=False)


def accuracy(found: Run) -> float:
    """Return the mean test accuracy of the honest clients."""
    return float(found.clients.drop(ATTACKER)["test/accuracy"].mean())


@contextmanager
def attack(factor: float) -> Iterator[None]:
    """Have the attacker claim its examples, and send ``factor`` times its update."""
    identity, train = app._identity, Cohort.train

    def claim(message: Message, node: Any) -> Any:
        found = identity(message, node)
        claims = torch.tensor([name == ATTACKER for name in found.clients])
        counts = found.num_examples["train"].masked_fill(claims, CLAIMED)
        return replace(found, num_examples={**found.num_examples, "train": counts})

    def falsify(self: Cohort, start: Any, *more: Any, **named: Any) -> Any:
        found = train(self, start, *more, **named)
        attacker = torch.tensor([name == ATTACKER for name in self.data.names])[:, None]
        other = start + factor * (found.parameters - start)
        return replace(found, parameters=torch.where(attacker, other, found.parameters))

    with patch.object(app, "_identity", claim), patch.object(Cohort, "train", falsify):
        yield


def main(out: Out = Path("runs/claimed-counts"), results: ResultsFile = None, seeds: Seeds = [0, 1, 2]) -> None:  # noqa: B006
    """Write the table of claims."""
    lines = []
    for method, name, seed in track([(m, d, s) for m in METHODS for d in DEFENCES for s in seeds]):
        with TemporaryDirectory() as folder:
            line = {"method": method, "defence": name, "seed": seed}
            line["no attacker"] = 100 * accuracy(run(Path(folder), method, DEFENCES[name], seed=seed))
            for update, factor in UPDATES.items():
                with attack(factor):
                    line[update] = 100 * accuracy(run(Path(folder), method, DEFENCES[name], seed=seed))
        lines.append(line)
    title = "One client of ten claims 2^40 examples"
    Page(title, "{accuracy}", {"accuracy": pd.DataFrame(lines)}, seeds).write(out, results)


if __name__ == "__main__":
    run_script(lambda: typer.run(main))
