"""k-of-n secret sharing of quantised embeddings (Shamir, Communications of the ACM 1979; F3, UAI 2023, section 5).

The secret is the value at 0 of a random polynomial of degree k - 1; the share of aggregator j is its value at j. Sums
of shares, and products of shares with public whole numbers, are shares of the sums and products of the secrets.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from fedgraph.privacy.noise.entropy import random_integers
from fedgraph.privacy.secret.field import PRIME, add, from_signed, multiply, random_elements, to_signed
from fedgraph.support.errors import DataError, RunError
from fedgraph.support.settings import Settings


class ShareSettings(Settings):
    """Secret sharing of embeddings among aggregators.

    Attributes
    ----------
    aggregators     : number of nodes that hold shares, n. With k + 1 it is found out if one of them computes something
                      else; with k + 2 the run continues without it, if ``on-missing = "skip"``.
    threshold       : number of them whose shares together reveal the embedding, and are needed for a result, k.
    fractional_bits : bits after the point that are kept of an embedding's numbers.
    random_bits     : random bits below those. They keep exact results from revealing more than rounded ones would.
    largest         : largest magnitude of an embedding's numbers; larger ones are refused. The smaller, the more bits
                      are left for the graph's weights, and the smaller is the error.
    map_bits        : bits after the point that are kept of the first layer's weights; the graph's get at least these,
                      and all that the field has room for. More make the error smaller, if ``largest`` leaves room.
    """

    aggregators: int = Field(default=3, ge=2, le=1000)
    threshold: int = Field(default=2, ge=2)
    fractional_bits: int = Field(default=10, ge=0, le=40)
    random_bits: int = Field(default=20, ge=0, le=40)
    largest: float = Field(default=16.0, gt=0, le=2.0**19)
    map_bits: int = Field(default=9, ge=1, le=24)

    @field_validator("threshold")
    @classmethod
    def _within(cls, value: int, info: ValidationInfo) -> int:
        if value > info.data.get("aggregators", value):
            raise ValueError(f"{value} shares are needed, but there are only {info.data['aggregators']} aggregators")
        return value

    @field_validator("random_bits")
    @classmethod
    def _bits_in_all(cls, value: int, info: ValidationInfo) -> int:
        if info.data.get("fractional_bits", 0) + value > 40:
            raise ValueError("fractional-bits and random-bits together may be 40 at most")
        return value

    @property
    def scale(self) -> float:
        """The whole number that represents a 1."""
        return 2.0 ** (self.fractional_bits + self.random_bits)


def encode(embeddings: Tensor, settings: ShareSettings, generator: torch.Generator | None = None) -> Tensor:
    """Convert embeddings to elements of the field: rounded to ``2^-fractional_bits``, with random bits below.

    The number that an element represents differs from the embedding's by at most ``2^-fractional_bits``. Returns
    elements, int64 of the same shape. Raises DataError when a number is not finite, or larger than
    ``settings.largest``: nothing ever wraps around.

    Parameters
    ----------
    embeddings : Tensor
        ``[owners, samples, size]`` or any shape; float.
    settings : ShareSettings
        Bits, and the largest magnitude.
    generator : torch.Generator, optional
        For tests and simulations only; by default the bits come from the operating system.
    """
    embeddings = embeddings.double()
    if not bool(embeddings.isfinite().all()):
        raise DataError("an embedding to be shared has numbers that are not finite; check the local model's outputs")
    found = float(embeddings.abs().max()) if embeddings.numel() else 0.0
    if found > settings.largest:
        raise DataError(
            f"an embedding to be shared has a number of magnitude {found:g}, but 'largest' is {settings.largest:g}; "
            "raise 'largest', or scale or clip the embeddings"
        )
    rounded = (embeddings * 2.0**settings.fractional_bits).round().long()
    low = random_integers(embeddings.shape, settings.random_bits, generator)
    centre = (1 << settings.random_bits) >> 1
    return from_signed((rounded << settings.random_bits) + low - centre)


def decode(elements: Tensor, scale: float) -> Tensor:
    """Return the signed numbers of elements over ``scale``, float64; for embeddings ``settings.scale``."""
    return to_signed(elements).double() / scale


def split(secret: Tensor, shares: int, threshold: int, generator: torch.Generator | None = None) -> Tensor:
    """Split every element into shares.

    Fewer than ``threshold`` shares of a secret are uniform and independent of it. Returns ``[shares, ...]``; share j
    belongs to the aggregator at point j + 1.

    Parameters
    ----------
    secret : Tensor
        Elements, int64 of any shape.
    shares : int
        Number of aggregators, n.
    threshold : int
        Number of shares that suffice to reconstruct the secret, k.
    generator : torch.Generator, optional
        For tests only; by default the polynomials come from the operating system.
    """
    coefficients = random_elements((threshold - 1, *secret.shape), generator)
    values = []
    for point in range(1, shares + 1):
        value = torch.zeros_like(secret)
        for coefficient in reversed(coefficients):
            value = multiply(add(value, coefficient), point)
        values.append(add(value, secret))
    return torch.stack(values)


def reconstruct(shares: Tensor, points: Sequence[int], threshold: int) -> Tensor:
    """Reconstruct secrets from ``threshold`` or more shares; those beyond the threshold check the others.

    Returns elements ``[...]``. Raises RunError when there are too few shares, two of one aggregator, or contradictory
    shares.

    Parameters
    ----------
    shares : Tensor
        ``[given, ...]``, shares of secrets or of linear functions of them.
    points : sequence of int
        Aggregator of each share, counted from 1.
    threshold : int
        Number of shares that are needed, k.
    """
    if len(points) != len(shares) or len(set(points)) != len(points) or any(not 0 < point < PRIME for point in points):
        raise RunError(f"{len(shares)} shares came for the aggregators {list(points)}; each may give one share")
    if len(points) < threshold:
        raise RunError(f"{threshold} shares are needed, but only {len(points)} aggregators answered: {list(points)}")
    contradiction = _contradiction(shares, points, threshold)
    if contradiction is not None:
        raise RunError(
            f"the shares of the aggregators {contradiction} contradict each other (numbers are those of the names in "
            f"order): one of them computed something else or was tampered with; with {threshold + 2} or more, it would "
            "be known which, if only one did"
        )
    return _at(0, shares[:threshold], points[:threshold])


def odd_one_out(shares: Tensor, points: Sequence[int], threshold: int) -> int | None:
    """Return the place of the one share that all others contradict, while they agree with each other.

    Shares are a Reed-Solomon code: with two shares more than needed, one error can be located. None if no share
    contradicts, if shares are fewer, or if more than one of them is wrong.

    Parameters
    ----------
    shares, points, threshold
        As for :func:`reconstruct`.
    """
    if len(points) < threshold + 2 or _contradiction(shares, points, threshold) is None:
        return None
    for place in range(len(points)):
        others = [other for other in range(len(points)) if other != place]
        if _contradiction(shares[others], [points[other] for other in others], threshold) is None:
            return place
    return None


def _contradiction(shares: Tensor, points: Sequence[int], threshold: int) -> list[int] | None:
    """Aggregators whose shares do not lie on one polynomial; None when all do."""
    used, first = shares[:threshold], points[:threshold]
    for share, point in zip(shares[threshold:], points[threshold:], strict=True):
        if not torch.equal(_at(point, used, first), share):
            return sorted([*first, point])
    return None


def _at(where: int, shares: Tensor, points: Sequence[int]) -> Tensor:
    """Evaluate the polynomial through ``shares`` at ``points``, at ``where``; Lagrange."""
    value = torch.zeros_like(shares[0])
    for share, point in zip(shares, points, strict=True):
        weight = 1
        for other in points:
            if other != point:
                weight = weight * (where - other) * pow(point - other, -1, PRIME) % PRIME
        value = add(value, multiply(share, weight))
    return value
