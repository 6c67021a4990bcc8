"""Comparison of finished runs: metrics as data frames, and a table with a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from fedgraph.runs.finished import Run, load_run
from fedgraph.runs.reports.plot import picture_of_runs
from fedgraph.runs.reports.results import Results
from fedgraph.runs.reports.tables import as_html, results_table
from fedgraph.runs.reports.words import labels, sentence
from fedgraph.support.errors import ExperimentError, RunError, if_any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Comparison(Sequence[Run]):
    """Finished runs with the same data, side by side. Printed on a rich console, it is a table and a sentence.

    Parameters
    ----------
    runs : sequence of Run
        The runs.

    Attributes
    ----------
    labels : list of str
        Name of each run; see :func:`fedgraph.runs.reports.words.labels`.

    Raises
    ------
    ExperimentError
        When a run differs from the first in its table ``[data]``.
    RunError
        When there are no runs.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        if not runs:
            raise RunError("there are no runs to compare")
        self.runs = list(runs)
        first = self.runs[0]
        for run in self.runs[1:]:
            where = f"cannot be compared with {first.folder.name}"
            run.folder.check_same_data(first.folder.data, where, owner=first.folder.name)
            changed = [key for key in run.folder.changed_files(first.folder.contents) if key.startswith("data.")]
            if changed:
                raise ExperimentError(
                    f"{where}: the file of {' and '.join(changed)} has changed between {first.folder.name} and "
                    f"{run.folder.name}; run both on the same file"
                )
        self.labels = labels(
            [run.method for run in self.runs],
            [run.folder.tables for run in self.runs],
            [run.folder.code for run in self.runs],
        )

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, index: Any) -> Any:
        return self.runs[index]

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    @property
    def summaries(self) -> list[dict[str, Any]]:
        """Content of each ``summary.json``, with the label in place of the method."""
        return [{**run.summary, "method": label} for label, run in zip(self.labels, self.runs, strict=True)]

    @property
    def results(self) -> Results:
        """The table of results behind every view of the runs."""
        return Results(self.summaries)

    def as_json(self) -> list[dict[str, Any]]:
        """Return the content of each ``summary.json``, and the run's results in the table as ``results``."""
        results = self.results
        return [{**run.summary, "results": results.records(place)} for place, run in enumerate(self.runs)]

    @property
    def metrics(self) -> pd.DataFrame:
        """Final metrics, one row per ``<split>/<metric>``, and columns ``mean`` and ``std`` for each run."""
        return self.results.to_pandas()

    def clients(self, metric: str) -> pd.DataFrame:
        """Return the final value of ``<split>/<metric>`` for each client: a row per client, a column per run.

        Raises
        ------
        RunError
            When no run has measured it.
        """
        import pandas as pd

        columns = {
            label: run.clients[metric]
            for label, run in zip(self.labels, self.runs, strict=True)
            if metric in run.clients
        }
        if not columns:
            known = ", ".join(self.metrics.index)
            raise RunError(f"none of the runs has measured '{metric}'{if_any('; measured: ', known)}")
        return pd.DataFrame(columns)

    def plot(self) -> Figure:
        """Draw the client graph and the learning curves; for runs of few rounds, the final value of every client.

        Returns
        -------
        matplotlib.figure.Figure
            A notebook shows it; ``savefig`` writes it.

        Raises
        ------
        RunError
            When a run has measured nothing.
        """
        return picture_of_runs([run.folder for run in self.runs], self.summaries)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        summaries = self.summaries
        yield results_table(summaries)
        yield Text(sentence(summaries))

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self.labels)}>"

    def _repr_html_(self) -> str:
        return as_html(self.summaries)


def compare(runs: Sequence[Run | str | Path], trust: bool = False) -> Comparison:
    """Compare finished runs with the same data.

    Parameters
    ----------
    runs : sequence of Run, str or Path
        Runs or their folders.
    trust : bool
        Whether code in the folders that the runs name is imported, see :meth:`RunFolder.open`.

    Returns
    -------
    Comparison
        Its ``metrics`` and ``clients`` are data frames; :func:`fedgraph.report` writes a page about it.

    Raises
    ------
    RunError
        When ``runs`` is not a sequence, a folder is not a run folder, or a run is not finished.
    ExperimentError
        When a run has other data than the first one.
    """
    # A string would be iterated letter by letter.
    if isinstance(runs, str | PathLike) or not isinstance(runs, Iterable):
        raise RunError(f"compare expects a list of runs or run folders, such as [run, other], got {runs!r}")
    return Comparison([run if isinstance(run, Run) else load_run(run, trust) for run in runs])
