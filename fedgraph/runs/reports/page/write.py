"""Writing of reports: one HTML page about one run, or several side by side."""

from __future__ import annotations

import gzip
import json
import logging
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from fedgraph.runs.comparison import Comparison, compare
from fedgraph.runs.finished import Run
from fedgraph.runs.reports.charts import AnyChart, Chart, client_graphs, ends, learning_curves, ranked
from fedgraph.runs.reports.page import tables
from fedgraph.runs.reports.page.figures import figure
from fedgraph.runs.reports.page.sections import method_charts
from fedgraph.runs.reports.page.template import PAGE
from fedgraph.runs.reports.words import sentence
from fedgraph.support.files import write_atomically

log = logging.getLogger("fedgraph")


def place_of_report(runs: Sequence[Run]) -> Path:
    """Return the path of the report, in the folder of the first run."""
    return runs[0].path / ("report.html" if len(runs) == 1 else "comparison.html")


def leave_report(runs: Sequence[Run]) -> None:
    """Write the report into the folder of the first run, unless its experiment has ``report = false``.

    A failure is only logged: the results do not depend on the report.
    """
    if not runs[0].experiment.output.report:
        return
    path = place_of_report(runs)
    try:
        report(runs, path)
    except Exception as error:
        log.warning("the report %s could not be written: %s", path, error, exc_info=True)


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
        Command that makes the runs, of a page with several parts.
    facts : tuple of tuple of str
        Key results: rows of a table, text followed by numbers.
    compared : mapping of str to float
        Key comparison: numbers by label, drawn above the facts.
    unit : str
        Unit of these numbers.
    own : str
        Label to highlight among them.
    shown : tuple of Chart
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
    shown: tuple[AnyChart, ...] = ()

    @property
    def numbers(self) -> list[tuple[str, str]]:
        """The compared numbers as text with unit, to 2 decimals below 10, else 1."""
        return [
            (words, f"{value:.{2 if abs(value) < 10 else 1}f} {self.unit}") for words, value in self.compared.items()
        ]


def report(
    runs: Run | str | Path | Sequence[Run | str | Path], path: str | Path | None = None, trust: bool = False
) -> Path:
    """Write a self-contained HTML page about a run, or comparing several.

    Parameters
    ----------
    runs : Run, str or Path, or a sequence of these
        A finished run or its folder, or several with the same data.
    path : str or Path, optional
        The file; by default ``report.html`` in the run folder, or ``comparison.html`` in the first of several.
    trust : bool
        Whether code in the folders that the runs name is imported, see :meth:`fedgraph.runs.RunFolder.open`.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ExperimentError
        When the runs have different data.
    RunError
        When a folder is not a run folder, a file is damaged, a run is not finished, or there are no runs.
    """
    compared = compare([runs] if isinstance(runs, Run | str | PathLike) else runs, trust)
    names = dict.fromkeys(str(run.summary["experiment"]) for run in compared)
    title = f"{' / '.join(names)}: {', '.join(compared.labels)}"
    return write_page(title, "", [Block(compared)], place_of_report(compared) if path is None else Path(path))


def write_page(title: str, text: str, blocks: Sequence[Block], path: Path) -> Path:
    """Write a page of several parts; see :func:`report`."""
    figures: list[Mapping[str, Any]] = []
    parts = [_content(block, figures) for block in blocks]
    page = _template().render(
        title=title, text=text, blocks=parts, figures=figures, library=_library(), policy=_policy()
    )
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
    return b64encode(gzip.compress(_plotly(), 9, mtime=0)).decode()


def _plotly() -> bytes:
    return files("plotly").joinpath("package_data/plotly.min.js").read_bytes()


@cache
def _policy() -> str:
    """Return what a browser lets the page do: run its own script and Plotly, by hash, and load nothing.

    Plotly writes styles.
    """
    own = PAGE.rpartition("<script>")[2].partition("</script>")[0].encode()
    hashes = " ".join(f"'sha256-{b64encode(sha256(script).digest()).decode()}'" for script in (own, _plotly()))
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )


def _content(block: Block, figures: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the content of one part for the template, and add its charts to ``figures``."""
    compared = block.runs
    results, first = compared.results, compared.results.telling
    runs = dict(zip(compared.labels, compared.runs, strict=True))
    folders = {label: run.folder for label, run in runs.items()}
    environments = [run.folder.environment for run in compared]

    def placed(*charts: AnyChart, of: str = "") -> list[dict[str, Any]]:
        """Add charts to the page, and return heading, text and index of each."""
        figures.extend(json.loads(figure(chart).to_json()) for chart in charts)
        titles = [f"{chart.title}{f' ({of})' if of else ''}" for chart in charts]
        return [
            {"title": title, "text": chart.text, "chart": len(figures) - len(charts) + number}
            for number, (title, chart) in enumerate(zip(titles, charts, strict=True))
        ]

    return {
        "title": block.title,
        "text": block.text,
        "command": block.command,
        "made": [] if block.command else tables.made(compared.labels, environments),
        "facts": block.facts,
        "first": placed(ranked(block.compared, dict(block.numbers), block.own)) if block.compared else [],
        "own": placed(*block.shown),
        "ends": placed(ends(results, first)) if first else [],
        "sentence": sentence(results.summaries),
        "notes": _notes(compared.labels, results.summaries),
        "results": tables.results_of(results),
        "features": tables.features_of(results),
        "curves": placed(*filter(_goes_on, learning_curves(folders, results.split).values())),
        "graphs": placed(*client_graphs(folders, results, first)) if first else [],
        "of_methods": [
            each for label, run in runs.items() for each in placed(*_shown(run), of=label if len(runs) > 1 else "")
        ],
        "clients": tables.clients_of(results),
        "costs": tables.costs_of(results),
        "absences": tables.absences_of(runs),
        "runs": [
            {
                "label": label,
                "path": str(run.path),
                "toml": (run.path / "experiment.toml").read_text(encoding="utf-8"),
                "environment": environment,
            }
            for (label, run), environment in zip(runs.items(), environments, strict=True)
        ],
    }


def _goes_on(chart: Chart) -> bool:
    """Return whether a curve has more than one point."""
    return any(len(each.x) > 1 for each in chart.series)


def _notes(labels: Sequence[str], summaries: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return each note once with the runs that have it, empty for all."""
    runs: dict[str, list[str]] = {}
    for label, summary in zip(labels, summaries, strict=True):
        for note in summary.get("notes", ()):
            runs.setdefault(note, []).append(label)
    return [("" if len(who) == len(labels) else ", ".join(who), note) for note, who in runs.items()]


def _shown(run: Run) -> list[AnyChart]:
    try:
        return method_charts(run)
    except Exception as error:  # a damaged file must not cost the whole page
        log.warning("a part of the report of %s is left out: %s", run.path, error)
        return []
