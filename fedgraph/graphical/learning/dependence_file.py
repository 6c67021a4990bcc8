"""What features depend on by a model, in files: as a table, and as a picture to look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgraph.support.atomic import replacing, write_atomically
from fedgraph.support.csv_text import as_csv

_INCHES = 0.22
"""Of a feature along a side of the picture."""


def write_dependencies(names: Sequence[str], strengths: Tensor, path: Path) -> None:
    """Write ``path`` with the endings ``.csv``, pairs from the strongest to the weakest, and ``.png``.

    strengths : ``[features, features]`` of :func:`fedgraph.graphical.learning.dependence.dependencies`, row: the
                predicted feature. Pairs of 0 are left out of the table.
    """
    values = strengths.double().cpu()
    order = values.flatten().argsort(descending=True, stable=True).tolist()
    pairs = [(names[place // len(names)], names[place % len(names)], values.flatten()[place].item()) for place in order]
    lines = [("feature", "depends on", "strength"), *((*pair, f"{size:.4g}") for *pair, size in pairs if size > 0)]
    write_atomically(path.with_suffix(".csv"), as_csv(lines).encode())
    with replacing(path.with_suffix(".png")) as temporary:
        _picture(names, values).savefig(temporary, format="png")


def _picture(names: Sequence[str], strengths: Tensor) -> Any:
    from matplotlib.figure import Figure

    side = 2.2 + _INCHES * len(names)
    figure = Figure(figsize=(side + 0.9, side), dpi=130, layout="constrained")
    axis = figure.subplots()
    # What depends on nothing is white.
    shown = torch.where(strengths > 0, strengths, torch.nan).clamp(max=1).numpy()
    image = axis.imshow(shown, cmap="YlGnBu", vmin=0, vmax=1, interpolation="nearest")
    axis.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_xlabel("depends on")
    axis.set_ylabel("feature")
    bar = figure.colorbar(image, ax=axis, shrink=0.6, pad=0.02)
    bar.set_label("standard deviations per standard deviation (1 or more: darkest)", fontsize=7)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)
    return figure
