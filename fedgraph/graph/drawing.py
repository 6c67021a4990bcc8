"""What a picture of a graph shows, whatever draws it, and how Matplotlib does: clients near their neighbours, features
in a circle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import networkx as nx

Places = Mapping[str, tuple[float, float]]

MOST_EDGES = 5
"""Edges that are drawn for each vertex, on average: with more, none could be told from another."""

_MOST_NAMED = 12
"""Number of vertices that are drawn with their names."""


def spring_layout(graph: nx.Graph) -> dict[str, tuple[float, float]]:
    """Return where each vertex is drawn: neighbours together, every time in the same places."""
    import networkx as nx  # takes a fifth of a second

    places = nx.spring_layout(graph, weight=None, seed=0, k=1.6 / np.sqrt(max(len(graph), 1)))
    return {name: (float(x), float(y)) for name, (x, y) in places.items()}


def in_a_circle(names: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return where each vertex is drawn: in the order of their names, so every time in the same places."""
    angles = np.linspace(0, 2 * np.pi, len(names), endpoint=False)
    return {name: (float(np.cos(turn)), float(np.sin(turn))) for name, turn in zip(sorted(names), angles, strict=True)}


@dataclass(frozen=True)
class GraphChart:
    """A graph to be drawn: each vertex in its place, and each edge as wide as it weighs.

    Attributes
    ----------
    places : mapping of str to pair of float
        Where each vertex is drawn.
    edges : tuple of tuple
        Both ends and the weight of each edge, not below 0.
    left_out : int
        Number of weaker edges that are not drawn.
    values : mapping of str to float
        What colours vertices; without, and where all are alike, there are no colours.
    label : str
        What the colours are.
    named : bool
        Whether vertices are drawn with their names.
    on_map : bool
        Whether both directions have one scale.
    title, text : str
        Heading and explanation, of a page.
    """

    places: Places
    edges: tuple[tuple[str, str, float], ...] = ()
    left_out: int = 0
    values: Mapping[str, float] | None = None
    label: str = ""
    named: bool = True
    on_map: bool = False
    title: str = ""
    text: str = ""

    @classmethod
    def of(
        cls,
        edges: Iterable[tuple[str, str, float]],
        places: Places,
        most: int | None = None,
        named: bool | None = None,
        **about: Any,
    ) -> GraphChart:
        """Describe a graph by its edges, in both directions or in one, of which the strongest are drawn.

        Parameters
        ----------
        edges : iterable of tuple
            Both ends and the weight of each edge. Self loops, and edges of vertices without a place, are left out; of
            two directions the stronger counts.
        places : mapping of str to pair of float
            Where each vertex is drawn.
        most : int, optional
            Edges that are drawn for each vertex, on average; by default all are.
        named : bool, optional
            Whether vertices have their names; by default if they are few.
        **about
            Further attributes.
        """
        found: dict[tuple[str, str], float] = {}
        for one, other, weight in edges:
            if one != other and one in places and other in places:
                pair = (min(one, other), max(one, other))
                found[pair] = max(found.get(pair, 0.0), abs(weight))
        kept = set(sorted(found, key=lambda pair: -found[pair])[: None if most is None else most * len(places)])
        drawn = tuple((*pair, weight) for pair, weight in found.items() if pair in kept)
        named = len(places) <= _MOST_NAMED if named is None else named
        return cls(places, drawn, len(found) - len(drawn), named=named, **about)

    @property
    def colours(self) -> list[float] | None:
        """The values of all vertices, NaN where there is none; None where they do not differ."""
        found = [(self.values or {}).get(name, float("nan")) for name in self.places]
        return found if len({value for value in found if value == value}) > 1 else None

    def draw(self, axes: Any) -> None:
        """Draw it into axes of Matplotlib."""
        from matplotlib import colormaps
        from matplotlib.collections import LineCollection

        most = max((weight for *_, weight in self.edges), default=1.0) or 1.0
        lines = [(self.places[one], self.places[other]) for one, other, _ in self.edges]
        widths = [0.4 + 1.6 * weight / most for *_, weight in self.edges]
        axes.add_collection(LineCollection(lines, linewidths=widths, colors="0.72", zorder=1))
        # Clients without a value are grey.
        given = {"c": self.colours, "cmap": colormaps["viridis"].with_extremes(bad="0.7"), "plotnonfinite": True}
        across, up = np.array(list(self.places.values())).T
        points = axes.scatter(
            across, up, s=70, linewidths=0.5, edgecolors="white", zorder=2,
            **(given if self.colours else {"color": "tab:blue"}),
        )  # fmt: skip
        if self.named:
            for name, place in self.places.items():
                axes.annotate(
                    name, place, (0, 6), textcoords="offset points", ha="center", fontsize=7, parse_math=False
                )
        if self.left_out:
            text = f"the {self.left_out:,} weakest edges are not drawn"
            axes.text(0.5, 0, text, transform=axes.transAxes, ha="center", va="top", fontsize=7, color="0.4")
        if self.colours:
            axes.figure.colorbar(points, ax=axes, shrink=0.7, label=self.label)
        if self.on_map:
            axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.12)
        axes.axis("off")
