"""Disagreement of the clients' own predictions: entropy of a sample's predicted labels (Ma et al. 2023, fig. 3)."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph.reproduce.figures.panels import palette, panels
from fedgraph.reproduce.results import Results
from fedgraph.reproduce.table import ColumnTable, RowTable
from fedgraph.support.errors import RunError

FILE = "entropies.csv"
"""File in a run folder: a line per sample, with the columns key, split and entropy (in bits)."""

_BINS = 10
"""Few: the predictions of n clients for two classes have about n / 2 possible values, which are far apart near 0."""


def of_entropies(results: Results) -> Any:
    """Draw the share of samples by entropy, all splits and seeds together; a line per column, and per row with data.

    At 0 bits all clients agree. The vertical line is the mean.
    """
    curves = [
        (row, column, values)
        for column in results.columns
        for row in results.rows(column)
        if len(values := _of_runs(results, row, column))
    ]
    if not curves:
        return None
    several = len({row.label for row, _, _ in curves}) > 1
    figure, (axis,) = panels(1, width=5.4, height=3.6)
    # Two classes have at most one bit; more classes need more room.
    edges = np.linspace(0.0, max(1.0, *(float(values.max()) for _, _, values in curves)), _BINS + 1)
    colours = palette(len(curves))
    for (row, column, values), (colour, style) in zip(curves, colours, strict=True):
        shares = 100 * np.histogram(values, edges)[0] / len(values)
        title = f"{column.title}, {row.label}" if several else column.title
        title += f" (mean {values.mean():.2f})"
        axis.stairs(shares, edges, color=colour, linestyle=style, linewidth=1.6, label=title, zorder=3)
        axis.stairs(shares, edges, color=colour, alpha=0.1, fill=True, zorder=2)
        axis.axvline(values.mean(), color=colour, linewidth=1, linestyle=":", zorder=3)
    axis.set_xlim(edges[0], edges[-1])
    axis.set_ylim(bottom=0)
    axis.set_xlabel("entropy of the clients' predicted labels (bits); dotted: mean", fontsize=8)
    axis.set_ylabel("share of samples (%)", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(color="0.93", zorder=0)
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    return figure


def _of_runs(results: Results, row: RowTable, column: ColumnTable) -> NDArray[np.float64]:
    """Return the entropies of all samples of all seeds of a row."""
    files = [outcome.cell.path / FILE for outcome in results.at(row, column) if outcome.summary]
    every = [_read(file) for file in files if file.exists()]
    return np.concatenate(every) if every else np.empty(0)


def _read(file: Path) -> NDArray[np.float64]:
    with file.open(newline="", encoding="utf-8") as stream:
        lines = list(csv.DictReader(stream))
    try:
        return np.array([float(line["entropy"]) for line in lines])
    except (KeyError, ValueError) as error:
        raise RunError(
            f"{file} needs a column 'entropy' of numbers ({error}); remove the run and run it again"
        ) from None
