"""The first layer of the fusion model on shares: alignment, weight and graph product in integers.

F3 (Ma, Hoang, Chen; UAI 2023), eqs. 6 to 8 up to the first bias. For the embeddings h_j of one sample::

    Y_i = sum_j S_ij W' P_j h_j        S = A_hat + I, projections M_j = W' P_j [hidden, size]

M and S are quantised separately and never multiplied. Their product reveals of h_j what M_j reveals, for any number of
graphs S; a quantised product would be another projection for every draw. What M reveals depends on its bits, which are
a setting; S gets the remaining bits of the field.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgraph.privacy.secret.field import LARGEST, matmul
from fedgraph.privacy.secret.shamir import ShareSettings, decode
from fedgraph.support.errors import ExperimentError, RunError

MARGIN = 6
"""Random bits that ``check_leaks`` requires in addition to those for exactness."""


_FINEST = 30
"""Maximum useful number of bits of S."""


@dataclass(frozen=True)
class FirstStage:
    """A public linear map in integers.

    Attributes
    ----------
    mixing : Tensor
        S of every graph draw, int64 ``[..., owners, owners]``, ``2^mixing_bits`` for a 1.
    projections : Tensor
        M, int64 ``[owners, hidden, size]``, ``2^map_bits`` for a 1; columns beyond an owner's size are zero.
    sizes : tuple of int
        Embedding size of every owner.
    map_bits, mixing_bits : int
        Bits after the point of M and S.
    """

    mixing: Tensor
    projections: Tensor
    sizes: tuple[int, ...]
    map_bits: int
    mixing_bits: int


def project(alignments: Tensor, weight: Tensor) -> Tensor:
    """Multiply the first weight with the alignments, ``M_j = W' P_j``.

    Returns M, ``[owners, hidden, size]``.

    Parameters
    ----------
    alignments : Tensor
        P, ``[owners, aligned, size]``.
    weight : Tensor
        W, ``[aligned, hidden]``.
    """
    return torch.einsum("ah,oas->ohs", weight, alignments)


def quantised(mixing: Tensor, projections: Tensor, sizes: Sequence[int], settings: ShareSettings) -> FirstStage:
    """Quantise the stage, such that it never wraps around for embeddings up to ``settings.largest``.

    S gets all remaining bits of the field. Raises ExperimentError, with the number of excess bits, when results could
    overflow the field, and RunError for non-finite weights.

    Parameters
    ----------
    mixing : Tensor
        A_hat + I, float ``[..., owners, owners]``.
    projections : Tensor
        float ``[owners, hidden, size]``; columns beyond an owner's ``sizes`` are dropped.
    sizes : sequence of int
        Embedding size of every owner.
    settings : ShareSettings
        Bits, and the largest embedding.
    """
    own = torch.arange(projections.shape[-1]) < torch.tensor(list(sizes))[:, None]
    projections = torch.where(own[:, None, :], projections.double(), 0.0)
    if not bool(mixing.isfinite().all()) or not bool(projections.isfinite().all()):
        raise RunError("the fusion model's first layer has weights that are not finite; it cannot be applied to shares")
    maps = (projections * 2.0**settings.map_bits).round()
    # Bound for the largest embedding, with a margin for rounding in float64.
    largest = maps.abs().sum(dim=-1) * (settings.largest * settings.scale + 2.0**settings.random_bits)
    room = LARGEST * (1 - 1e-9)
    mixing, bits = mixing.double(), settings.map_bits
    unrounded, rounding = float((mixing.abs() @ largest).max()), float(largest.sum(0).max()) / 2

    def whole(bits: int) -> Tensor:
        return (mixing * 2.0**bits).round_()

    def reach(bits: int) -> float:
        return float((whole(bits).abs_() @ largest).max())

    def fits(bits: int) -> bool:
        # Graphs are many and large: they are rounded only if rounding matters.
        about = unrounded * 2.0**bits
        return about + rounding <= room or (about - rounding <= room and reach(bits) <= room)

    if not fits(bits):
        excess = math.ceil(math.log2(reach(bits) / room))
        raise ExperimentError(
            f"results of the first layer on shares may be {excess} bits too long: lower map-bits (counts twice), "
            "fractional-bits, random-bits or largest"
        )
    while bits < _FINEST and fits(bits + 1):
        bits += 1
    return FirstStage(whole(bits).long(), maps.long(), tuple(sizes), settings.map_bits, bits)


def on_shares(mixing: Tensor, projections: Tensor, patterns: Tensor, shares: Tensor) -> Tensor:
    """Compute an aggregator's share of the stage's result.

    Returns elements ``[draws, owners, samples, hidden]``.

    Parameters
    ----------
    mixing : Tensor
        int64 ``[patterns, draws, owners, owners]``.
    projections : Tensor
        As in :class:`FirstStage`.
    patterns : Tensor
        Mixing of each sample, int64 ``[samples]``, which depends on the present owners.
    shares : Tensor
        The aggregator's shares of all owners' embeddings, ``[owners, samples, size]``; 0 for samples that an owner
        lacks, which is public, and in columns beyond its size.
    """
    _, draws, owners, _ = mixing.shape
    projected = matmul(shares, projections.transpose(1, 2))
    samples, hidden = projected.shape[1:]
    result = torch.zeros(draws, owners, samples, hidden, dtype=torch.int64)
    for number, graphs in enumerate(mixing):
        meet = (patterns == number).nonzero().flatten()
        mixed = matmul(projected[:, meet].flatten(1).T.contiguous(), graphs.flatten(0, 1).T)
        result[:, :, meet] = mixed.T.reshape(draws, owners, len(meet), hidden)
    return result


def outcome(elements: Tensor, stage: FirstStage, settings: ShareSettings) -> Tensor:
    """Decode the reconstructed outcome of the stage. Returns ``Y``, float64 of the shape of ``elements``."""
    return decode(elements, settings.scale * 2.0 ** (stage.map_bits + stage.mixing_bits))


def error_bound(stage: FirstStage, settings: ShareSettings) -> Tensor:
    """Return the largest error of ``outcome`` by quantisation, for embeddings up to ``largest``.

    With m = 2^-(map_bits + 1) and s = 2^-(mixing_bits + 1) of rounding in each weight and 2^-fractional_bits in each
    number of an embedding::

        sum_j  s |M_j| L  +  |S_ij| m d_j L  +  |S_ij| |M_j| 2^-fractional_bits

    where ``|M_j|`` (with m added per entry, as the unrounded one may be larger) sums a row's d_j magnitudes, L is
    ``largest``. Rounding errors average out: typical ones are some hundred times smaller. Returns float64 ``[...,
    owners, hidden]``.
    """
    m, s = 2.0 ** -(stage.map_bits + 1), 2.0 ** -(stage.mixing_bits + 1)
    largest, step = settings.largest, 2.0**-settings.fractional_bits
    size = torch.tensor(stage.sizes, dtype=torch.float64)[:, None]
    mixing = stage.mixing.abs().double() / 2**stage.mixing_bits
    rows = stage.projections.abs().sum(dim=-1).double() / 2**stage.map_bits
    unrounded = (s * (rows + m * size) * largest).sum(dim=0)
    return unrounded + mixing @ (m * size * largest + rows * step)


def check_leaks(
    projections: Sequence[Tensor], sizes: Sequence[int], settings: ShareSettings, names: Sequence[str]
) -> None:
    """Refuse stages whose outcomes together determine an owner's whole embedding of a sample.

    Two ways are checked. As many numbers may be revealed as the embedding has. And whole-number equations have fewer
    solutions than real ones: with L = prod of the non-zero singular values of an owner's stacked projections, solutions
    for the random bits lie on a lattice of determinant L at most in ``size - revealed`` dimensions, so that
    ``random_bits`` must exceed ``log2(L) / (size - revealed)`` for many of them to be left (by ``MARGIN`` here). That
    counts solutions on average; it is not a proof for every lattice. Raises ExperimentError when an embedding would be
    determined; the message names the owner, what is revealed and what to change. Raises TypeError when projections are
    not whole numbers: their ranks are not exact.

    Parameters
    ----------
    projections : sequence of Tensor
        Projections of all stages whose outcomes the server gets for the same sample, including earlier requests; int64
        ``[owners, hidden, size]`` each.
    sizes : sequence of int
        Sizes of the owners' embeddings.
    settings : ShareSettings
        With the number of random bits.
    names : sequence of str
        Names of the owners, for messages.
    """
    if any(each.dtype != torch.int64 for each in projections):
        raise TypeError("projections must be int64")
    for owner, (name, size) in enumerate(zip(names, sizes, strict=True)):
        matrix = _stacked(projections, owner, size)
        rank = _rank(matrix)
        if rank >= size:
            raise ExperimentError(
                f"the server would learn the whole embedding of owner '{name}': {rank} independent numbers out of "
                f"{size}, from {len(projections)} fusion models; use one whose [f3] hidden is below the length of "
                "embeddings, and fewer models on the same samples"
            )
        values = torch.linalg.svdvals(matrix.double())[:rank]
        needed = math.ceil(float(values.log2().sum()) / (size - rank)) + MARGIN
        if needed > settings.random_bits:
            raise ExperimentError(
                f"random-bits is {settings.random_bits}, but exact results for owner '{name}' ({rank} out of {size} "
                f"numbers at map-bits {settings.map_bits}) need {needed} for the rest to stay open; raise random-bits, "
                "lower map-bits, use a smaller hidden layer or fewer models on the same samples"
            )


def _stacked(projections: Sequence[Tensor], owner: int, size: int) -> Tensor:
    """Return an owner's projections of all stages, int64 ``[stages * hidden, size]``."""
    return torch.cat([each[owner, :, :size] for each in projections])


def _rank(matrix: Tensor) -> int:
    """Return the exact rank of a matrix of whole numbers, by elimination without fractions (Bareiss 1968)."""
    rows, rank, before = matrix.tolist(), 0, 1
    for column in range(matrix.shape[1]):
        pivot = next((row for row in range(rank, len(rows)) if rows[row][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        top = rows[rank]
        for row in rows[rank + 1 :]:
            factor = row[column]
            row[:] = [(top[column] * own - factor * above) // before for own, above in zip(row, top, strict=True)]
        before, rank = top[column], rank + 1
    return rank
