"""Figures 3 and 4 of Ma et al. 2023, drawn from the run folders of their tables."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph.reproduce import Results, calm, palette, panels
from fedgraph.support.errors import RunError

BINS = 10
"""Few: the predictions of n clients for two classes have about n / 2 possible values, which are far apart near 0."""

SHOWN = 4
"""Number of clients in a picture of alignments."""


def entropies(results: Results) -> Any:
    """Draw figure 3: the share of samples by the entropy (in bits) of the clients' own predictions.

    All splits and seeds are together; at 0 bits all clients agree; the dotted line is the mean.
    """
    found = {
        title: np.concatenate([_entropies(folder / "entropies.csv") for folder in folders])
        for title, folders in results.folders_with("entropies.csv").items()
    }
    if not found:
        return None
    figure, (axis,) = panels(1, width=5.4, height=3.6)
    # Two classes have at most one bit; more classes need more room.
    edges = np.linspace(0.0, max(1.0, *(float(values.max()) for values in found.values())), BINS + 1)
    for (title, values), (colour, style) in zip(found.items(), palette(len(found)), strict=True):
        shares = 100 * np.histogram(values, edges)[0] / len(values)
        label = f"{title} (mean {values.mean():.2f})"
        axis.stairs(shares, edges, color=colour, linestyle=style, linewidth=1.6, label=label, zorder=3)
        axis.stairs(shares, edges, color=colour, alpha=0.1, fill=True, zorder=2)
        axis.axvline(values.mean(), color=colour, linewidth=1, linestyle=":", zorder=3)
    axis.set_xlim(edges[0], edges[-1])
    axis.set_ylim(bottom=0)
    calm(axis, "", "entropy of the clients' predicted labels (bits); dotted: mean", "share of samples (%)")
    figure.legend(loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    return figure


def _entropies(file: Path) -> NDArray[np.float64]:
    with file.open(newline="", encoding="utf-8") as stream:
        lines = list(csv.DictReader(stream))
    try:
        return np.array([float(line["entropy"]) for line in lines])
    except (KeyError, ValueError) as error:
        raise RunError(
            f"{file} needs a column 'entropy' of numbers ({error}); remove the run and run it again"
        ) from None


def permutations(results: Results) -> Any:
    """Draw figure 4: the alignment matrices of a few clients, evenly taken from all, of the first seed.

    The heading of a line says how close the matrices of all its clients are to permutations: in a permutation the
    largest entry of each row and column is 1, and all rows and columns sum to 1.
    """
    lines = {
        title: _alignment(folders[0] / "alignment.npz")
        for title, folders in results.folders_with("alignment.npz").items()
    }
    if not lines:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.1 * SHOWN + 0.6, 2.9 * len(lines)), dpi=150, layout="constrained")
    parts = figure.subfigures(len(lines), 1, squeeze=False)[:, 0]
    for part, (title, (owners, matrices)) in zip(parts, lines.items(), strict=True):
        part.suptitle(f"{title}\n{_nearness(matrices)}", fontsize=8.5)
        axes = part.subplots(1, SHOWN, squeeze=False)[0]
        chosen = np.unique(np.linspace(0, len(owners) - 1, min(SHOWN, len(owners))).round().astype(int))
        for axis in axes[len(chosen) :]:
            axis.set_axis_off()
        for axis, index in zip(axes, chosen, strict=False):
            image = axis.imshow(matrices[index], cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
            axis.set_title(owners[index], fontsize=8)
            axis.set(xticks=[], yticks=[])
        axes[0].set_ylabel("aligned feature", fontsize=7.5)
        axes[0].set_xlabel("own feature", fontsize=7.5)
        part.colorbar(image, ax=list(axes), shrink=0.75, pad=0.01).ax.tick_params(labelsize=6.5)
    return figure


def _nearness(matrices: NDArray[np.float64]) -> str:
    """Describe how close matrices ``[owners, aligned, size]`` are to permutations."""
    row, column = (matrices.max(axis=axis) for axis in (2, 1))
    off = max(float(np.abs(matrices.sum(axis=axis) - 1).max()) for axis in (2, 1))
    return (
        f"{len(matrices)} clients; on average, the largest entry of a row is {row.mean():.2f}, of a column "
        f"{column.mean():.2f}; row and column sums within {off:.2g} of 1"
    )


def _alignment(file: Path) -> tuple[list[str], NDArray[np.float64]]:
    """Return the owners, and their matrices ``[owners, aligned, size]``."""
    try:
        with np.load(file, allow_pickle=False) as content:
            owners, matrices = content["owners"].tolist(), content["matrices"].astype(np.float64)
    except (KeyError, ValueError, OSError) as error:
        raise RunError(f"{file} has no owners and matrices ({error}); remove the run and run it again") from None
    if matrices.ndim != 3 or len(matrices) != len(owners):
        raise RunError(f"{file} has matrices {matrices.shape} for {len(owners)} owners")
    return owners, matrices
