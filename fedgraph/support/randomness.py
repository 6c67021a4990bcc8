"""Randomness that follows from (seed, purpose, client, round) alone, so that packing, order and grid change no result.

Generators keyed by these, and integers hashed to random numbers: single tensor operations for all clients, the same on
every device.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def derive_seed(seed: int, *key: str | int) -> int:
    """A 63-bit seed that depends on ``seed`` and every part of ``key``, and on nothing else."""
    text = "\x1f".join([str(seed), *(f"{type(part).__name__}:{part}" for part in key)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *key: str | int) -> torch.Generator:
    """A fresh CPU generator for one purpose, e.g. ``generator(seed, "batches", client, round)``."""
    return torch.Generator().manual_seed(derive_seed(seed, *key))


def hashed(values: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele et al., OOPSLA 2014): int64 in, as good as random int64 out."""
    values = values + -7046029254386353131
    values ^= _shifted(values, 30)
    values *= -4658895280553007687
    values ^= _shifted(values, 27)
    values *= -7723592293110705685
    values ^= _shifted(values, 31)
    return values


def drawn(numbers: Tensor, which: int, count: int) -> Tensor:
    """Draw number ``which`` of each of ``numbers``: int64 in ``0..count-1``, each as likely; ``count`` < 2^31."""
    return (_shifted(hashed(numbers ^ which), 32) * count) >> 32


def _shifted(values: Tensor, bits: int) -> Tensor:
    """A right shift that fills with zeros, as of unsigned numbers."""
    return (values >> bits).bitwise_and_((1 << (64 - bits)) - 1)
