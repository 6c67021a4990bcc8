"""The tables of a page: results, features, clients, costs and absences."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgraph.runs.finished import Run
from fedgraph.runs.reports.results import Results
from fedgraph.runs.reports.words import costs, lost_clients, mean_text, range_text, shown_number, spread_text

_MOST_ROWS = 3000


@dataclass(frozen=True)
class PageTable:
    """A table of a page.

    Attributes
    ----------
    heads : sequence of str
        Headings. In headings and cells, lines after the first are small.
    rows : sequence of sequence of str
        The cells.
    title, text, below : str
        Heading, and texts above and below the table.
    groups : sequence of pair
        Headings that span several columns, each with their number.
    sortable : bool
        Whether a click on a heading sorts the rows.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    text: str = ""
    below: str = ""
    groups: Sequence[tuple[str, int]] = ()
    sortable: bool = False


def results_of(results: Results) -> PageTable:
    """Return the table of results; worst and best clients are columns for one model, else a line below the mean."""
    title = f"Results on {results.split} data"
    if len(results.columns) == 1:
        (column,) = results.columns
        cells = {row: results.cell(row, column) or {} for row in results.overall}
        rows = [[row, spread_text(of), *(shown_number(of.get(end)) for end in ("worst5", "best5"))]
                for row, of in cells.items()]  # fmt: skip
        remark = "".join(f" {line}" for line in results.heads[0].splitlines()[1:])
        below = "Mean and standard deviation over clients, and the means of the worst and of the best 5 % of them."
        return PageTable(("metric", "mean ± std", "worst 5 %", "best 5 %"), rows, title, below=f"{below}{remark}")
    rows = [[row, *(_lines(spread_text(of), range_text(of)) for of in results.row(row))] for row in results.overall]
    below = "Mean and standard deviation over clients; below, the means of the worst and of the best 5 % of them."
    return PageTable(("metric", *results.heads), rows, title, below=below)


def features_of(results: Results) -> PageTable:
    """Return the table of features: a row per feature, a column per measure, a line per model."""
    measures = list(dict.fromkeys(measure for _, measure in results.features.values()))
    cells: dict[str, dict[str, str]] = {}
    for row, (feature, measure) in results.features.items():
        cells.setdefault(feature, {})[measure] = "\n".join(map(mean_text, results.row(row)))
    rows = [[name, *(of.get(measure, "") for measure in measures)] for name, of in cells.items()]
    names = ", ".join(column.name for column in results.columns)
    below = f"Means over clients{f', from above: {names}' if len(results.columns) > 1 else ''}."
    return PageTable(("feature", *measures), rows, "Feature by feature", below=below, sortable=True)


def clients_of(results: Results) -> PageTable:
    """Return the table of clients, a column per model: every metric of one run, or one metric of several."""
    one = len(results.summaries) == 1
    wanted = results.overall if one else [results.telling] if results.telling else []
    columns = [(row, column, results.clients(row, column)) for row in wanted for column in results.columns]
    columns = [each for each in columns if each[2]]
    groups = results.summaries[0].get("groups", {})
    every = [values for *_, values in columns]
    for summary in results.summaries:
        every += summary["per_client"].get(results.split, {}).values()
    names = list(dict.fromkeys(name for values in every for name in values)) if columns else []
    rows = [
        [name, *([groups.get(name, "")] if groups else []), *(shown_number(of.get(name)) for *_, of in columns)]
        for name in names[:_MOST_ROWS]
    ]
    first = ["client", *(["group"] if groups else [])]
    models = len(results.columns) > 1
    counts = Counter(row for row, *_ in columns)
    more = len(names) - len(rows)
    return PageTable(
        [*first, *(column.name if models else row for row, column, _ in columns)],
        rows, "Every client",
        f"{'' if one else f'{results.telling} of each client. '}Click a heading to sort."
        f"{f' {more} more clients are in summary.json.' if more else ''}",
        groups=[("", len(first)), *counts.items()] if models and len(counts) > 1 else (), sortable=True,
    )  # fmt: skip


def costs_of(results: Results) -> PageTable:
    """Return the table of traffic, time and absent clients."""
    lost = lost_clients(results.summaries, results.split)
    rows = [[label, *of] for label, of in (lost | costs(results.summaries)).items()]
    names = [str(summary["method"]) for summary in results.summaries]
    return PageTable(["", *names], rows, "Lost clients, traffic and time" if lost else "Traffic and time")


def absences_of(runs: Mapping[str, Run]) -> PageTable:
    """Return the table of absent clients by run: number of rounds, and the last reason."""
    rows = [
        [str(client), *([label] if len(runs) > 1 else []), str(missed["round"].nunique()), missed["reason"].iloc[-1]]
        for label, run in runs.items()
        for client, missed in run.absences.groupby("client", sort=True)
    ]
    names = ["client", *(["run"] if len(runs) > 1 else []), "rounds", "last reason"]
    return PageTable(names, rows, "Absent clients", "" if rows else "Every client answered every time.")


def made(labels: Sequence[str], environments: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Return labels, time and command of runs; without labels if one command made all."""
    by_command: dict[tuple[str, str], list[str]] = {}
    for label, environment in zip(labels, environments, strict=True):
        began = str(environment.get("began", ""))[:16].replace("T", " ")
        by_command.setdefault((began, _typed(environment.get("command", ()))), []).append(label)
    if len({command for _, command in by_command}) == 1:
        # Runs of one command begin one after the other.
        return [("", *next(iter(by_command)))]
    return [(", ".join(who), *made) for made, who in by_command.items()]


def _typed(arguments: Sequence[str]) -> str:
    """Return a command as it was typed; empty for other programs, such as the kernel of a notebook."""
    program, *rest = arguments or [""]
    path = Path(program)
    if path.name == "fedgraph" or path.parts[-2:] == ("fedgraph", "__main__.py"):
        return shlex.join(["fedgraph", *rest])
    is_script = path.suffix == ".py" and not path.name.startswith(("ipykernel", "__main__"))
    return shlex.join(["python", path.name, *rest]) if is_script else ""


def _lines(*lines: str) -> str:
    return "\n".join(filter(None, lines))
