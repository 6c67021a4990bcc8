"""What a network's predictions depend on, by its derivatives at rows of data.

That no path leads from one feature to another is enough for independence but not needed for it, and small normalised
paths mean nothing: derivatives tell.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedgraph.graphical.network.network import Network


class Derivatives(NamedTuple):
    """Of every predicted unit with respect to every unit, ``[clients, units, units]``: over the rows, the largest
    absolute value and the mean square."""

    largest: Tensor
    mean_square: Tensor


def derivatives(network: Network, parameters: Tensor, rows: Tensor) -> Derivatives:
    """At ``rows`` ``[clients, rows, units]``, with missing values at their means."""
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
    """Pairs of units between which the graph has no edge, those of one feature among them.

    Bool ``[units, units]``, row: the predicted one; with a leading client axis where clients have graphs of their own.
    """
    unit = network.schema.unit_feature
    return ~network.adjacency[..., unit, :][..., unit]


def violation(network: Network, found: Derivatives) -> Tensor:
    """The largest derivative between units that the graph forbids, ``[clients]``."""
    return (found.largest * forbidden_pairs(network)).amax((1, 2))


def dependencies(network: Network, parameters: Tensor, found: Derivatives) -> Tensor:
    """How much each feature depends on each other one, ``[clients, features, features]``, row: the predicted one.

    The root mean square derivative times the deviation of the input, as a part of the deviation of the output: for
    linear dependence between numbers, the standardised regression coefficient. Units of a feature count together.
    """
    state = network.state(parameters)
    shares = state["mean"] * (1 - state["mean"])
    variance = torch.where(network.heads.is_number, state["deviation"].square(), shares)
    moved = network.membership.T @ (found.mean_square * variance[:, None]) @ network.membership
    return (moved / (variance @ network.membership).clamp(min=1e-12)[:, :, None]).sqrt()


def read_graph(strengths: Tensor, threshold: float, density: float | None = None) -> Tensor:
    """Edges between features that depend on each other, by the mean of both directions (eq. 4 of the paper).

    Strengths and edges (bool, symmetric) are ``[..., features, features]``. Edges are pairs of at least ``threshold``;
    with ``density`` instead the strongest pairs, so many that they are this share of all.
    """
    features = strengths.shape[-1]
    upper = torch.triu_indices(features, features, offset=1)
    pairs = ((strengths + strengths.transpose(-1, -2)) / 2)[..., upper[0], upper[1]]
    if density is None:
        chosen = pairs >= threshold
    else:
        strongest = pairs.argsort(dim=-1, descending=True, stable=True)[..., : round(density * pairs.shape[-1])]
        chosen = torch.zeros_like(pairs, dtype=torch.bool).scatter(-1, strongest, True)
    graph = torch.zeros_like(strengths, dtype=torch.bool)
    graph[..., upper[0], upper[1]] = chosen
    return graph | graph.transpose(-1, -2)
