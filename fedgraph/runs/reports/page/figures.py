"""Charts as Plotly figures; the page sets the colours of background and text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedgraph.graph import GraphChart
from fedgraph.runs.reports.charts import AnyChart, Chart, HeatMap, Series

COLOURS = ("#3b7ddd", "#e8730c", "#2a9d5c", "#b5449a", "#8a6d3b", "#d64550", "#5aa9b8", "#777fb5")
"""Colours of series, legible on light and dark backgrounds."""

_SOFT = "#a3adba"
_WIDTHS = (0.6, 1.4, 2.8)
_MANY = 40
"""Number of clients above which points are small and names of rows are left out."""


def figure(chart: AnyChart) -> go.Figure:
    """Return the figure of a chart."""
    if isinstance(chart, Chart):
        return _lying(chart) if chart.lying else _standing(chart)
    return _heat_map(chart) if isinstance(chart, HeatMap) else _graph(chart)


def _figure(traces: Sequence[Any], **layout: Any) -> go.Figure:
    return go.Figure(
        traces,
        {
            "height": 340, "margin": {"l": 56, "r": 12, "t": 12, "b": 46}, "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)", "template": "none", "hovermode": "closest",
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}, **layout,
        },
    )  # fmt: skip


def _standing(chart: Chart) -> go.Figure:
    traces = [trace for number, each in enumerate(chart.series) for trace in _traces(each, number, "y")]
    kinds = {each.kind for each in chart.series}
    axis = {"type": "category", "automargin": True} if "bars" in kinds else {}
    return _figure(
        traces, barmode="group", xaxis={"title": chart.x, **axis}, yaxis={"title": chart.y},
        showlegend=len(chart.series) > 1, hovermode="closest" if "bars" in kinds else "x unified",
    )  # fmt: skip


def _lying(chart: Chart) -> go.Figure:
    """Draw series below each other, each with its name above, to fit narrow screens."""
    kinds = {each.kind for each in chart.series}
    coloured = "box" in kinds  # one number each needs no colours
    traces = [trace for place, each in enumerate(chart.series) for trace in _traces(each, place * coloured, "x")]
    above = {"x": 0, "xref": "paper", "xanchor": "left", "yshift": 23, "showarrow": False}
    axis = {"title": chart.x, **({"rangemode": "tozero", "zerolinewidth": 2} if chart.from_zero else {})}
    return _figure(
        traces, height=70 + 54 * len(chart.series), xaxis=axis, showlegend=False,
        margin={"l": 8, "r": 64 if "bars" in kinds else 12, "t": 16, "b": 46},
        yaxis={"type": "category", "autorange": "reversed", "showticklabels": False, "showgrid": False},
        annotations=[{**above, "y": place, "text": _bold(each.name)} for place, each in enumerate(chart.series)],
    )  # fmt: skip


def _traces(series: Series, number: int, values: str) -> Iterator[Any]:
    """Yield the traces of a series; ``values`` is its value axis, ``x`` in a lying chart."""
    colour = _SOFT if series.soft else COLOURS[number % len(COLOURS)]
    lies, x, y = values == "x", np.asarray(series.x).tolist(), list(series.y)
    named: dict[str, Any] = {"name": series.name, "legendgroup": series.name}
    if series.kind == "box":
        yield go.Box(
            x=x, y0=series.name, text=list(series.texts), boxpoints="all", jitter=0.5, pointpos=0, width=0.5,
            boxmean=True, marker={"size": 5, "opacity": 0.55, "color": colour}, fillcolor="rgba(0,0,0,0)",
            line={"color": colour, "width": 1.2}, hoveron="points", hovertemplate="%{text}: %{x:.4g}<extra></extra>",
        )  # fmt: skip
    elif series.kind == "bars":
        shape = {"y": [series.name], "orientation": "h", "width": 0.4, "textposition": "outside", "cliponaxis": False,
                 "text": list(series.texts), "hoverinfo": "skip"}  # fmt: skip
        standing = {"y": y, "hovertemplate": "%{x}: %{y:.4g}"}
        yield go.Bar(x=x, marker={"color": colour}, **named, **(shape if lies else standing))
    elif series.kind == "points":
        middle = np.array(x if lies else y)
        spread = {
            "type": "data", "symmetric": False, "thickness": 1.6, "array": (np.array(series.high) - middle).tolist(),
            "arrayminus": (middle - np.array(series.low)).tolist(),
        } if len(series.low) else {}  # fmt: skip
        marker = {"color": colour, "size": 9}
        yield go.Scatter(
            x=x, y=[series.name] if lies else y, mode="markers", marker=marker, **{f"error_{values}": spread}, **named
        )
    else:
        if len(series.low):
            yield go.Scatter(
                x=x + x[::-1], y=[*series.high, *reversed(series.low)], mode="lines", fill="toself", fillcolor=colour,
                opacity=0.18, line={"width": 0}, hoverinfo="skip", showlegend=False, legendgroup=series.name,
            )  # fmt: skip
        yield go.Scatter(x=x, y=y, mode="lines", line={"color": colour, "width": 2.2}, **named)


def _bold(name: str) -> str:
    """Return a name whose trailing number is bold."""
    first, gap, number = name.partition("  ")
    return f"{first}{gap}<b>{number}</b>" if gap else name


def _graph(chart: GraphChart) -> go.Figure:
    """Draw a graph, with edges of three widths."""
    weights = np.array([weight for *_, weight in chart.edges])
    spread = np.ptp(weights) if len(weights) else 0.0
    share = (weights - weights.min()) / spread if spread > 0 else np.full(len(weights), 0.5)
    kind = np.minimum((share * len(_WIDTHS)).astype(int), len(_WIDTHS) - 1)
    traces = []
    for number in sorted(set(kind.tolist())):
        ends = [(chart.places[one], chart.places[other]) for (one, other, _), width in
                zip(chart.edges, kind, strict=True) if width == number]  # fmt: skip
        across, up = ([at for one, other in ends for at in (one[axis], other[axis], None)] for axis in (0, 1))
        line = {"width": _WIDTHS[number], "color": "rgba(128,128,128,0.45)"}
        traces.append(go.Scatter(x=across, y=up, mode="lines", hoverinfo="skip", showlegend=False, line=line))
    colours = {
        "color": chart.colours, "colorscale": "Viridis", "showscale": True,
        "colorbar": {"title": {"text": chart.label, "side": "right"}, "thickness": 12, "len": 0.9},
    } if chart.colours else {"color": COLOURS[0]}  # fmt: skip
    values = chart.values or {}
    traces.append(
        go.Scatter(
            x=[x for x, _ in chart.places.values()], y=[y for _, y in chart.places.values()], showlegend=False,
            mode="markers+text" if chart.named else "markers", text=list(chart.places) if chart.named else None,
            textposition="top center", textfont={"size": 10}, cliponaxis=False,
            hovertext=[f"{name}<br>{chart.label} {values.get(name, float('nan')):.4g}" if values else name
                       for name in chart.places],
            hovertemplate="%{hovertext}<extra></extra>",
            marker={"size": 15 if len(chart.places) <= _MANY else 9, "line": {"width": 1, "color": "#fff"}, **colours},
        )
    )  # fmt: skip
    hidden: dict[str, Any] = {"visible": False}
    return _figure(
        traces, height=420, margin={"l": 24, "r": 24, "t": 22, "b": 10}, xaxis=hidden,
        yaxis={**hidden, **({"scaleanchor": "x"} if chart.on_map else {})},
    )  # fmt: skip


def _heat_map(chart: HeatMap) -> go.Figure:
    trace = go.Heatmap(
        z=chart.matrix.tolist(), x=list(chart.names), y=list(chart.names), colorscale="Viridis",
        hovertemplate="%{y}, %{x}: %{z:.4g}<extra></extra>",
        colorbar={"title": {"text": chart.unit, "side": "right"}, "thickness": 12},
    )  # fmt: skip
    axes = {"type": "category", "showticklabels": len(chart.names) <= _MANY, "showgrid": False, "automargin": True}
    return _figure([trace], height=400, xaxis=dict(axes), yaxis={**axes, "autorange": "reversed"})
