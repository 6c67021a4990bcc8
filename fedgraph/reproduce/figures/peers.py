"""Numbers of test examples that pairs of peers predict differently, as a picture (Gorbett et al. 2023, fig. 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph.reproduce.figures.panels import panels
from fedgraph.reproduce.results import Results
from fedgraph.reproduce.table import ColumnTable, RowTable
from fedgraph.runs.reports import FILE, PeerComparison

_MOST_NAMED = 30
"""Number of peers whose names fit along a side."""

_SIDE, _SMALLEST = 3.4, 5.0
"""Length of a side in inches, about; numbers that would have to be smaller than so many points are not written."""


def of_peers(results: Results) -> Any:
    """Draw a panel for every column and row that has compared its peers, of the first seed that has."""
    compared = [
        (row, column, comparison)
        for column in results.columns
        for row in results.rows(column)
        if (comparison := _of_runs(results, row, column)) is not None
    ]
    if not compared:
        return None
    several = len({row.label for row, _, _ in compared}) > 1
    titles = [f"{column.title}, {row.label}" if several else column.title for row, column, _ in compared]
    return picture([(title, comparison) for title, (_, _, comparison) in zip(titles, compared, strict=True)])


def picture(compared: Sequence[tuple[str, PeerComparison]]) -> Any:
    """Draw matrices of Hamming distances in one common scale: the share of the test examples.

    Parameters
    ----------
    compared : sequence of (str, PeerComparison)
        Title and comparison of each panel.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.
    """
    from matplotlib import colormaps

    figure, axes = panels(len(compared), width=_SIDE + 1.1, height=_SIDE + 1.2)
    figure.set_layout_engine("compressed")
    shares = [_shares(comparison) for _, comparison in compared]
    ends = float(min(map(np.nanmin, shares))), float(max(map(np.nanmax, shares)))
    low, high = ends if ends[0] < ends[1] else (0.0, 100.0)
    colours = colormaps["YlGnBu"].with_extremes(bad="0.93")
    for axis, (title, comparison), each in zip(axes, compared, shares, strict=True):
        image = axis.imshow(each, cmap=colours, vmin=low, vmax=high, interpolation="nearest")
        axis.set_title(f"{title}\nmean {comparison.mean('hamming'):,.1f} of {comparison.examples:,}", fontsize=9)
        _name_peers(axis, comparison.names)
        _write_numbers(axis, comparison, each > low + 0.55 * (high - low))
    bar = figure.colorbar(image, ax=axes, shrink=0.7, pad=0.02, aspect=30)
    bar.set_label("test examples predicted differently (%)", fontsize=8)
    bar.ax.tick_params(labelsize=7.5)
    bar.outline.set_visible(False)
    return figure


def _shares(comparison: PeerComparison) -> NDArray[np.float64]:
    """Return Hamming distances in per cent of the examples, NaN on the diagonal."""
    shares = 100 * comparison.hamming.double().numpy() / comparison.examples
    np.fill_diagonal(shares, np.nan)
    return shares


def _name_peers(axis: Any, names: tuple[str, ...]) -> None:
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0, labelsize=7.5)
    if len(names) > _MOST_NAMED:
        axis.set(xticks=[], yticks=[])
        axis.set_xlabel(f"{len(names)} peers", fontsize=8)
        return
    short = [name if len(name) <= 14 else f"{name[:6]}…{name[-7:]}" for name in names]
    axis.set_xticks(range(len(names)), short, rotation=90 if max(map(len, names)) > 2 else 0)
    axis.set_yticks(range(len(names)), short)


def _write_numbers(axis: Any, comparison: PeerComparison, dark: NDArray[np.bool_]) -> None:
    """Write numbers into the cells, where they are large enough to be read."""
    count, digits = len(comparison.names), len(f"{int(comparison.hamming.max()):,}")
    # A digit is about 0.6 times as wide as a letter is high, which is given in points of 1/72 inch.
    size = min(9.0, 0.85 * 72 * _SIDE / (count * 0.6 * digits))
    if size < _SMALLEST:
        return
    for row, column in np.argwhere(~np.eye(count, dtype=bool)):
        text, colour = f"{comparison.hamming[row, column]:,}", "white" if dark[row, column] else "0.15"
        axis.text(column, row, text, ha="center", va="center", fontsize=size, color=colour)


def _of_runs(results: Results, row: RowTable, column: ColumnTable) -> PeerComparison | None:
    files = [outcome.cell.path / FILE for outcome in results.at(row, column) if outcome.summary]
    file = next((file for file in files if file.exists()), None)
    return None if file is None else PeerComparison.read(file)
