"""Randomness that depends only on (seed, purpose, client, round), not on packing, order or grid.

Generators keyed by these, and hashing of integers to random numbers: tensor operations for all clients, identical on
every device.
"""

from __future__ import annotations

import hashlib
from numbers import Integral
from typing import Any

import torch
from torch import Tensor


def derive_seed(seed: int, *key: str | int) -> int:
    """Return a 63-bit seed that depends only on ``seed`` and every part of ``key``."""
    text = "\x1f".join([str(seed), *(f"{type(part).__name__}:{part}" for part in key)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *key: str | int) -> torch.Generator:
    """Return a new CPU generator for one purpose, e.g. ``generator(seed, "batches", client, round)``."""
    return torch.Generator().manual_seed(derive_seed(seed, *key))


def seed_of(random_state: Any) -> int:
    """Return the seed for a ``random_state`` of scikit-learn: an int itself, or one drawn from it."""
    from sklearn.utils import check_random_state

    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def hashed(values: Tensor) -> Tensor:
    """Hash int64 to pseudo-random int64 by the finaliser of SplitMix64 (Steele et al., OOPSLA 2014)."""
    values = values + -7046029254386353131
    values ^= _shifted(values, 30)
    values *= -4658895280553007687
    values ^= _shifted(values, 27)
    values *= -7723592293110705685
    values ^= _shifted(values, 31)
    return values


def drawn(numbers: Tensor, which: int, count: int) -> Tensor:
    """Return draw number ``which`` of each of ``numbers``: int64, uniform on ``0..count-1``; ``count`` < 2^31."""
    return (_shifted(hashed(numbers ^ which), 32) * count) >> 32


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Logical right shift."""
    return (values >> bits).bitwise_and_((1 << (64 - bits)) - 1)
