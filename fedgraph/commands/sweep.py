"""The command ``fedgraph sweep``: tune settings on validation data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def sweep(
    experiment: Annotated[str, typer.Argument(help="TOML file, or the name of an included one.")],
    over: Annotated[
        list[str], typer.Option(help="A key to vary: sfl.alpha=0,0.3,1 or train.learning-rate=0.01:0.3:log")
    ],
    trials: Annotated[
        int | None, typer.Option(min=1, help="Number of trials; by default all combinations of lists, 20 with a range.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds of each trial, to compare means: 0,1,2.")] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Criterion, validation/...; by default the monitored metric, or loss, or mae."),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="End trials that are worse than the median of earlier ones in that round.")
    ] = False,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key of every trial.")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder for the folders of sweeps.")] = Path("sweeps"),
    data_dir: Annotated[Path | None, typer.Option(help="Data folder, instead of FEDGRAPH_DATA.")] = None,
    keep_models: Annotated[bool, typer.Option(help="Keep the final models in the run folders.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No live display, only the results.")] = False,
) -> None:
    """Find the best settings of an experiment on validation data.

    Only the chosen settings are evaluated on test data. Needs Optuna. The command can be stopped and repeated, also
    with more --trials: finished runs are not run again. The folder of the sweep has the trials (sweep.csv, sweep.png),
    their runs, and the experiment with the chosen settings (best.toml).
    """
    from fedgraph.reproduce.sweeps import sweep as carry_out

    carry_out(
        experiment,
        over=over,
        trials=trials,
        seeds=seeds,
        metric=metric,
        prune=prune,
        overrides=set_ or [],
        nodes=nodes,
        out=out,
        data_dir=data_dir,
        keep_models=keep_models,
        quiet=quiet,
    )
