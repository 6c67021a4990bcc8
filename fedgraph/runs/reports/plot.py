"""Charts drawn by Matplotlib for files and notebooks: the client graph, and curves or final metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgraph.runs.folder import RunFolder
from fedgraph.runs.reports.charts import FEW_POINTS, Chart, client_graphs, ends, learning_curves
from fedgraph.runs.reports.results import Results
from fedgraph.support.errors import RunError
from fedgraph.support.notebook import picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".png", ".svg", ".pdf", ".jpg", ".jpeg")


def picture_of_runs(folders: Sequence[RunFolder], summaries: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw runs of the same clients.

    Left, if a run has one: the client graph, coloured by each client's final metric. Right: the first metric by round,
    its mean over clients with the middle half shaded; for runs of few rounds, the final value of every client.

    ``summaries`` are the contents of ``summary.json``, with labels in place of methods.

    Raises
    ------
    RunError
        When a run has measured nothing.
    """
    results = Results(summaries)
    for place, folder in enumerate(folders):
        if not any(column.run == place and results.measured(column) for column in results.columns):
            raise RunError(f"{folder.path} has no metrics to draw")
    metric = results.rows[0]
    named = {str(summary["method"]): folder for summary, folder in zip(summaries, folders, strict=True)}
    graphs = client_graphs(named, results, metric)[:1]
    figure = picture(9.6 if graphs else 5.6, 3.8)
    *first, last = figure.subplots(1, 1 + len(graphs), squeeze=False)[0]
    for panel, graph in zip(first, graphs, strict=True):
        graph.draw(panel)
        panel.set_title(graph.title, fontsize=10)
    chart = learning_curves(named, results.split).get((results.split, metric))
    is_long = chart is not None and max(len(each.x) for each in chart.series) > FEW_POINTS
    draw(chart if chart is not None and is_long else ends(results, metric), last)
    return figure


def draw(chart: Chart, axes: Any) -> None:
    """Draw curves, points or boxes into Matplotlib axes."""
    for place, each in enumerate(chart.series):
        if each.kind == "box":
            axes.boxplot([each.x], positions=[place], vert=False, showmeans=True, meanline=True, widths=0.5)
            axes.plot(each.x, [place] * len(each.x), "o", alpha=0.4, markersize=4, color="tab:blue")
            continue
        (line,) = axes.plot(each.x, each.y, "o" if each.kind == "points" else "-", label=each.name)
        if len(each.low) and each.kind == "points":
            spread = np.abs(np.array([each.low, each.high]) - np.array(each.y))
            axes.errorbar(each.x, each.y, spread, fmt="none", ecolor=line.get_color())
        elif len(each.low):
            axes.fill_between(each.x, each.low, each.high, color=line.get_color(), alpha=0.15, linewidth=0)
    if chart.lying:
        axes.set_yticks(range(len(chart.series)), [each.name for each in chart.series])
        axes.invert_yaxis()
        axes.locator_params(axis="x", nbins=6)
    else:
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(frameon=False)
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y)
    axes.set_title(fill(chart.text.removesuffix("."), 52), fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
