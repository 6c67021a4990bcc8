"""Lists of weighted edges in the canonical form of client graphs: sorted, without duplicates and zeros."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedgraph.support.errors import GraphError

_RELATIVE_TOLERANCE, _ABSOLUTE_TOLERANCE = 1e-5, 1e-7


def canonical(names: Sequence[str], edge_index: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Sort edges ``[2, E]`` by (row, column), drop duplicates and zero weights.

    Raises GraphError for duplicates with different weights.
    """
    keys = _keys(len(names), edge_index)
    keys, order = torch.sort(keys, stable=True)
    edge_index, weights = edge_index[:, order], weights[order]
    repeated = keys[1:] == keys[:-1]
    if bool(repeated.any()):
        conflict = repeated & (weights[1:] != weights[:-1])
        if bool(conflict.any()):
            at = int(conflict.nonzero()[0])
            row, column = edge_index[:, at].tolist()
            raise GraphError(
                f"the edge from '{names[row]}' to '{names[column]}' is given twice, with weights "
                f"{float(weights[at]):g} and {float(weights[at + 1]):g}; keep one of them"
            )
    keep = weights != 0
    keep[1:] &= ~repeated
    return edge_index[:, keep].contiguous(), weights[keep].contiguous()


def opposite_weights(num_clients: int, edge_index: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return for every canonical edge (i, j) the weight of (j, i), or 0, and whether it exists."""
    if weights.numel() == 0:
        return weights.clone(), torch.zeros(0, dtype=torch.bool)
    keys, wanted = _keys(num_clients, edge_index), _keys(num_clients, edge_index.flip(0))
    position = torch.searchsorted(keys, wanted).clamp(max=keys.numel() - 1)
    found = keys[position] == wanted
    return torch.where(found, weights[position], torch.zeros(())), found


def asymmetric(weights: Tensor, opposite: Tensor) -> Tensor:
    """Return which weights differ from the opposite by more than 1e-5 of the larger plus 1e-7 of the largest of all."""
    largest = weights.abs().max() if weights.numel() else 0.0
    tolerance = _RELATIVE_TOLERANCE * torch.maximum(weights.abs(), opposite.abs()) + _ABSOLUTE_TOLERANCE * largest
    return (weights - opposite).abs() > tolerance


def exactly_symmetric(names: Sequence[str], edge_index: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Make canonical edges exactly symmetric if they are within the tolerance.

    Raises GraphError, which names the worst pair of clients, otherwise.
    """
    opposite, found = opposite_weights(len(names), edge_index, weights)
    if torch.equal(weights, opposite):
        return edge_index, weights
    wrong = asymmetric(weights, opposite)
    if bool(wrong.any()):
        worst = int(((weights - opposite).abs() * wrong).argmax())
        row, column = edge_index[:, worst].tolist()
        raise GraphError(
            f"the graph is not symmetric: '{names[row]}' to '{names[column]}' weighs {float(weights[worst]):g} but "
            f"'{names[column]}' to '{names[row]}' weighs {float(opposite[worst]):g}; keep both by "
            "[graph] directed = true, or leave directed out and take the larger by symmetrise = true (in Python "
            "directed=True, symmetrised())"
        )
    weights = torch.where(weights == opposite, weights, (weights + opposite) / 2)
    edge_index = torch.cat([edge_index, edge_index[:, ~found].flip(0)], dim=1)
    return canonical(names, edge_index, torch.cat([weights, weights[~found]]))


def symmetrised(
    num_clients: int, edge_index: Tensor, weights: Tensor, combine: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Make canonical edges symmetric by combining both directions, 0 if missing."""
    opposite, found = opposite_weights(num_clients, edge_index, weights)
    weights = combine(weights, opposite)
    edge_index = torch.cat([edge_index, edge_index[:, ~found].flip(0)], dim=1)
    return edge_index, torch.cat([weights, weights[~found]])


def strongest(edge_index: Tensor, weights: Tensor, number: int) -> Tensor:
    """Return which edges are the ``number`` largest of their row (the first of ties) or self loops."""
    others = (edge_index[0] != edge_index[1]).nonzero().flatten()
    order = others[weights[others].argsort(descending=True, stable=True)]
    order = order[edge_index[0, order].argsort(stable=True)]
    rows = edge_index[0, order].contiguous()
    rank = torch.arange(len(rows)) - torch.searchsorted(rows, rows)
    kept = edge_index[0] == edge_index[1]
    kept[order] = rank < number
    return kept


def mirrored(num_clients: int, edge_index: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Complete an undirected list, with each pair in one or both directions, to both directions."""
    missing = ~torch.isin(_keys(num_clients, edge_index.flip(0)), _keys(num_clients, edge_index))
    edge_index = torch.cat([edge_index, edge_index[:, missing].flip(0)], dim=1)
    return edge_index, torch.cat([weights, weights[missing]])


def with_self_loops(
    num_clients: int, edge_index: Tensor, weights: Tensor, weight: float = 1.0, only: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Append a self loop of ``weight`` to each client without one, of ``only`` (a mask ``[N]``)."""
    lacking = torch.ones(num_clients, dtype=torch.bool) if only is None else only.clone()
    lacking[edge_index[0, edge_index[0] == edge_index[1]]] = False
    loops = lacking.nonzero().T.expand(2, -1)
    return torch.cat([edge_index, loops], dim=1), torch.cat([weights, torch.full((loops.shape[1],), float(weight))])


def by_row(num_clients: int, edge_index: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Sort edges by (row, column)."""
    order = _keys(num_clients, edge_index).argsort(stable=True)
    return edge_index[:, order].contiguous(), weights[order].contiguous()


def _keys(num_clients: int, edge_index: Tensor) -> Tensor:
    return edge_index[0] * num_clients + edge_index[1]
