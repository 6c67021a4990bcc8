"""Learned alignment matrices of a few clients, as pictures (Ma et al. 2023, fig. 4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgraph.reproduce.results import Results
from fedgraph.reproduce.table import ColumnTable, RowTable
from fedgraph.support.errors import RunError

FILE = "alignment.npz"
"""File in a run folder: ``owners``, and ``matrices`` ``[owners, aligned, size]``."""

SHOWN = 4
"""Number of clients in the picture, for each column."""


class _Alignment(NamedTuple):
    owners: list[str]
    matrices: NDArray[np.float64]


def of_permutations(results: Results) -> Any:
    """Draw the matrices of clients evenly taken from all, of the first seed; a line per column and row with data.

    The heading of a line describes how close the matrices of all its clients are to permutations: in a permutation the
    largest entry of each row and column is 1, and all rows and columns sum to 1.
    """
    lines = [
        (row, column, alignment)
        for column in results.columns
        for row in results.rows(column)
        if (alignment := _of_runs(results, row, column)) is not None
    ]
    if not lines:
        return None
    from matplotlib.figure import Figure

    several = len({row.label for row, _, _ in lines}) > 1
    figure = Figure(figsize=(2.1 * SHOWN + 0.6, 2.9 * len(lines)), dpi=150, layout="constrained")
    for part, (row, column, alignment) in zip(
        figure.subfigures(len(lines), 1, squeeze=False)[:, 0], lines, strict=True
    ):
        title = f"{column.title}, {row.label}" if several else column.title
        part.suptitle(f"{title}\n{in_words(alignment.matrices)}", fontsize=8.5)
        axes = part.subplots(1, SHOWN, squeeze=False)[0]
        count = len(alignment.owners)
        chosen = np.unique(np.linspace(0, count - 1, min(SHOWN, count)).round().astype(int))
        for axis in axes[len(chosen) :]:
            axis.set_axis_off()
        for axis, index in zip(axes, chosen, strict=False):
            image = axis.imshow(alignment.matrices[index], cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
            axis.set_title(alignment.owners[index], fontsize=8)
            axis.set_xticks([])
            axis.set_yticks([])
        axes[0].set_ylabel("aligned feature", fontsize=7.5)
        axes[0].set_xlabel("own feature", fontsize=7.5)
        part.colorbar(image, ax=list(axes), shrink=0.75, pad=0.01).ax.tick_params(labelsize=6.5)
    return figure


def in_words(matrices: NDArray[np.float64]) -> str:
    """Describe how close matrices ``[owners, aligned, size]`` are to permutations."""
    row, column = (matrices.max(axis=axis) for axis in (2, 1))
    off = max(float(np.abs(matrices.sum(axis=axis) - 1).max()) for axis in (2, 1))
    return (
        f"{len(matrices)} clients; on average, the largest entry of a row is {row.mean():.2f}, of a column "
        f"{column.mean():.2f}; row and column sums within {off:.2g} of 1"
    )


def _of_runs(results: Results, row: RowTable, column: ColumnTable) -> _Alignment | None:
    """Return the alignment of the first seed that has one."""
    folders = [outcome.cell.path for outcome in results.at(row, column) if outcome.summary]
    file = next((folder / FILE for folder in folders if (folder / FILE).exists()), None)
    return None if file is None else _read(file)


def _read(file: Path) -> _Alignment:
    try:
        with np.load(file, allow_pickle=False) as content:
            alignment = _Alignment([str(owner) for owner in content["owners"]], content["matrices"].astype(float))
    except (KeyError, ValueError, OSError) as error:
        raise RunError(f"{file} has no owners and matrices ({error}); remove the run and run it again") from None
    if alignment.matrices.ndim != 3 or len(alignment.matrices) != len(alignment.owners):
        raise RunError(f"{file} has matrices {alignment.matrices.shape} for {len(alignment.owners)} owners")
    return alignment
