"""Put together the report of one run, or of several side by side, and write it as one HTML page."""

from __future__ import annotations

import gzip
import json
import logging
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined, Template

from fedgraph.graph import ClientGraph, spring_layout
from fedgraph.runs import attendance
from fedgraph.runs.comparison import Comparison, compare
from fedgraph.runs.finished import Run
from fedgraph.runs.reports.page import charts, tables
from fedgraph.runs.reports.page.sections import Shown, method_charts
from fedgraph.runs.reports.page.template import PAGE
from fedgraph.runs.reports.results import Results
from fedgraph.runs.reports.words import costs, mean_text, sentence
from fedgraph.support.files import write_atomically

log = logging.getLogger("fedgraph")

_PHASES = ("training", "evaluation")


def place_of_report(runs: Sequence[Run]) -> Path:
    """Return where the page about one run or about several lies: in the folder of the first."""
    return runs[0].path / ("report.html" if len(runs) == 1 else "comparison.html")


def leave_report(runs: Sequence[Run]) -> None:
    """Write the report of runs into the folder of the first, unless its experiment says ``report = false``.

    A report that cannot be made is a warning in the log: the results are there without it.
    """
    if not runs[0].experiment.output.report:
        return
    path = place_of_report(runs)
    try:
        report(runs, path)
    except Exception as error:
        log.warning("the report %s could not be made: %s", path, error, exc_info=True)


@dataclass(frozen=True)
class Block:
    """A part of a page: runs with the same data, side by side.

    Attributes
    ----------
    runs : Comparison
        One run or several.
    title, text : str
        Heading and introduction, of a page with several parts.
    command : str
        How the runs are made, of a page with several parts.
    facts : tuple of tuple of str
        What to look at first: rows of a table, words and a number or several.
    compared : mapping of str to float
        The comparison that matters: a number for each of several, which is drawn above the facts.
    unit : str
        Of these numbers.
    own : str
        Which of them is of what the part is about.
    shown : tuple of Shown
        Charts above those of the runs.
    """

    runs: Comparison
    title: str = ""
    text: str = ""
    command: str = ""
    facts: tuple[tuple[str, ...], ...] = ()
    compared: Mapping[str, float] = field(default_factory=dict)
    unit: str = "%"
    own: str = ""

    @property
    def numbers(self) -> list[tuple[str, str]]:
        """The compared numbers as text, with their unit, and with 2 decimals below 10, else 1."""
        return [
            (words, f"{value:.{2 if abs(value) < 10 else 1}f} {self.unit}") for words, value in self.compared.items()
        ]

    shown: tuple[Shown, ...] = ()


def report(runs: Run | str | Path | Sequence[Run | str | Path], path: str | Path | None = None) -> Path:
    """Write a page about a run, or one that compares several: one HTML file that needs nothing from elsewhere.

    Parameters
    ----------
    runs : Run, str or Path, or a sequence of these
        A finished run or its folder, or several with the same data.
    path : str or Path, optional
        The file; by default ``report.html`` in the run folder, or ``comparison.html`` in the first of several.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ExperimentError
        When the runs have different data.
    RunError
        When one of their files is damaged, a folder is no run folder, a run is not finished, or without runs.
    """
    compared = compare([runs] if isinstance(runs, Run | str | PathLike) else runs)
    names = dict.fromkeys(str(run.summary["experiment"]) for run in compared)
    title = f"{' / '.join(names)}: {', '.join(compared.labels)}"
    return write_page(title, "", [Block(compared)], place_of_report(compared) if path is None else Path(path))


def write_page(title: str, text: str, blocks: Sequence[Block], path: Path) -> Path:
    """Write a page of several parts; see :func:`report`."""
    figures: list[Mapping[str, Any]] = []
    parts = [_content(block, figures) for block in blocks]
    page = _template().render(title=title, text=text, blocks=parts, figures=figures, library=_library())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.encode())
    return path


@cache
def _template() -> Template:
    return Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(
        PAGE
    )


@cache
def _library() -> str:
    """Return Plotly's JavaScript, compressed and in base64: 2 MB in place of 5."""
    script = files("plotly").joinpath("package_data/plotly.min.js").read_bytes()
    return b64encode(gzip.compress(script, 9, mtime=0)).decode()


def _content(block: Block, figures: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the template shows of one part, and add its charts to ``figures``."""
    compared = block.runs
    runs, summaries, labels = compared.runs, compared.summaries, compared.labels
    results = Results(summaries)
    split, first = results.split, results.telling
    environments = [json.loads((run.path / "environment.json").read_text()) for run in runs]

    def place(figure: Any) -> int:
        """Keep a figure for the page, and return its number there."""
        figures.append(json.loads(figure.to_json()))
        return len(figures) - 1

    drawn = _graphs(compared, split, first) if first else []
    return {
        "title": block.title,
        "text": block.text,
        "command": block.command,
        "facts": block.facts,
        "sentence": sentence(summaries),
        "split": split,
        "labels": labels,
        "made": tables.made(labels, environments),
        "columns": tables.heads(results),
        "results": [(row, [tables.cell(values) for values in results.row(row)]) for row in results.overall],
        "features": tables.features(results),
        "first": place(charts.ranked(block.compared, dict(block.numbers), block.own)) if block.compared else None,
        "curves": [{"name": name, "chart": place(figure)} for name, figure in _curves(compared, split)],
        "telling": first,
        "strips": place(_strips(results, first)) if first else None,
        "clients": tables.clients(results, first),
        "many": max(each["clients"] for each in summaries) > 1,
        "graphs": [{**graph, "chart": place(graph["chart"])} for graph in drawn],
        "shown": [
            {"title": shown.title, "text": shown.text, "chart": place(shown.figure), "run": label}
            for label, charts_of in [("", block.shown), *zip(labels, map(_shown, runs), strict=True)]
            for shown in charts_of
        ],
        "costs": attendance.rows(summaries, split) | costs(summaries),
        "lost": bool(attendance.rows(summaries, split)),
        "absences": _absences(compared),
        "notes": _notes(labels, summaries),
        "runs": [
            {
                "label": label,
                "path": str(run.path),
                "toml": (run.path / "experiment.toml").read_text(encoding="utf-8"),
                "environment": environment,
            }
            for label, run, environment in zip(labels, runs, environments, strict=True)
        ],
    }


def _notes(labels: Sequence[str], summaries: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return each note once, with the runs that have it; without, where all do."""
    told: dict[str, list[str]] = {}
    for label, summary in zip(labels, summaries, strict=True):
        for note in summary.get("notes", ()):
            told.setdefault(note, []).append(label)
    return [("" if len(who) == len(labels) else ", ".join(who), note) for note, who in told.items()]


def _curves(compared: Comparison, split: str) -> list[tuple[str, Any]]:
    """Return a chart for each metric that was measured more than once: that of the shown split first."""
    histories: dict[tuple[str, str], dict[str, dict[int, Sequence[float]]]] = {}
    units: dict[str, str] = {}
    for label, run in zip(compared.labels, compared.runs, strict=True):
        for line in run.folder.lines():
            if line.get("restored"):
                continue
            if line["phase"] in _PHASES:
                name, series = line["split"], label
                found = {metric: list(values.values()) for metric, values in line["per_client"].items()}
            else:
                name, series = line["phase"], label
                if "learning_rate" in line:
                    series = f"{label}, learning rate {line['learning_rate']:g}"
                found = {key.replace("_", " "): [value] for key, value in line.items() if key.endswith("loss")}
            units[name] = "round" if line["phase"] in _PHASES else "epoch"
            for metric, values in found.items():
                histories.setdefault((name, metric), {}).setdefault(series, {})[line["round"]] = values
    order = {split: 0, "validation": 1, "train": 2}
    wanted = [key for key, runs in histories.items() if any(len(rounds) > 1 for rounds in runs.values())]
    wanted.sort(key=lambda key: order.get(key[0], 3))
    return [
        (
            f"{name}: {metric}",
            charts.curves(
                {
                    series: (list(rounds), np.array(list(rounds.values()), dtype=float))
                    for series, rounds in histories[name, metric].items()
                },
                units[name],
                metric,
            ),
        )
        for name, metric in wanted
    ]


def _strips(results: Results, metric: str) -> Any:
    """Return the chart of every client at the end, model by model."""
    return charts.strips(
        {
            column.name: (results.clients(metric, column), mean_text(values))
            for column, values in zip(results.columns, results.row(metric), strict=True)
            if values
        },
        f"{results.split} {metric}",
    )


def _graphs(compared: Comparison, split: str, metric: str | None) -> list[dict[str, Any]]:
    """Return the given client graph of the first run that has one, and what each run has learned."""
    found: list[tuple[str, ClientGraph, Run]] = []
    given = next((run for run in compared.runs if run.graph is not None), None)
    if given is not None and given.graph is not None:
        found.append(("The client graph", given.graph, given))
    for label, run in zip(compared.labels, compared.runs, strict=True):
        if (learned := run.learned_graph) is not None:
            found.append((f"Learned by {label}", learned, run))
    if not found:
        return []
    places, on_map = _places(found[0][1], found[0][2])
    drawn = []
    for title, graph, run in found:
        values = run.summary["per_client"].get(split, {}).get(metric, {})
        known = {name: value for name, value in values.items() if value is not None}
        figure, left_out = charts.client_graph(graph, places, known, str(metric), on_map)
        drawn.append({"title": title, "text": graph.describe(), "left_out": left_out, "chart": figure})
    return drawn


def _places(graph: ClientGraph, run: Run) -> tuple[dict[str, tuple[float, float]], bool]:
    """Return where each client is drawn, and whether that is a place on a map: else neighbours are drawn together."""
    known = run.folder.coordinates()
    if known and all(name in known for name in graph.names):
        # East is as long as north only at the equator.
        middle = np.cos(np.radians(np.mean([known[name][0] for name in graph.names])))
        return {name: (known[name][1] * middle, known[name][0]) for name in graph.names}, True
    return spring_layout(graph.without_self_loops().to_networkx().to_undirected()), False


def _shown(run: Run) -> list[Shown]:
    try:
        return method_charts(run)
    except Exception as error:  # the page is worth having without what a damaged file would have shown
        log.warning("a part of the report of %s is left out: %s", run.path, error)
        return []


def _absences(compared: Comparison) -> list[tuple[str, str, int, str]]:
    """Return run, client, number of rounds and last reason of all absent clients."""
    rows = []
    for label, run in zip(compared.labels, compared.runs, strict=True):
        for client, missed in run.absences.groupby("client", sort=True):
            rows.append((label, str(client), int(missed["round"].nunique()), str(missed["reason"].iloc[-1])))
    return rows
