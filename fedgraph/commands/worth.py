"""The command ``fedgraph worth``: does a client graph pay on this data?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedgraph.support.errors import ExperimentError
from fedgraph.support.terminal import GOES_ON, ended_by_hand, messages_for_people, seeds_given


def worth(
    experiment: Annotated[str, typer.Argument(help="TOML file; those that come along are found by name.")],
    seeds: Annotated[str, typer.Option(help="Seeds of every row, two at least.")] = "0,1,2",
    metric: Annotated[
        str | None, typer.Option(help="validation/...; by default what is monitored, or accuracy, or mae.")
    ] = None,
    rates: Annotated[
        str, typer.Option(help="Factors of the learning rate that every row is tried with; 1 tries nothing.")
    ] = "0.3,1,3",
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key of every run.")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that the clients are dealt out to.")] = 2,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that share the runs.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the runs and results.")] = Path("worth"),
    results: Annotated[Path | None, typer.Option(help="Merge the numbers into this result file.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Data folder, instead of FEDGRAPH_DATA.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No live display, only the results.")] = False,
) -> None:
    """Find out whether the client graph pays, and the method that uses it.

    Training alone, FedAvg, FedAvg with fine-tuning, the method, and the method over a permuted and over a complete
    graph are run with every seed and compared on validation data, with intervals; each has the learning rate that is
    best for it. The command can be stopped and given again: what is finished is not repeated.
    """
    from fedgraph.reproduce import merge_into
    from fedgraph.reproduce.worth import worth as carry_out

    console = Console()
    with messages_for_people(), ended_by_hand(console, GOES_ON):
        found = carry_out(
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
            merge_into(results, found.result_lines())
    console.print(found, soft_wrap=True)
    console.print(str(found.folder / "worth.html"), soft_wrap=True, highlight=False)


def _rates(text: str) -> list[float]:
    try:
        return [*map(float, text.split(","))]
    except ValueError:
        raise ExperimentError(f"--rates {text}: numbers with commas between them") from None
