"""The command ``fedgraph reproduce``: published tables and figures again, from our runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A table, e.g. sfl-table1, or a file; none: list all.")] = None,
    profile: Annotated[str, typer.Option(help="small: for a laptop; full: the paper's sizes, for a GPU.")] = "small",
    rows: Annotated[str | None, typer.Option(help='Only these rows, by label: "FedAvg,SFL".')] = None,
    columns: Annotated[str | None, typer.Option(help="Only these columns, by key: metr-la,pems-bay.")] = None,
    seeds: Annotated[str | None, typer.Option(help="These seeds in place of the table's: 0,1.")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that the clients are dealt out to.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder for the runs of all tables, and for the tables.")] = Path(
        "reproductions"
    ),
    data_dir: Annotated[Path | None, typer.Option(help="Data folder, instead of FEDGRAPH_DATA.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key of every experiment.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List rows and columns and what is done; run nothing.")] = False,
    results_dir: Annotated[
        Path | None, typer.Option("--results", help="Merge what was measured, by seed, into a result file here.")
    ] = None,
    keep_models: Annotated[bool, typer.Option(help="Leave the final models in the run folders.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No live display, only the results.")] = False,
) -> None:
    """Make a table of a paper again, beside its numbers.

    Each cell is run once. Without a table, all are listed.

    The command can be stopped and given again: finished runs are not repeated, others continue from their last
    checkpoint. Several processes may share one --out. `fedgraph keys` explains the files of tables.
    """
    from fedgraph.reproduce import reproduce as carry_out

    carry_out(
        name,
        profile=profile,
        rows=rows,
        columns=columns,
        seeds=seeds,
        nodes=nodes,
        out=out,
        data_dir=data_dir,
        overrides=set_ or [],
        only_list=list_,
        results_dir=results_dir,
        keep_models=keep_models,
        quiet=quiet,
    )
