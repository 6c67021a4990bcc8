"""The command ``fedgraph worth``: whether a client graph improves results on this data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedgraph.support.errors import ExperimentError
from fedgraph.support.terminal import GOES_ON, ended_by_hand, messages_for_people, seeds_given


def worth(
    experiment: Annotated[str, typer.Argument(help="TOML file, or the name of an included one.")],
    seeds: Annotated[str, typer.Option(help="Seeds of every row, at least two.")] = "0,1,2",
    metric: Annotated[
        str | None, typer.Option(help="validation/...; by default the monitored metric, or accuracy, or mae.")
    ] = None,
    rates: Annotated[
        str, typer.Option(help="Factors of the learning rate to try for every row; 1 for no tuning.")
    ] = "0.3,1,3",
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key of every run.")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes.")] = 2,
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the runs and results.")] = Path("worth"),
    results: Annotated[Path | None, typer.Option(help="Merge the numbers into this result file.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Data folder, instead of FEDGRAPH_DATA.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No live display, only the results.")] = False,
) -> None:
    """Find out whether the client graph, and the method that uses it, improve results.

    Training alone, FedAvg, FedAvg with fine-tuning, the method, and the method over a permuted and over a complete
    graph are run with every seed and their own best learning rate, and compared on validation data, with intervals.
    The command can be stopped and repeated: finished runs are not run again.
    """
    from fedgraph.reproduce import merge_into
    from fedgraph.reproduce.worth import worth as carry_out

    console = Console()
    with messages_for_people(), ended_by_hand(console, GOES_ON):
        comparison = carry_out(
            experiment,
            set=set_ or [],
            seeds=seeds_given(seeds),
            metric=metric,
            rates=_rates(rates),
            nodes=nodes,
            jobs=jobs,
            data_dir=data_dir,
            out=out,
            progress=not quiet,
        )
        if results is not None:
            merge_into(results, comparison.result_lines())
    console.print(comparison, soft_wrap=True)
    console.print(str(comparison.folder / "worth.html"), soft_wrap=True, highlight=False)


def _rates(text: str) -> list[float]:
    try:
        return [*map(float, text.split(","))]
    except ValueError:
        raise ExperimentError(f"--rates {text}: must be numbers separated by commas") from None
