"""Distances and similarities between all pairs of rows, such as the clients' models, and attention by distance.

Attention is a softmax of distances as in Ji et al., Learning Private Neural Language Modeling with Attentive
Aggregation (IJCNN 2019), eq. 4. Nothing here has gradients.

All but absolute distances are matrix products. No tensor ``[n, m, parameters]`` is made, and apart from the result only
a few hundred MiB are needed. On a CPU all cores share the work; results are bitwise identical for any number of cores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedgraph.support.errors import FedgraphError
from fedgraph.support.threads import column_blocks, over_blocks

_TILE_ROWS = 512
_SPANS = 8
"""Number of parts into which the columns are cut for the cores to share."""

_BLOCK_ENTRIES, _NARROWEST = 2**22, 512
"""Columns that are multiplied at once: their sum is in the precision of the product, sums of blocks are in float64."""

_NEAR = 1 / 16
"""Squared distances below this fraction of the two squared norms are recomputed in float64, as float32 loses digits."""


def squared_distances(rows: Tensor, others: Tensor | None = None) -> Tensor:
    """Compute squared Euclidean distances between all pairs of rows.

    Models of clients lie close together, where ``|x|^2 + |y|^2 - 2 x.y`` loses all digits. So rows are first centred at
    their mean, and where even then a pair is much closer than its norms, such as within one of several clusters, the
    product is computed in float64. For float32 input the relative error is below 1e-5 for pairs whose distance is more
    than 1/10,000 of their distance from the mean; for closer pairs the error is below 1e-13 of the square of the
    latter. Returns ``|rows[i] - others[j]|^2``, ``[n, m]``; without ``others`` symmetric with a diagonal of zeros.
    Raises FedgraphError when the shapes do not fit.

    Parameters
    ----------
    rows : Tensor
        ``[n, parameters]``.
    others : Tensor, optional
        ``[m, parameters]``; by default the rows themselves.
    """
    _check(rows, others)
    rows = _floating(rows)
    centre = rows.mean(dim=0) if len(rows) else rows.new_zeros(rows.shape[1])

    def distances(tile: Tensor, second: Tensor) -> Tensor:
        gram, tile_norms, norms = _gram(tile, second, centre, rows.dtype)
        sizes = tile_norms[:, None] + norms
        result = sizes - 2 * gram
        near = result < _NEAR * sizes
        if others is None:
            near.fill_diagonal_(False)
        if rows.dtype != torch.float64 and bool(near.any()):
            gram, tile_norms, norms = _gram(tile, second, centre, torch.float64)
            result = tile_norms[:, None] + norms - 2 * gram
        return result.clamp_(min=0)

    result = _in_tiles(rows, others, distances)
    if others is None:
        result.fill_diagonal_(0)
    return result


def absolute_distances(rows: Tensor) -> Tensor:
    """Compute absolute distances ``sum_k |rows[i, k] - rows[j, k]|`` between all pairs of rows ``[n, parameters]``.

    Returns float64 ``[n, n]``, summed in float64, symmetric with a diagonal of zeros. Raises FedgraphError when
    ``rows`` is not a matrix.
    """
    _check(rows, None)
    count, columns = rows.shape

    def part(block: slice) -> Tensor:
        own = rows[:, block].double()
        return torch.cdist(own, own, p=1)

    parts = over_blocks(part, column_blocks(count, columns, _BLOCK_ENTRIES, _NARROWEST), count * count * columns)
    return sum(parts, rows.new_zeros(count, count, dtype=torch.float64))


def cosine_similarity(rows: Tensor, others: Tensor | None = None) -> Tensor:
    """Compute the cosine similarity ``rows[i].others[j] / (|rows[i]| |others[j]|)`` of all pairs of rows.

    The absolute error is below 1e-6: to distinguish small angles, use :func:`squared_distances` of unit vectors.
    Returns ``[n, m]``; 0 for a row of zeros. Without ``others`` symmetric, with ones on the diagonal. Raises
    FedgraphError when the shapes do not fit.

    Parameters
    ----------
    rows, others : Tensor
        As in :func:`squared_distances`.
    """
    _check(rows, others)
    lengths = torch.linalg.vector_norm(_floating(rows), dim=1)
    if others is None:
        similarity = (_products(rows, None) / _divisors(lengths, lengths)).clamp(-1, 1)
        return similarity.masked_fill(torch.diag(lengths > 0), 1.0)
    other_lengths = torch.linalg.vector_norm(_floating(others), dim=1)
    return (_products(rows, others) / _divisors(lengths, other_lengths)).clamp(-1, 1)


def attention_from_distances(distances: Tensor, temperature: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Compute attention weights ``softmax_j(-distances[i, j] / temperature)``.

    Returns ``[n, m]``. Rows sum to one; a row without any allowed pair is zero. Raises FedgraphError for a temperature
    of 0 and a mask of another shape.

    Parameters
    ----------
    distances : Tensor
        ``[n, m]``.
    temperature : float
        Above 0, closer rows get more weight; below 0, farther rows do. Ji et al. use -1, for a server that moves
        towards its clients by ``sum_j weight_j (client_j - server)``.
    mask : Tensor, optional
        bool ``[n, m]``, the pairs that may have weight; all by default.
    """
    if temperature == 0 or math.isnan(temperature):
        raise FedgraphError(f"the temperature of attention is not 0; got {temperature}")
    return _softmax(-distances / temperature, mask)


def _softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return scores.softmax(dim=1)
    if mask.shape != scores.shape:
        raise FedgraphError(f"a mask {list(mask.shape)} does not fit attention weights {list(scores.shape)}")
    listens = mask.any(dim=1, keepdim=True)
    # A softmax over nothing would be NaN.
    return scores.masked_fill(~mask & listens, -math.inf).softmax(dim=1) * mask


def _check(rows: Tensor, others: Tensor | None, what: str = "others") -> None:
    if rows.ndim != 2 or (others is not None and (others.ndim != 2 or others.shape[1] != rows.shape[1])):
        second = "" if others is None else f" and {what} {list(others.shape)}"
        raise FedgraphError(
            "pairs are compared between matrices with a row per client and equally many columns; got "
            f"{list(rows.shape)}{second}"
        )


def _divisors(lengths: Tensor, others: Tensor) -> Tensor:
    """Return ``lengths[i] others[j]``, or 1 where that is 0."""
    first, second = (torch.where(values > 0, values, torch.ones_like(values)) for values in (lengths, others))
    return first[:, None] * second


def _products(rows: Tensor, others: Tensor | None) -> Tensor:
    """Return ``rows @ others.T``, ``[n, m]``."""
    rows = _floating(rows)
    return _in_tiles(rows, others, lambda tile, second: _gram(tile, second, None, rows.dtype)[0])


def _floating(rows: Tensor) -> Tensor:
    return rows if rows.dtype == torch.float64 else rows.float()


def _in_tiles(rows: Tensor, others: Tensor | None, compare: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Compute ``compare(rows, others)``, some rows at a time; of a symmetric matrix only the upper half is computed."""
    second = rows if others is None else others.to(rows.dtype)
    result = rows.new_empty(len(rows), len(second))
    for start in range(0, len(rows), _TILE_ROWS):
        tile = slice(start, min(start + _TILE_ROWS, len(rows)))
        if others is not None:
            result[tile] = compare(rows[tile], second)
            continue
        part = compare(rows[tile], rows[start:])
        square = part[:, : part.shape[0]]
        square.copy_((square + square.T) / 2)
        result[tile, start:] = part
        result[start:, tile] = part.T
    return result


def _gram(rows: Tensor, others: Tensor, centre: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return dot products ``[n, m]`` about ``centre``, in ``dtype`` with sums in float64, and squared norms."""
    width = max(_NARROWEST, _BLOCK_ENTRIES // max(len(others), 1))
    # For a symmetric matrix, ``rows`` are the first of ``others``.
    leading = rows.data_ptr() == others.data_ptr() and rows.stride() == others.stride()

    def part(span: slice) -> tuple[Tensor, Tensor, Tensor]:
        parts = []
        for start in range(span.start, max(span.stop, span.start + 1), width):
            columns = slice(start, min(start + width, span.stop))
            second = _about(others[:, columns], centre, columns, dtype)
            first = second[: len(rows)] if leading else _about(rows[:, columns], centre, columns, dtype)
            second_norms = torch.linalg.vector_norm(second, dim=1).double().square()
            first_norms = second_norms[: len(rows)]
            if not leading:
                first_norms = torch.linalg.vector_norm(first, dim=1).double().square()
            parts.append(((first @ second.T).double(), first_norms, second_norms))
            if len(parts) == 2:
                parts = [_sum(parts)]
        return parts[0]

    columns = rows.shape[1]
    spans = column_blocks(1, columns, -(-columns // _SPANS) + 15, 1) if columns else [slice(0, 0)]
    products = len(rows) * len(others) * columns if rows.device.type == "cpu" else 0
    return _sum(over_blocks(part, spans, products))


def _about(block: Tensor, centre: Tensor | None, columns: slice, dtype: torch.dtype) -> Tensor:
    block = block.to(dtype)
    return block if centre is None else block - centre[columns].to(dtype)


def _sum(parts: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """Sum dot products and norms, into the first of them."""
    gram, first, second = parts[0]
    for other_gram, other_first, other_second in parts[1:]:
        gram += other_gram
        first = first + other_first
        second = second + other_second
    return gram, first, second
