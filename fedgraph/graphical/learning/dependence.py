"""The dependencies of a network's predictions, from derivatives at rows of data, as a table and a plot.

Derivatives are used since the absence of a path is sufficient but not necessary for independence, and the size of
normalised paths is not informative.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedgraph.graphical.network.network import Network
from fedgraph.support.csv_text import as_csv
from fedgraph.support.files import replacing, write_atomically


class Derivatives(NamedTuple):
    """Derivatives of every predicted unit with respect to every unit, over rows.

    largest     : largest absolute value, ``[clients, units, units]``, row: the predicted unit.
    mean_square : mean square, of the same shape.
    """

    largest: Tensor
    mean_square: Tensor


def derivatives(network: Network, parameters: Tensor, rows: Tensor) -> Derivatives:
    """Differentiate the predictions of models ``[clients, parameters]`` at rows ``[clients, rows, units]``.

    Missing values are replaced by their means. Returns the largest absolute values and mean squares over the rows.
    """
    mean = network.state(parameters)["mean"]
    inputs = torch.where(rows.isnan(), mean[:, None], rows).requires_grad_()
    predictions = network.forward(parameters, inputs).sum(1)
    found = [
        torch.autograd.grad(predictions[:, unit].sum(), inputs, retain_graph=True)[0]
        for unit in range(predictions.shape[1])
    ]
    largest = torch.stack([each.abs().amax(1) for each in found], 1)
    return Derivatives(largest, torch.stack([each.square().mean(1) for each in found], 1))


def forbidden_pairs(network: Network) -> Tensor:
    """Return the pairs of units without an edge in the graph, including those of the same feature.

    Bool ``[units, units]``, row: the predicted one; with a leading client axis where clients have their own graphs.
    """
    unit = network.schema.unit_feature
    return ~network.adjacency[..., unit, :][..., unit]


def violation(network: Network, found: Derivatives) -> Tensor:
    """Return the largest derivative between units that the graph forbids, ``[clients]``."""
    return (found.largest * forbidden_pairs(network)).amax((1, 2))


def dependencies(network: Network, parameters: Tensor, found: Derivatives) -> Tensor:
    """Compute the dependence of each feature on each other one.

    The root mean square derivative times the deviation of the input, as a part of the deviation of the output: for
    linear dependence between numbers, the standardised regression coefficient. Units of a feature count together.
    Returns ``[clients, features, features]``, row: the predicted feature.
    """
    state = network.state(parameters)
    shares = state["mean"] * (1 - state["mean"])
    variance = torch.where(network.heads.is_number, state["deviation"].square(), shares)
    moved = network.membership.T @ (found.mean_square * variance[:, None]) @ network.membership
    return (moved / (variance @ network.membership).clamp(min=1e-12)[:, :, None]).sqrt()


def read_graph(strengths: Tensor, threshold: float) -> Tensor:
    """Return the edges between features that depend on each other, by the mean of both directions (eq. 4 of the paper).

    Strengths and edges (bool, symmetric) are ``[..., features, features]``. Edges are pairs of at least ``threshold``.
    """
    mean = (strengths + strengths.transpose(-1, -2)) / 2
    return (mean >= threshold) & ~torch.eye(strengths.shape[-1], dtype=torch.bool, device=strengths.device)


_INCHES = 0.22
"""Size of a feature along a side of the picture."""


def write_dependencies(names: Sequence[str], strengths: Tensor, path: Path) -> None:
    """Write dependencies as a table, with pairs from the strongest to the weakest, and as a picture.

    Parameters
    ----------
    names : sequence of str
        Names of the features.
    strengths : Tensor
        ``[features, features]`` of :func:`fedgraph.graphical.learning.dependence.dependencies`, row: the predicted
        feature. Pairs of 0 are left out of the table.
    path : Path
        Written with the endings ``.csv`` and ``.png``.
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
    # Pairs without dependence are white.
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
