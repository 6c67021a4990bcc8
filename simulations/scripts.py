"""What scripts share that are run once: their command line, and a page of tables whose numbers go to a result file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from pandas.api.types import is_bool_dtype, is_numeric_dtype
from rich.console import Console
from rich.markdown import Markdown

from fedgraph.reproduce import ResultLine, markdown_line, merge_into
from fedgraph.runs import environment
from fedgraph.support.catalogue import data_folder
from fedgraph.support.errors import FedgraphError
from fedgraph.support.files import write_atomically

DataDir = Annotated[Path, typer.Option(envvar="FEDGRAPH_DATA", help="Data folder.")]
DATA = data_folder(None)
Out = Annotated[Path, typer.Option(help="Folder for the page, its pictures, and its tables as CSV.")]
ResultsFile = Annotated[Path | None, typer.Option("--results", help="Merge the numbers into this result file.")]
Seeds = Annotated[list[int], typer.Option("--seed", help="May be given several times.")]


def run(command: Callable[[], object]) -> None:
    """Call a command line; errors raised on purpose are printed as their message."""
    try:
        command()
    except FedgraphError as error:
        Console(stderr=True).print(f"Error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(1)


@dataclass(frozen=True)
class Page:
    """What a script has found.

    Attributes
    ----------
    title : str
        Title of the page.
    text : str
        Markdown below the title, in which ``{name}`` stands for the table of that name.
    tables : mapping of str to DataFrame
        All numbers, by name; the first one is shown on the terminal too.
    seeds : sequence of int
        Seeds of the numbers of tables without a column ``seed`` or ``seeds``.
    figures : mapping of str to Figure
        Pictures, of which the text names the files: ``![What it shows](name.png)``.
    """

    title: str
    text: str
    tables: Mapping[str, pd.DataFrame]
    seeds: Sequence[int] = (0,)
    figures: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path, results: Path | None = None) -> None:
        """Write ``page.md``, pictures and tables to a folder, and the numbers to a result file; show the first table.

        Raises
        ------
        ExperimentError
            When there is such a file that is no result file, or it cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in self.figures.items():
            figure.savefig(folder / f"{name}.png")
        for name, table in self.tables.items():
            write_atomically(folder / f"{name}.csv", table.to_csv(index=False).encode())
        commit = environment().get("commit") or "unknown"
        text = self.text
        for name, table in self.tables.items():
            text = text.replace(f"{{{name}}}", markdown(table))
        seeds, command = ", ".join(map(str, self.seeds)), " ".join(sys.orig_argv[1:])
        made = f"Seeds: {seeds}. Made with commit {commit}: `python {command}`"
        write_atomically(folder / "page.md", f"# {self.title}\n\n{text.strip()}\n\n{made}\n".encode())
        if results is not None:
            lines = list(self.result_lines(f"commit {commit[:12]}"))
            merge_into(results, lines, [line.place for line in lines])
        console = Console()
        console.print(Markdown(markdown(next(iter(self.tables.values())))))
        for path in filter(None, (folder / "page.md", results)):
            console.print(str(path), markup=False, soft_wrap=True, highlight=False)

    def result_lines(self, source: str) -> Iterator[ResultLine]:
        """Yield the numbers as lines of a result file.

        A line of a table is a row, labelled by its texts; the table's name is the column, and a heading the metric.
        The columns ``seed`` (a number) and ``seeds`` (a text) say of which seeds a line is.
        """
        for name, table in self.tables.items():
            for entries in table.to_dict("records"):
                several, seed = entries.pop("seeds", " ".join(map(str, self.seeds))), entries.pop("seed", "")
                row = ", ".join(entry for entry in entries.values() if isinstance(entry, str))
                over = {"seed": str(seed), "seeds": "" if seed != "" else str(several), "source": source}
                for heading, entry in entries.items():
                    if isinstance(entry, int | float) and not isinstance(entry, bool) and isfinite(entry):
                        yield ResultLine(row, name, str(heading), value=f"{entry:.9g}", **over)


def markdown(table: pd.DataFrame) -> str:
    """Format a table as Markdown: numbers to the right, with four significant digits."""
    numeric = [is_numeric_dtype(kind) and not is_bool_dtype(kind) for kind in table.dtypes]
    lines = [list(map(str, table.columns)), ["---:" if each else "---" for each in numeric]]
    lines += [list(map(_rounded, row)) for row in table.itertuples(index=False, name=None)]
    return "\n".join(map(markdown_line, lines))


def _rounded(entry: Any) -> str:
    if pd.isna(entry):
        return "-"
    if isinstance(entry, bool):
        return "yes" if entry else "no"
    return f"{entry:.4g}" if isinstance(entry, float) else str(entry)
