"""Plots of graphs: client graphs in a spring layout, feature graphs in a circle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import networkx as nx

Places = Mapping[str, tuple[float, float]]

_MOST_NAMED = 12
"""Maximum number of vertices that are drawn with names."""


def spring_layout(graph: nx.Graph) -> dict[str, tuple[float, float]]:
    """Return reproducible positions of a spring layout."""
    import networkx as nx  # takes a fifth of a second

    places = nx.spring_layout(graph, weight=None, seed=0, k=1.6 / np.sqrt(max(len(graph), 1)))
    return {name: (float(x), float(y)) for name, (x, y) in places.items()}


def draw_graph(
    axes: Any,
    graph: nx.Graph,
    places: Places,
    values: Mapping[str, float] | None = None,
    label: str = "",
    named: bool | None = None,
) -> None:
    """Draw a graph, with edge widths by weight.

    Parameters
    ----------
    graph : the graph; edges may have a ``weight``. Self loops are not drawn.
    places : position of each vertex.
    values : colour value of each vertex; no colours without values, or if all are equal.
    named : whether names are shown; by default for few vertices.
    """
    import networkx as nx
    from matplotlib import colormaps

    edges = [
        (one, other, abs(weight)) for one, other, weight in graph.edges.data("weight", default=1.0) if one != other
    ]
    most = max((weight for *_, weight in edges), default=1.0) or 1.0
    widths = [0.4 + 1.6 * weight / most for *_, weight in edges]
    nx.draw_networkx_edges(
        nx.Graph(graph), places, edgelist=[pair for *pair, _ in edges], width=widths, ax=axes, edge_color="0.72"
    )
    colours = np.array([(values or {}).get(name, np.nan) for name in graph.nodes], dtype=float)
    differ = len(set(colours[~np.isnan(colours)])) > 1
    # Clients without a value are grey.
    given = {"c": colours, "cmap": colormaps["viridis"].with_extremes(bad="0.7"), "plotnonfinite": True}
    across, up = np.array([places[name] for name in graph.nodes]).T
    points = axes.scatter(
        across, up, s=70, linewidths=0.5, edgecolors="white", zorder=2, **(given if differ else {"color": "tab:blue"})
    )
    if len(graph) <= _MOST_NAMED if named is None else named:
        for name, (x, y) in places.items():
            axes.annotate(name, (x, y), (0, 6), textcoords="offset points", ha="center", fontsize=7, parse_math=False)
    if differ:
        axes.figure.colorbar(points, ax=axes, shrink=0.7, label=label)
    axes.margins(0.12)
    axes.axis("off")
