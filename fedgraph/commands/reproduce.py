"""The command ``fedgraph reproduce``: reproduce published tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A table, e.g. sfl-table1, or a file; by default list all.")
    ] = None,
    profile: Annotated[str, typer.Option(help="small: for a laptop; full: the paper's sizes, for a GPU.")] = "small",
    rows: Annotated[str | None, typer.Option(help='Only these rows, by label: "FedAvg,SFL".')] = None,
    columns: Annotated[str | None, typer.Option(help="Only these columns, by key: metr-la,pems-bay.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, instead of the table's: 0,1.")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder for tables and their runs.")] = Path("reproductions"),
    data_dir: Annotated[Path | None, typer.Option(help="Data folder, instead of FEDGRAPH_DATA.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key of every experiment.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List rows, columns and finished runs; run nothing.")] = False,
    results_dir: Annotated[
        Path | None, typer.Option("--results", help="Merge the results, by seed, into a result file in this folder.")
    ] = None,
    keep_models: Annotated[bool, typer.Option(help="Keep the final models in the run folders.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No live display, only the results.")] = False,
) -> None:
    """Reproduce a table of a paper, and show it with the published values.

    Each cell is run once. Without a table, all are listed.

    The command can be stopped and repeated: finished runs are not run again, others continue from their last
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
