"""Exact arithmetic of integers modulo the prime 2^61 - 1, on int64 tensors.

2^61 is 1 modulo the prime, so products are reduced by shifts. Elements are int64 from 0 to the prime minus one; signed
numbers up to half the prime are represented as usual, -x as prime - x.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgraph.privacy.noise.entropy import random_integers
from fedgraph.support.errors import FedgraphError, ReplyError

BITS = 61
PRIME = 2**BITS - 1
LARGEST = PRIME // 2
"""Largest magnitude of a signed number in the field."""

_EXACT_BITS = 53


def random_elements(shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
    """Draw uniform elements, int64 of ``shape``, from the operating system or, for tests, from a ``generator``."""
    drawn = random_integers(shape, BITS, generator)
    while bool((outside := drawn == PRIME).any()):
        drawn[outside] = random_integers((int(outside.sum()),), BITS, generator)
    return drawn


def from_signed(numbers: Tensor) -> Tensor:
    """Return the elements of signed integers. Raises FedgraphError for magnitudes above ``LARGEST``."""
    if numbers.numel() and int(torch.maximum(numbers.max(), -numbers.min())) > LARGEST:
        raise FedgraphError("a whole number is too large to be computed with modulo 2^61 - 1")
    return torch.where(numbers < 0, numbers + PRIME, numbers)


def to_signed(elements: Tensor) -> Tensor:
    """Return the signed integers of elements, int64 from ``-LARGEST`` to ``LARGEST``."""
    return torch.where(elements > LARGEST, elements - PRIME, elements)


def add(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a + b``, elements of the broadcast shape."""
    return _reduced(a + b)


def multiply(a: Tensor, b: Tensor | int) -> Tensor:
    """Return ``a b``, elements of the broadcast shape; ``b`` may be any Python int."""
    if isinstance(b, int):
        b = torch.tensor(b % PRIME)
    a_high, a_low = a >> 31, a & (2**31 - 1)
    b_high, b_low = b >> 31, b & (2**31 - 1)
    middle = a_high * b_low + a_low * b_high
    # a_high b_high 2^62 = 2 a_high b_high; middle 2^31 = (middle >> 30) 2^61 + ...; the sum stays below 2^63.
    shifted = (middle >> 30) + ((middle & (2**30 - 1)) << 31)
    return _reduced(a_low * b_low + 2 * a_high * b_high + shifted)


def matmul(elements: Tensor, integers: Tensor) -> Tensor:
    """Compute the exact matrix product ``elements @ integers`` in the field, batched as ``torch.matmul`` is.

    Elements are split into limbs for which fast float64 products with the integers are exact: every partial sum stays
    below 2^53 for any order of summation.

    elements : ``[..., rows, inner]``. integers : signed int64 ``[..., inner, columns]``, public, of a modest size.
    Raises FedgraphError when the magnitudes of a column of ``integers`` add up to 2^48 or more.
    """
    total = int(integers.abs().sum(dim=-2).max()) if integers.numel() else 0
    limb = _EXACT_BITS - total.bit_length()
    if limb < 5:
        raise FedgraphError(f"whole-number weights that add up to {total} are too large to be multiplied exactly")
    weights = integers.double()
    result: Tensor | None = None
    for shift in range(0, BITS, limb):
        part = ((elements >> shift) & (2**limb - 1)).double() @ weights
        part = _rotated(from_signed(part.long()), shift)
        result = part if result is None else _reduced(result + part)
    assert result is not None
    return result


def to_bytes(elements: Tensor) -> bytes:
    """Encode elements as little-endian 8-byte numbers, in order."""
    return elements.contiguous().numpy().astype("<i8", copy=False).tobytes()


def from_bytes(data: bytes, shape: Sequence[int]) -> Tensor:
    """Return the elements of ``shape`` that ``to_bytes`` encoded. Raises ReplyError for other ``data``."""
    expected = 8 * torch.Size(shape).numel()
    if len(data) != expected:
        raise ReplyError(f"shares of shape {tuple(shape)} take {expected} bytes, but {len(data)} came")
    if not data:
        return torch.zeros(tuple(shape), dtype=torch.int64)
    elements = torch.frombuffer(bytearray(data), dtype=torch.int64).reshape(tuple(shape))
    if bool(((elements < 0) | (elements >= PRIME)).any()):
        raise ReplyError("numbers that came as shares are no elements of the field; the sender works differently")
    return elements


def _reduced(x: Tensor) -> Tensor:
    """Return the element for ``0 <= x < 2^63``."""
    x = (x & PRIME) + (x >> BITS)
    return torch.where(x >= PRIME, x - PRIME, x)


def _rotated(x: Tensor, shift: int) -> Tensor:
    """Return ``x 2^shift``: modulo 2^61 - 1 that is a rotation of the 61 bits."""
    if shift == 0:
        return x
    return ((x & (2 ** (BITS - shift) - 1)) << shift) | (x >> (BITS - shift))
