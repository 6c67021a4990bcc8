"""What the charts of runs show, described once: Plotly draws them in a page, Matplotlib in files and notebooks."""

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
"""Values of every client, NaN for absent ones, by round, by the name of their curve."""

FEW_POINTS = 3
"""Rounds that make no curve: a line would claim to know what lies between them."""

_PHASES = ("training", "evaluation")


@dataclass(frozen=True)
class Series:
    """What has one name and one colour in a chart.

    Attributes
    ----------
    kind : {"line", "points", "bars", "box"}
        How it is drawn; a box has a point for each of its values.
    name : str
        What it is called.
    x, y : sequence
        Its points; where series lie, those have no ``y``.
    low, high : sequence of float
        The spread around each point, a band of a line and bars of points; empty for none.
    texts : sequence of str
        Text that is shown for each point.
    soft : bool
        Whether it is there for comparison alone.
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
        What is shown.
    x, y : str
        What is counted along the axes.
    lying : bool
        Whether each series is a line of its own, below the one before, with its name above.
    from_zero : bool
        Whether the axis of numbers begins at 0.
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
    """A matrix of pairs: a row for each name, and a column for each, or for each of ``columns``."""

    names: Sequence[str]
    matrix: Floats
    unit: str
    title: str = ""
    text: str = ""


AnyChart = Chart | HeatMap | GraphChart


def curves(histories: Histories, unit: str, metric: str, title: str = "") -> Chart:
    """Describe learning curves: the mean over clients, and the band of the middle half of them.

    Of up to ``FEW_POINTS`` rounds there are points with bars, and no line; of a single client there is no band.
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
    """Describe the metric of every client at the end: a box with its points for each model, and the mean."""
    found = [
        (f"{column.name}  {mean_text(values)}", results.clients(metric, column))
        for column, values in zip(results.columns, results.row(metric), strict=True)
        if values
    ]
    boxes = (Series("box", name, list(of.values()), texts=list(of)) for name, of in found)
    many = any(len(of) > 1 for _, of in found)
    title = f"{'Clients at' if many else 'At'} the end: {metric}"
    text = "Every point is a client; the dashed line and the number are their mean." if many else ""
    return Chart(tuple(boxes), f"{results.split} {metric}", lying=True, title=title, text=text)


def ranked(values: Mapping[str, float], texts: Mapping[str, str], own: str = "") -> Chart:
    """Describe a number of each of several as bars across, with the number at the end; that of ``own`` stands out."""
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
    """Describe bars side by side, one group for each label."""
    return Chart(tuple(Series("bars", name, labels, of) for name, of in series.items()), x, y, title=title, text=text)


def intervals(values: Mapping[str, tuple[float, float, float]], axis: str, title: str = "", text: str = "") -> Chart:
    """Describe a mean with its interval, ``(mean, low, high)``, for each label; without finite bounds just the mean."""
    points = []
    for name, (mean, low, high) in values.items():
        known = np.isfinite([low, high]).all()
        points.append(Series("points", name, [mean], (), [low] if known else [], [high] if known else []))
    return Chart(tuple(points), axis, lying=True, from_zero=True, title=title, text=text)


def learning_curves(folders: Mapping[str, RunFolder], split: str) -> dict[tuple[str, str], Chart]:
    """Return a chart for each split, or phase, and metric that runs have measured, that of the given split first."""
    histories: dict[tuple[str, str], dict[str, dict[int, Sequence[float]]]] = {}
    units: dict[str, str] = {}
    for label, folder in folders.items():
        for line in folder.lines():
            if line.get("restored"):
                continue
            of_rounds, series = line["phase"] in _PHASES, label
            name = line["split"] if of_rounds else line["phase"]
            if of_rounds:
                found = {metric: list(values.values()) for metric, values in line["per_client"].items()}
            else:
                found = {key.replace("_", " "): [value] for key, value in line.items() if key.endswith("loss")}
                series += f", learning rate {line['learning_rate']:g}" if "learning_rate" in line else ""
            units[name] = "round" if of_rounds else "epoch"
            for metric, values in found.items():
                histories.setdefault((name, metric), {}).setdefault(series, {})[line["round"]] = values
    order = {split: 0, "validation": 1, "train": 2}
    wanted = sorted(histories, key=lambda key: order.get(key[0], 3))
    return {key: curves(histories[key], units[key[0]], " ".join(key), ": ".join(key)) for key in wanted}


def client_graphs(folders: Mapping[str, RunFolder], results: Results, metric: str) -> list[GraphChart]:
    """Describe the given client graph of the first run that has one, and what each run has learned.

    Clients are coloured by the metric of their run, and lie where they are on a map, if all of these places are known:
    else neighbours are together, in the same places in all the graphs.
    """
    found: list[tuple[str, ClientGraph, int]] = []
    for run, (label, folder) in enumerate(folders.items()):
        if (folder.path / "graph.npz").is_file() and not any(title == "The client graph" for title, *_ in found):
            found.insert(0, ("The client graph", read_graph(folder.path / "graph.npz"), run))
        if (folder.path / "learned-graph.npz").is_file():
            found.append((f"Learned by {label}", read_graph(folder.path / "learned-graph.npz"), run))
    drawn: list[GraphChart] = []
    for title, graph, run in found:
        own = next(column for column in results.columns if column.run == run)
        places = drawn[0].places if drawn else _on_map(graph, list(folders.values())[run])
        chart = graph.chart(places=places, values=results.clients(metric, own), label=metric, title=title)
        said = f"{graph.describe()}{f'; the {chart.left_out} weakest edges are not drawn' if chart.left_out else ''}."
        drawn.append(replace(chart, text=said, on_map=drawn[0].on_map if drawn else places is not None))
    return drawn


def _on_map(graph: ClientGraph, folder: RunFolder) -> dict[str, tuple[float, float]] | None:
    known = folder.coordinates()
    if not known or not all(name in known for name in graph.names):
        return None
    # East is as long as north only at the equator.
    middle = np.cos(np.radians(np.mean([known[name][0] for name in graph.names])))
    return {name: (known[name][1] * middle, known[name][0]) for name in graph.names}
