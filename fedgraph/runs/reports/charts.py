"""Descriptions of charts: drawn by Plotly in a page, by Matplotlib in files and notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedgraph.graph import ClientGraph, GraphChart, read_graph
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.reports.results import Results
from fedgraph.runs.reports.words import mean_text

Floats = NDArray[np.float64]
Histories = Mapping[str, Mapping[int, Sequence[float]]]
"""Values of all clients, NaN for absent ones, by curve and round."""

FEW_POINTS = 3
"""Largest number of rounds that are drawn as points instead of a line."""

_PHASES = ("training", "evaluation")


@dataclass(frozen=True)
class Series:
    """A named series of a chart, drawn in one colour.

    Attributes
    ----------
    kind : {"line", "points", "bars", "box"}
        How it is drawn; a box also shows its points.
    name : str
        Its name.
    x, y : sequence
        Its points; without ``y`` in a lying chart.
    low, high : sequence of float
        Bounds at each point: the band of a line, or error bars of points; empty for none.
    texts : sequence of str
        Text of each point.
    soft : bool
        Whether to draw it in a muted colour.
    """

    kind: Literal["line", "points", "bars", "box"]
    name: str
    x: Sequence[Any]
    y: Sequence[Any] = ()
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    texts: Sequence[str] = ()
    soft: bool = False


@dataclass(frozen=True)
class Chart:
    """Series over axes.

    Attributes
    ----------
    series : tuple of Series
        The series.
    x, y : str
        Labels of the axes.
    lying : bool
        Whether series are stacked vertically, each with its name above.
    from_zero : bool
        Whether the value axis begins at 0.
    title, text : str
        Heading, and an explanation in a sentence or two.
    """

    series: tuple[Series, ...]
    x: str = ""
    y: str = ""
    lying: bool = False
    from_zero: bool = False
    title: str = ""
    text: str = ""


@dataclass(frozen=True)
class HeatMap:
    """A matrix of values for pairs of names."""

    names: Sequence[str]
    matrix: Floats
    unit: str
    title: str = ""
    text: str = ""


AnyChart = Chart | HeatMap | GraphChart


def curves(histories: Histories, unit: str, metric: str, title: str = "") -> Chart:
    """Describe learning curves: the mean over clients, with a band for the middle half of them.

    Up to ``FEW_POINTS`` rounds become points with error bars; a single client has no band.
    """
    series = []
    for name, history in histories.items():
        known = {step: np.array(of, dtype=float) for step, of in history.items()}
        known = {step: of[~np.isnan(of)] for step, of in known.items() if not np.isnan(of).all()}
        several = any(len(of) > 1 for of in history.values())
        low, high = (
            [float(np.percentile(of, share)) for of in known.values()] if several else [] for share in (25, 75)
        )
        kind: Any = "points" if len(known) <= FEW_POINTS else "line"
        series.append(Series(kind, name, list(known), [float(of.mean()) for of in known.values()], low, high))
    text = "Mean over clients, and the middle half of them."
    return Chart(tuple(series), unit, metric, title=title, text=text if any(each.low for each in series) else "")


def ends(results: Results, metric: str) -> Chart:
    """Describe the final metric of every client: a box with points and mean for each model."""
    rows = [
        (f"{column.name}  {mean_text(values)}", results.clients(metric, column))
        for column, values in zip(results.columns, results.row(metric), strict=True)
        if values
    ]
    boxes = (Series("box", name, list(of.values()), texts=list(of)) for name, of in rows)
    many = any(len(of) > 1 for _, of in rows)
    title = f"{'Clients at' if many else 'At'} the end: {metric}"
    text = "Every point is a client; the dashed line and the number are their mean." if many else ""
    return Chart(tuple(boxes), f"{results.split} {metric}", lying=True, title=title, text=text)


def ranked(values: Mapping[str, float], texts: Mapping[str, str], own: str = "") -> Chart:
    """Describe one number per name as horizontal bars with their values; the bar of ``own`` is highlighted."""
    bars = (Series("bars", name, [of], texts=[texts[name]], soft=own not in ("", name)) for name, of in values.items())
    return Chart(tuple(bars), lying=True, from_zero=True)


def bars(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    y: str,
    x: str = "",
    title: str = "",
    text: str = "",
) -> Chart:
    """Describe grouped bars, one group per label."""
    return Chart(tuple(Series("bars", name, labels, of) for name, of in series.items()), x, y, title=title, text=text)


def intervals(values: Mapping[str, tuple[float, float, float]], axis: str, title: str = "", text: str = "") -> Chart:
    """Describe ``(mean, low, high)`` for each label; without finite bounds only the mean."""
    points = []
    for name, (mean, low, high) in values.items():
        known = np.isfinite([low, high]).all()
        points.append(Series("points", name, [mean], (), [low] if known else [], [high] if known else []))
    return Chart(tuple(points), axis, lying=True, from_zero=True, title=title, text=text)


def learning_curves(folders: Mapping[str, RunFolder], split: str) -> dict[tuple[str, str], Chart]:
    """Return a chart for each measured split (or phase) and metric, beginning with the given split."""
    histories: dict[tuple[str, str], dict[str, dict[int, Sequence[float]]]] = {}
    units: dict[str, str] = {}
    for label, folder in folders.items():
        for line in folder.lines():
            if line.get("restored"):
                continue
            of_rounds, series = line["phase"] in _PHASES, label
            name = line["split"] if of_rounds else line["phase"]
            if of_rounds:
                metrics = {metric: list(values.values()) for metric, values in line["per_client"].items()}
            else:
                metrics = {key.replace("_", " "): [value] for key, value in line.items() if key.endswith("loss")}
                series += f", learning rate {line['learning_rate']:g}" if "learning_rate" in line else ""
            units[name] = "round" if of_rounds else "epoch"
            for metric, values in metrics.items():
                histories.setdefault((name, metric), {}).setdefault(series, {})[line["round"]] = values
    order = {split: 0, "validation": 1, "train": 2}
    wanted = sorted(histories, key=lambda key: order.get(key[0], 3))
    return {key: curves(histories[key], units[key[0]], " ".join(key), ": ".join(key)) for key in wanted}


def client_graphs(folders: Mapping[str, RunFolder], results: Results, metric: str) -> list[GraphChart]:
    """Describe the given client graph of the first run that has one, and the learned graph of each run.

    Clients are coloured by the metric of their run. They are placed by their coordinates if all are known, else by a
    layout of the graph; all graphs have the same places.
    """
    graphs: list[tuple[str, ClientGraph, int]] = []
    for run, (label, folder) in enumerate(folders.items()):
        if (folder.path / "graph.npz").is_file() and not any(title == "The client graph" for title, *_ in graphs):
            graphs.insert(0, ("The client graph", read_graph(folder.path / "graph.npz"), run))
        if (folder.path / "learned-graph.npz").is_file():
            graphs.append((f"Learned by {label}", read_graph(folder.path / "learned-graph.npz"), run))
    drawn: list[GraphChart] = []
    for title, graph, run in graphs:
        column = next(column for column in results.columns if column.run == run)
        places = drawn[0].places if drawn else _on_map(graph, list(folders.values())[run])
        chart = graph.chart(places=places, values=results.clients(metric, column), label=metric, title=title)
        text = f"{graph.describe()}{f'; the {chart.left_out} weakest edges are not drawn' if chart.left_out else ''}."
        drawn.append(replace(chart, text=text, on_map=drawn[0].on_map if drawn else places is not None))
    return drawn


def _on_map(graph: ClientGraph, folder: RunFolder) -> dict[str, tuple[float, float]] | None:
    known = folder.coordinates()
    if not known or not all(name in known for name in graph.names):
        return None
    # A degree of longitude shrinks with the cosine of the latitude.
    middle = np.cos(np.radians(np.mean([known[name][0] for name in graph.names])))
    return {name: (known[name][1] * middle, known[name][0]) for name in graph.names}
