"""The charts of a report, as Plotly figures whose colours follow the page: light or dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from fedgraph.graph import ClientGraph
from fedgraph.runs.reports.plot import FEW_POINTS

Floats = NDArray[np.float64]
Places = Mapping[str, tuple[float, float]]

COLOURS = ("#3b7ddd", "#e8730c", "#2a9d5c", "#b5449a", "#8a6d3b", "#d64550", "#5aa9b8", "#777fb5")
"""One for each run, legible on light and on dark ground."""

MOST_EDGES = 5
"""Edges that are drawn for each client, on average: with more, none could be told from another."""

_OTHERS = "#a3adba"
_MOST_NAMED = 12
_WIDTHS = (0.6, 1.4, 2.8)


def _figure(traces: Sequence[Any], height: int = 340, **layout: Any) -> go.Figure:
    """Return a figure without colours of its own for ground and text, which the page sets."""
    return go.Figure(
        traces,
        {
            "height": height,
            "margin": {"l": 56, "r": 12, "t": 12, "b": 46},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "template": "none",
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
            "hovermode": "closest",
            **layout,
        },
    )


def curves(series: Mapping[str, tuple[Sequence[int], Floats]], unit: str, name: str) -> go.Figure:
    """Draw learning curves: the mean over clients, and behind it the band of the middle half of them.

    Of up to ``FEW_POINTS`` rounds there are points with bars, and no line.

    Parameters
    ----------
    series : mapping of str to pair
        By run: rounds, and values ``[rounds, clients]``, NaN for absent clients. Of a single column there is no band.
    unit : str
        What is counted along the axis, such as ``round``.
    name : str
        The metric.
    """
    traces: list[Any] = []
    for colour, (run, (rounds, values)) in zip(_colours(len(series)), series.items(), strict=True):
        measured = ~np.isnan(values).all(axis=1)
        steps, kept = np.asarray(rounds)[measured], values[measured]
        mean = np.nanmean(kept, axis=1) if len(kept) else kept[:, 0]
        low, high = np.nanpercentile(kept, [25, 75], axis=1) if len(kept) else (mean, mean)
        drawn = {"x": steps.tolist(), "y": mean.tolist(), "name": run, "legendgroup": run}
        if len(steps) <= FEW_POINTS:
            up, down = (high - mean).tolist(), (mean - low).tolist()
            spread = {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1.4}
            bars = {"error_y": spread} if kept.shape[1] > 1 else {}
            traces.append(go.Scatter(**drawn, **bars, mode="markers", marker={"color": colour, "size": 9}))
            continue
        if kept.shape[1] > 1:
            traces.append(
                go.Scatter(
                    x=np.concatenate([steps, steps[::-1]]).tolist(), y=np.concatenate([high, low[::-1]]).tolist(),
                    fill="toself", fillcolor=colour, opacity=0.18, line={"width": 0}, hoverinfo="skip",
                    showlegend=False, legendgroup=run,
                )
            )  # fmt: skip
        traces.append(go.Scatter(**drawn, mode="lines", line={"color": colour, "width": 2.2}))
    return _figure(
        traces, xaxis={"title": unit}, yaxis={"title": name}, showlegend=len(series) > 1, hovermode="x unified"
    )


def strips(values: Mapping[str, tuple[Mapping[str, float], str]], metric: str) -> go.Figure:
    """Draw the final metric of every client, a box with its points for each model.

    Parameters
    ----------
    values : mapping of str to pair
        By model: the metric by client, and its mean as text.
    metric : str
        The metric.
    """
    traces: list[Any] = []
    names: list[str] = []
    for colour, (model, (clients, mean)) in zip(_colours(len(values)), values.items(), strict=True):
        names.append(f"{model}  <b>{mean}</b>")
        traces.append(
            go.Box(
                x=list(clients.values()), y0=names[-1], text=list(clients), boxpoints="all", jitter=0.5,
                pointpos=0, width=0.5, boxmean=True, marker={"size": 5, "opacity": 0.55, "color": colour},
                fillcolor="rgba(0,0,0,0)", line={"color": colour, "width": 1.2}, hoveron="points",
                hovertemplate="%{text}: %{x:.4g}<extra></extra>",
            )
        )  # fmt: skip
    return _lying(traces, names, xaxis={"title": metric})


def ranked(values: Mapping[str, float], texts: Mapping[str, str], own: str = "") -> go.Figure:
    """Draw a number of each of several as bars across, with the numbers at their ends; that of ``own`` stands out."""
    trace = go.Bar(
        x=list(values.values()), y=list(values), orientation="h", width=0.4, text=list(texts.values()),
        textposition="outside", cliponaxis=False, hoverinfo="skip",
        marker={"color": [COLOURS[0] if own in ("", label) else _OTHERS for label in values]},
    )  # fmt: skip
    return _lying([trace], list(values), xaxis={"rangemode": "tozero"}, right=64)


def _lying(traces: Sequence[Any], names: Sequence[str], xaxis: Mapping[str, Any], right: int = 12) -> go.Figure:
    """Return a figure of what lies below each other, with each name above what it is of: on a telephone too."""
    above = {"x": 0, "xref": "paper", "xanchor": "left", "yshift": 23, "showarrow": False}
    return _figure(
        traces, height=70 + 54 * len(names), margin={"l": 8, "r": right, "t": 16, "b": 46}, xaxis=dict(xaxis),
        yaxis={"type": "category", "autorange": "reversed", "showticklabels": False, "showgrid": False},
        annotations=[{**above, "y": place, "text": name} for place, name in enumerate(names)], showlegend=False,
    )  # fmt: skip


def client_graph(
    graph: ClientGraph, places: Places, values: Mapping[str, float], metric: str, on_map: bool
) -> tuple[go.Figure, int]:
    """Draw a client graph, each client coloured by a metric, and each edge as wide as it weighs.

    Returns
    -------
    figure : Figure
        The graph.
    left_out : int
        Number of the weakest edges that are not drawn, because there are more than ``MOST_EDGES`` per client.
    """
    source, target, weight = _edges(graph)
    chosen = np.sort(np.argsort(-weight, kind="stable")[: MOST_EDGES * graph.num_clients])
    traces = _edge_traces(
        [(graph.names[source[edge]], graph.names[target[edge]], float(weight[edge])) for edge in chosen], places
    )
    known = [name for name in graph.names if name in places]
    coloured = [values.get(name, float("nan")) for name in known]
    degree = dict(zip(graph.names, graph.without_self_loops().degree().tolist(), strict=True))
    told = [
        f"{name}<br>{metric} {value:.4g}<br>weights sum to {degree[name]:.3g}"
        for name, value in zip(known, coloured, strict=True)
    ]
    named = len(known) <= _MOST_NAMED
    differ = len({value for value in coloured if value == value}) > 1
    colours = {
        "color": coloured, "colorscale": "Viridis", "showscale": True,
        "colorbar": {"title": {"text": metric, "side": "right"}, "thickness": 12, "len": 0.9},
    }  # fmt: skip
    traces.append(
        go.Scatter(
            x=[places[name][0] for name in known], y=[places[name][1] for name in known],
            mode="markers+text" if named else "markers", text=known if named else None, textposition="top center",
            textfont={"size": 10}, cliponaxis=False, showlegend=False, hovertext=told,
            hovertemplate="%{hovertext}<extra></extra>",
            marker={
                "size": 15 if len(known) <= 40 else 9, "line": {"width": 1, "color": "#ffffff"},
                **(colours if differ else {"color": COLOURS[0]}),
            },
        )
    )  # fmt: skip
    return _plane(traces, equal=on_map), len(weight) - len(chosen)


def feature_graph(names: Sequence[str], edges: Sequence[tuple[str, str, float]], places: Places) -> go.Figure:
    """Draw the graph of features with their names; edges are as wide as the dependency is strong."""
    traces = _edge_traces(edges, places)
    traces.append(
        go.Scatter(
            x=[places[name][0] for name in names], y=[places[name][1] for name in names], mode="markers+text",
            text=list(names), textposition="top center", hoverinfo="text", showlegend=False, cliponaxis=False,
            marker={"size": 12, "color": COLOURS[0]},
        )
    )  # fmt: skip
    return _plane(traces, equal=False)


def heat_map(names: Sequence[str], matrix: Floats, unit: str, columns: Sequence[str] | None = None) -> go.Figure:
    """Draw a matrix of pairs."""
    traces = [
        go.Heatmap(
            z=matrix.tolist(), x=list(columns or names), y=list(names), colorscale="Viridis",
            hovertemplate="%{y}, %{x}: %{z:.4g}<extra></extra>",
            colorbar={"title": {"text": unit, "side": "right"}, "thickness": 12},
        )
    ]  # fmt: skip
    shown = len(names) <= 40
    axes = {"type": "category", "showticklabels": shown, "showgrid": False, "automargin": True}
    return _figure(traces, height=400, xaxis=dict(axes), yaxis={**axes, "autorange": "reversed"})


def bars(labels: Sequence[str], series: Mapping[str, Sequence[float | None]], axis: str, title: str = "") -> go.Figure:
    """Draw bars side by side, one group for each label."""
    traces = [
        go.Bar(x=list(labels), y=list(values), name=name, marker={"color": colour}, hovertemplate="%{x}: %{y:.4g}")
        for colour, (name, values) in zip(_colours(len(series)), series.items(), strict=True)
    ]
    axis_x = {"type": "category", "title": title, "automargin": True}
    return _figure(traces, barmode="group", xaxis=axis_x, yaxis={"title": axis}, showlegend=len(series) > 1)


def intervals(values: Mapping[str, tuple[float, float, float]], axis: str) -> go.Figure:
    """Draw a mean with its interval, ``(mean, low, high)``, for each label; without bounds the mean alone."""
    means, lows, highs = (np.array([each[place] for each in values.values()]) for place in range(3))
    known = np.isfinite(lows) & np.isfinite(highs)
    bars = {
        "type": "data", "symmetric": False, "thickness": 2,
        "array": np.where(known, highs - means, 0).tolist(), "arrayminus": np.where(known, means - lows, 0).tolist(),
    }  # fmt: skip
    trace = go.Scatter(
        x=means.tolist(), y=list(values), mode="markers", error_x=bars, marker={"size": 9, "color": COLOURS[0]},
        hovertemplate="%{y}: %{x:.3g}",
    )  # fmt: skip
    axis_y = {"type": "category", "autorange": "reversed", "automargin": True}
    axis_x = {"title": axis, "rangemode": "tozero", "zeroline": True, "zerolinewidth": 2}
    return _figure([trace], height=110 + 34 * len(values), xaxis=axis_x, yaxis=axis_y)


def _colours(count: int) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(count)]


def _plane(traces: Sequence[Any], equal: bool) -> go.Figure:
    hidden: dict[str, Any] = {"visible": False}
    return _figure(
        traces, height=420, margin={"l": 24, "r": 24, "t": 22, "b": 10}, xaxis=hidden,
        yaxis={**hidden, **({"scaleanchor": "x"} if equal else {})},
    )  # fmt: skip


def _edges(graph: ClientGraph) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Return every edge between two clients once, with the larger of the weights of its directions."""
    plain = graph.without_self_loops()
    source, target = plain.edge_index.numpy()
    weight = np.abs(plain.weights.numpy().astype(np.float64))
    low, high = np.minimum(source, target), np.maximum(source, target)
    order = np.lexsort((-weight, high, low))
    low, high, weight = low[order], high[order], weight[order]
    first = np.ones(len(low), dtype=bool)
    first[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    return low[first], high[first], weight[first]


def _edge_traces(edges: Sequence[tuple[str, str, float]], places: Places) -> list[Any]:
    """Return the edges as lines of three widths."""
    drawn = [(places[one], places[other], weight) for one, other, weight in edges if one in places and other in places]
    if not drawn:
        return []
    weights = np.array([weight for *_, weight in drawn])
    spread = weights.max() - weights.min()
    share = (weights - weights.min()) / spread if spread > 0 else np.full(len(weights), 0.5)
    kind = np.minimum((share * len(_WIDTHS)).astype(int), len(_WIDTHS) - 1)
    traces = []
    for number, width in enumerate(_WIDTHS):
        chosen = [edge for edge, own in zip(drawn, kind, strict=True) if own == number]
        if chosen:
            across = [value for one, other, _ in chosen for value in (one[0], other[0], None)]
            up = [value for one, other, _ in chosen for value in (one[1], other[1], None)]
            traces.append(
                go.Scatter(
                    x=across, y=up, mode="lines", hoverinfo="skip", showlegend=False,
                    line={"width": width, "color": "rgba(128,128,128,0.45)"},
                )
            )  # fmt: skip
    return traces
