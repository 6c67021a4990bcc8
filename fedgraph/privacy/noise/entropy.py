"""Random integers and noise from the operating system's entropy, which is not predictable."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import torch
from torch import Tensor


def random_integers(shape: Sequence[int], bits: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw uniform integers below ``2 ** bits`` (at most 62 bits), int64 of ``shape``.

    They come from the operating system. A ``generator`` makes them reproducible and is only for tests and simulations:
    its seed would reveal them.
    """
    if generator is not None:
        return torch.randint(0, 2**bits, tuple(shape), generator=generator)
    count = math.prod(shape)
    if count == 0:
        return torch.zeros(tuple(shape), dtype=torch.int64)
    drawn = torch.frombuffer(bytearray(os.urandom(8 * count)), dtype=torch.int64)
    return (drawn & (2**bits - 1)).reshape(tuple(shape))


def standard_normal(shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
    """Draw independent standard normal numbers, by the inverse of their distribution function.

    Numbers beyond 8.2 never occur; their probability is 2e-16. ``generator`` is as for :func:`random_integers`. Returns
    float64 of ``shape``.
    """
    # 52 random bits plus a half are 53 bits, the precision of float64, and never 0 or 1.
    uniform = (random_integers(shape, 52, generator).double() + 0.5) * 2.0**-52
    return torch.special.ndtri(uniform)


def standard_laplace(shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
    """Draw independent numbers of the Laplace distribution with scale 1.

    Half the squared length of a pair of normal numbers is exponential, and the difference of two such is Laplace.
    ``generator`` is as for :func:`random_integers`. Returns float64 of ``shape``.
    """
    first, second = standard_normal((2, 2, *shape), generator).square().sum(1) / 2
    return first - second
