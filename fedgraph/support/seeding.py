"""Random generators keyed by (seed, purpose, client, round), so that packing, order and grid change no result."""

from __future__ import annotations

import hashlib

import torch


def derive_seed(seed: int, *key: str | int) -> int:
    """A 63-bit seed that depends on ``seed`` and every part of ``key``, and on nothing else."""
    text = "\x1f".join([str(seed), *(f"{type(part).__name__}:{part}" for part in key)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *key: str | int) -> torch.Generator:
    """A fresh CPU generator for one purpose, e.g. ``generator(seed, "batches", client, round)``."""
    return torch.Generator().manual_seed(derive_seed(seed, *key))
