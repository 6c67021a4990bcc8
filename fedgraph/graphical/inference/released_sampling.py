"""The sampling procedure of the authors' program for neural graphical models, for all rows at once.

Every row fixes its features one after the other, in breadth-first order of the graph from a random one. The first is
uniform over its range or a category by its share; then all others are inferred by the gradient method, a number gets
uniform noise of up to 1 % of itself, and a category is drawn from its clipped and normalised scores.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, section 2.4; Shrivastava, Chajewska: Neural
Graphical Models (ECSQARU 2023), section 3.3. What differs here: a graph may fall into pieces, of which each starts like
the first; a range is that of the units, 0 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgraph.graphical.network.heads import normalised, sample_one_hot
from fedgraph.graphical.network.network import Network

NOISE = 0.01
"""Largest share of its value by which a number is changed."""

_BETAS, _EPSILON = (0.9, 0.999), 1e-8


def released_draw(
    network: Network,
    parameters: Tensor,
    given: Tensor,
    random: Sequence[torch.Generator],
    steps: int,
    learning_rate: float,
) -> Tensor:
    """Fill what is NaN in ``given`` ``[clients, rows, units]``; ``random`` contains one generator for each client."""
    rows = given.shape[1]
    graph = network.linked
    orders, roots = breadth_first_orders(graph)
    start = torch.stack([torch.randint(len(orders), (rows,), generator=one) for one in random])
    owner, is_number = network.schema.unit_feature, network.heads.is_number[:, None]
    mean = network.state(parameters)["mean"][:, :, None]
    units, expected = given.transpose(1, 2), mean.expand(-1, -1, rows)
    for step in range(len(graph)):
        uniform = torch.stack([torch.rand(1, rows, generator=one) for one in random])
        chosen = (orders[start, step][:, None] == owner[:, None]) & units.isnan()
        is_first = roots[start, step][:, None]
        number = torch.where(is_first, uniform, expected * (1 + NOISE * (2 * uniform - 1)))
        shares = normalised(torch.where(is_first, mean, expected), owner)
        category = sample_one_hot(shares, owner, uniform.expand(-1, len(graph), -1))
        units = torch.where(chosen, torch.where(is_number, number, category), units)
        if step + 1 < len(graph):
            expected = inferred(network, parameters, units.transpose(1, 2), steps, learning_rate).transpose(1, 2)
    return units.transpose(1, 2)


def inferred(network: Network, parameters: Tensor, units: Tensor, steps: int, learning_rate: float) -> Tensor:
    """Predict what is NaN in ``units`` ``[clients, rows, units]``: Adam moves it, from the means, until the network
    reproduces the known features as well as it can.

    Adam is written out, as each row keeps the iterate that is its own best.
    """
    unknown = units.isnan()
    mean = network.state(parameters)["mean"][:, None]
    values = torch.where(unknown, mean, units)
    known, best = values, values
    least = values.new_full(values.shape[:2], torch.inf)
    first, second = torch.zeros_like(values), torch.zeros_like(values)
    for step in range(1, steps + 1):
        values = values.detach().requires_grad_()
        errors = (network.forward(parameters, values) - known).square().masked_fill(unknown, 0.0).mean(2)
        gradient = torch.autograd.grad(errors.sum(), values)[0].masked_fill_(~unknown, 0.0)
        with torch.no_grad():
            better = errors < least
            least = torch.where(better, errors, least)
            best = torch.where(better[..., None], values, best)
            first.lerp_(gradient, 1 - _BETAS[0])
            second.lerp_(gradient.square(), 1 - _BETAS[1])
            rate = learning_rate / (1 - _BETAS[0] ** step)
            values = values - rate * first / ((second / (1 - _BETAS[1] ** step)).sqrt() + _EPSILON)
    return torch.where(unknown, best.detach(), units)


def breadth_first_orders(adjacency: Tensor) -> tuple[Tensor, Tensor]:
    """Return a breadth-first order of all features from each of them, and which positions start a piece of the graph.

    The orders are int64 ``[features, features]``, the starts bool of the same shape. Where the graph falls into pieces,
    the next piece begins with its first feature.
    """
    features = len(adjacency)
    orders, roots = [], []
    for start in range(features):
        order: list[int] = []
        is_root: list[bool] = []
        reached: set[int] = set()
        for root in [start, *range(features)]:
            if root in reached:
                continue
            reached.add(root)
            queue = [root]
            for feature in queue:
                new = [other for other in adjacency[feature].nonzero()[:, 0].tolist() if other not in reached]
                reached.update(new)
                queue += new
            order += queue
            is_root += [True] + [False] * (len(queue) - 1)
        orders.append(order)
        roots.append(is_root)
    return torch.tensor(orders), torch.tensor(roots)
