"""Picture of finished runs: the client graph, and the metric of the models round by round, or at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgraph.graph import read_graph
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.reports.results import Results
from fedgraph.runs.reports.words import mean_text
from fedgraph.support.errors import RunError
from fedgraph.support.notebook import picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".png", ".svg", ".pdf", ".jpg", ".jpeg")

FEW_POINTS = 3
"""Rounds that make no curve: a line would claim to know what lies between them."""


def picture_of_runs(folders: Sequence[RunFolder], summaries: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw runs of the same clients.

    Left, where a run has one: the given client graph, each client coloured by the metric of its final model in the
    first run. Right: mean over clients of the metric that results begin with, round by round, with the middle half of
    the clients shaded; of runs of few rounds every client at the end instead, under each of the run's models.

    Parameters
    ----------
    folders : sequence of RunFolder
        The run folders.
    summaries : sequence of mapping
        Content of each ``summary.json``, with a label in place of the method.

    Raises
    ------
    RunError
        When nothing was measured in a run.
    """
    results = Results(summaries)
    for place, folder in enumerate(folders):
        if not any(column.run == place and results.measured(column) for column in results.columns):
            raise RunError(f"{folder.path} measured nothing: there is nothing to draw")
    metric = results.rows[0]
    graph = next((folder.path / "graph.npz" for folder in folders if (folder.path / "graph.npz").exists()), None)
    figure = picture(9.6 if graph else 5.6, 3.8)
    panels = figure.subplots(1, 2 if graph else 1, squeeze=False)[0]
    if graph is not None:
        own = results.clients(metric, results.columns[0])
        read_graph(graph).draw(panels[0], own, metric)
        panels[0].set_title(f"client graph, coloured by {results.columns[0].name}", fontsize=10)
    histories = [_history(folder, results.split, metric) for folder in folders]
    if max(map(len, histories)) > FEW_POINTS:
        _draw_curves(panels[-1], {str(each["method"]): of for each, of in zip(summaries, histories, strict=True)})
        panels[-1].set_ylabel(f"{metric} on each client's {results.split} data")
    else:
        _draw_ends(panels[-1], results, metric)
    panels[-1].spines[["top", "right"]].set_visible(False)
    return figure


def _history(folder: RunFolder, split: str, metric: str) -> dict[int, list[float]]:
    """Return a metric of every client, by round."""
    found = {
        line["round"]: np.array(list(line["per_client"][metric].values()), dtype=float).tolist()
        for line in folder.lines()
        if line["phase"] == "evaluation" and line["split"] == split and metric in line["per_client"]
    }
    return dict(sorted(found.items()))


def _draw_curves(panel: Any, histories: Mapping[str, Mapping[int, Sequence[float]]]) -> None:
    for label, history in histories.items():
        values = np.array(list(history.values()))
        (line,) = panel.plot(list(history), np.nanmean(values, axis=1), label=label)
        low, high = np.nanpercentile(values, [25, 75], axis=1)
        panel.fill_between(list(history), low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    panel.set_xlabel("round")
    panel.set_title("mean over clients (shaded: middle half)", fontsize=10)
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.legend(frameon=False)


def _draw_ends(panel: Any, results: Results, metric: str) -> None:
    spreads = dict(zip(results.columns, results.row(metric), strict=True))
    shown = {column: list(results.clients(metric, column).values()) for column, of in spreads.items() if of}
    names = [f"{column.name}  {mean_text(spreads[column])}" for column in shown]
    panel.boxplot(list(shown.values()), vert=False, showmeans=True, meanline=True, tick_labels=names, widths=0.5)
    for place, values in enumerate(shown.values(), 1):
        panel.plot(values, [place] * len(values), "o", alpha=0.4, markersize=4, color="tab:blue")
    panel.invert_yaxis()
    panel.set_xlabel(f"{results.split} {metric}")
    panel.set_title("every client at the end, and their mean", fontsize=10)
