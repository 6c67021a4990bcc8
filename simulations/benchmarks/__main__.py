"""``python -m simulations.benchmarks``: rounds, training, the server, growth, memory, grids, nodes, F3, IPA and NGM."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from fedgraph.support.errors import FedgraphError
from simulations.benchmarks.alignment import alignment
from simulations.benchmarks.cohort import cohort
from simulations.benchmarks.deployment import deployment
from simulations.benchmarks.fusion import fusion
from simulations.benchmarks.graphical import graphical
from simulations.benchmarks.grids import grids
from simulations.benchmarks.kernels import kernels
from simulations.benchmarks.memory import memory
from simulations.benchmarks.rounds import rounds
from simulations.benchmarks.scale import scale
from simulations.benchmarks.server import server

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=__doc__)

for command in (rounds, cohort, server, scale, memory, grids, deployment, fusion, alignment, graphical, kernels):
    app.command()(command)


def main() -> None:
    """Run a command; errors raised on purpose are printed as their message."""
    try:
        app()
    except FedgraphError as error:
        Console(stderr=True).print(f"Error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
