"""Common parts of figures: panels of equal size, and distinguishable colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def panels(count: int, width: float, height: float, most: int = 2) -> tuple[Any, list[Any]]:
    """Create a figure with ``count`` panels of ``width`` x ``height`` inches, at most ``most`` side by side.

    Returns
    -------
    figure : matplotlib.figure.Figure
        The figure.
    axes : list of matplotlib.axes.Axes
        One per panel.
    """
    from matplotlib.figure import Figure

    across = min(count, most)
    down = -(-count // across)
    figure = Figure(figsize=(width * across, height * down), dpi=150, layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for unused in axes[count:]:
        unused.set_axis_off()
    return figure, axes[:count]


def calm(axis: Any, title: str, x: str, y: str) -> None:
    """Set title and axis labels of a panel, with small ticks, a pale grid and no box."""
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(x, fontsize=8)
    axis.set_ylabel(y, fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(color="0.92", zorder=0)
    axis.spines[["top", "right"]].set_visible(False)


def legend_columns(figure: Any, labels: Sequence[str], most: int = 4) -> int:
    """Return how many labels of 8 points fit side by side below a figure."""
    # A letter is about 0.066 inches wide, the handle and the gap 0.6.
    widest = 0.6 + 0.066 * max(map(len, labels))
    return max(1, min(most, int(figure.get_figwidth() / widest)))


def palette(count: int) -> list[tuple[Any, str]]:
    """Return ``count`` line styles: ten colours solid, then dashed, then dotted."""
    from matplotlib import colormaps

    colours = colormaps["tab10"].colors  # type: ignore[attr-defined]
    return [(colours[number % 10], ("-", "--", ":")[number // 10 % 3]) for number in range(count)]
