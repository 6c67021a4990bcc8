"""One experiment on the in-process grid, on Ray with a few nodes, and on Ray with a node per client."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedgraph.simulations.benchmarks.measure import machine_line


def grids(
    experiment: Annotated[str, typer.Argument(help="Experiment file.")] = "sfl/metr-la-week.toml",
    few: Annotated[int, typer.Option(help="Nodes of the first two rows.")] = 2,
    many: Annotated[int, typer.Option(help="Nodes of the last row.")] = 207,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key of the experiment.")] = None,
) -> None:
    """Seconds of one experiment on every grid, in one table.

    ``run`` is the time from the opening query to the last evaluation, ``command`` includes starting Python, and
    on Flower the SuperLink and Ray. The overrides, versions and cores are printed with it.
    """
    console = Console()
    rows = [("in-process", "local", few), ("Ray", "flower", few), ("Ray", "flower", many)]
    table = Table(title=f"{experiment} {' '.join(set_ or [])}".strip(), title_justify="left")
    for column in ("grid", "nodes", "clients", "run [s]", "command [s]", "round [s]", "ratio"):
        table.add_column(column, justify="right")
    first: float | None = None
    digests = set()
    for label, grid, nodes in rows:
        summary, whole = _measure(experiment, grid, nodes, set_ or [])
        first = first or summary["seconds"]
        digests.add(summary["weights_sha256"])
        table.add_row(
            label, str(nodes), str(summary["clients"]), f"{summary['seconds']:.1f}", f"{whole:.1f}",
            f"{summary['seconds'] / max(summary['rounds'], 1):.2f}", f"{summary['seconds'] / first:.2f}",
        )  # fmt: skip
    console.print(table)
    line = machine_line("threads as the experiment says")
    console.print(line, soft_wrap=True, highlight=False, markup=False)
    same = "the same on all rows" if len(digests) == 1 else "not the same on all rows"
    console.print(f"Final weights are {same} (SHA-256).")


def _measure(experiment: str, grid: str, nodes: int, overrides: list[str]) -> tuple[dict[str, Any], float]:
    with tempfile.TemporaryDirectory(prefix="fedgraph-benchmark-") as scratch:
        result = Path(scratch) / "summary.json"
        command = [
            sys.executable, "-c", "from fedgraph.commands.cli import app; app()", "run", experiment, "--grid", grid,
            "--nodes", str(nodes), "--out", scratch, "--json", str(result),
        ]  # fmt: skip
        for override in overrides:
            command += ["--set", override]
        began = time.monotonic()
        subprocess.run(command, check=True)
        whole = time.monotonic() - began
        summary: dict[str, Any]
        (summary,) = json.loads(result.read_text())
        return summary, whole
