"""The command ``fedgraph peers``: differences between the final models of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedgraph.support.terminal import messages_for_people

_IN_WORDS = {
    "l1": "L1 distance of parameters",
    "l2": "L2 distance of parameters",
    "hamming": "predicted differently",
    "both-right": "both right",
    "both-wrong": "both wrong",
}


def peers(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run with [evaluation] compare-peers.")],
) -> None:
    """Show how far the final models of a run differ.

    Prints means over pairs of peers. The report of the run (report.html) has a heat map of all pairs.
    """
    from fedgraph.runs import RunFolder
    from fedgraph.runs.reports import FILE, PeerComparison

    console = Console()
    with messages_for_people():
        folder = RunFolder.open(run)
        folder.summary()  # an error for a run that is not finished
        compared = PeerComparison.read(folder.path / FILE)
        table = Table(title=f"{len(compared.names)} peers, {compared.examples:,} test examples", title_justify="left")
        table.add_column("of two peers")
        for heading in ("mean", "least", "most"):
            table.add_column(heading, justify="right")
        for measure, words in _IN_WORDS.items():
            every = compared.of_pairs(measure)
            numbers = (compared.mean(measure), every.min().item(), every.max().item())
            table.add_row(words, *(f"{number:,.5g}" for number in numbers))
    console.print(table)
