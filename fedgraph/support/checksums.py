"""Checksums of tensors in files, by which damage is seen when they are read.

A checksum is the CRC-32 of sums of 64-bit words, ten times as fast as that of the bytes. It is for accidents: who can
write a file can write its checksum too.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

METADATA = "fedgraph"
"""The one key of the metadata of a file: safetensors writes several keys in any order, and so other bytes each time."""

_CHECKSUM = "checksum"

DAMAGED = "its content does not fit its checksum: it is damaged"

_WORDS = 511
"""Words of a sum: an odd number, as 512 equal words may have the sum of zeros."""


def as_stored(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as safetensors takes them: in main memory, contiguous, none that shares memory."""
    stored: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, value in tensors.items():
        tensor = value.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        stored[name] = tensor.clone() if place in taken else tensor
        taken.add(place)
    return stored


def with_checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a file, with the checksum of both, under one key."""
    return {METADATA: json.dumps({**metadata, _CHECKSUM: _checksum_of(tensors, metadata)})}


def verified(tensors: Mapping[str, Tensor], stored: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata without the checksum. Raises ValueError if a file is damaged.

    Files of older versions have no checksum, and are not checked.
    """
    if METADATA not in stored:
        return dict(stored)
    metadata = json.loads(stored[METADATA])
    if not isinstance(metadata, dict) or metadata.pop(_CHECKSUM, None) != _checksum_of(tensors, metadata):
        raise ValueError(DAMAGED)
    return metadata


def _checksum_of(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    total = zlib.crc32(json.dumps(dict(metadata), sort_keys=True).encode())
    for name in sorted(tensors):
        total = checksum(as_bytes(tensors[name]), zlib.crc32(described(name, tensors[name]), total))
    return f"{total:08x}"


def checksum(content: NDArray[np.uint8], start: int = 0) -> int:
    """Return the checksum of bytes, continued from that of others."""
    whole = len(content) - len(content) % (8 * _WORDS)
    sums = content[:whole].view("<u8").reshape(-1, _WORDS).sum(1, dtype=np.uint64)
    return zlib.crc32(content[whole:].data, zlib.crc32(sums.data, start))


def as_bytes(tensor: Tensor) -> NDArray[np.uint8]:
    """Return the bytes of a contiguous tensor, not copied."""
    # Axes of length 1 may have any stride, with which a tensor has no view of another type.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()


def described(name: str, tensor: Tensor) -> bytes:
    """Return name, type and shape of a tensor, which its checksum covers too."""
    return f"{name} {tensor.dtype} {list(tensor.shape)}".encode()
