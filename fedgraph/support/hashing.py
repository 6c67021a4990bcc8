"""Random numbers as a hash of integers: single tensor operations for all clients, the same on every device."""

from __future__ import annotations

from torch import Tensor


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
