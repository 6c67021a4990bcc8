"""``python -m simulations.benchmarks grids``: seconds of one experiment on every grid."""

from __future__ import annotations

import typer

from simulations.benchmarks.grids import grids

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)


@app.callback()
def _main() -> None:
    """Measure speed."""


app.command()(grids)

if __name__ == "__main__":
    app()
