"""``python -m fedgraph.simulations.benchmarks``: rounds, models, server, growth, memory, grids, apps, F3, IPA, GPUs."""

from __future__ import annotations

import typer

from fedgraph.simulations.benchmarks.alignment import alignment
from fedgraph.simulations.benchmarks.cohort import cohort
from fedgraph.simulations.benchmarks.deployment import deployment
from fedgraph.simulations.benchmarks.fusion import fusion
from fedgraph.simulations.benchmarks.fusion_loop import fusion_loop
from fedgraph.simulations.benchmarks.gpu.command import gpu
from fedgraph.simulations.benchmarks.graphical import graphical
from fedgraph.simulations.benchmarks.grids import grids
from fedgraph.simulations.benchmarks.kernels import kernels
from fedgraph.simulations.benchmarks.memory import memory
from fedgraph.simulations.benchmarks.models import models
from fedgraph.simulations.benchmarks.peers import peers
from fedgraph.simulations.benchmarks.rounds import rounds
from fedgraph.simulations.benchmarks.scale import scale
from fedgraph.simulations.benchmarks.server import server
from fedgraph.simulations.benchmarks.simulate import simulate
from fedgraph.simulations.scripts import run

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=__doc__)

_COMMANDS = (
    *(rounds, models, peers, cohort, server, scale, memory, grids, deployment),
    *(simulate, fusion, fusion_loop, alignment, graphical, kernels, gpu),
)
for command in _COMMANDS:
    app.command()(command)


if __name__ == "__main__":
    run(app)
