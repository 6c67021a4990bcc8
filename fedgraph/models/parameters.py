"""Many models of one architecture as a single matrix ``[clients, parameters]``, and back to named tensors.

Server-side mathematics (propagation, averages, distances) is one matrix operation on this form; the cohort trains it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's tensors in the order in which they lie in a row of the matrix.

    ``buffers`` are names of floating-point tensors that are not trained (running statistics); they lie behind the
    parameters proper, so that ``row[:num_trainable]`` is what an optimiser sees.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    buffers: frozenset[str] = frozenset()

    @classmethod
    def of(cls, state: Mapping[str, Tensor], buffers: Iterable[str] = ()) -> Layout:
        """The layout of one model's state dict (shapes without a client axis)."""
        kept = frozenset(buffers)
        order = [name for name in state if name not in kept] + [name for name in state if name in kept]
        return cls(tuple(order), tuple(tuple(state[name].shape) for name in order), kept)

    @property
    def sizes(self) -> list[int]:
        """Number of entries of each tensor."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def num_parameters(self) -> int:
        """Columns of the matrix, buffers included."""
        return sum(self.sizes)

    @property
    def num_trainable(self) -> int:
        """Leading columns that an optimiser changes."""
        return sum(size for name, size in zip(self.names, self.sizes, strict=True) if name not in self.buffers)

    def shapes_by_name(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor, whatever their order."""
        return dict(zip(self.names, self.shapes, strict=True))

    def part(self, names: Iterable[str]) -> Layout:
        """The layout of some of the tensors, in the order in which they lie here."""
        wanted = set(names)
        chosen = [(name, shape) for name, shape in zip(self.names, self.shapes, strict=True) if name in wanted]
        return Layout(tuple(name for name, _ in chosen), tuple(shape for _, shape in chosen), self.buffers & wanted)

    def columns(self, part: Layout) -> Tensor:
        """Columns of this matrix in which a part's tensors lie, int64 ``[part.num_parameters]``."""
        wanted = set(part.names)
        spans = torch.arange(self.num_parameters).split(self.sizes)
        return torch.cat([span for name, span in zip(self.names, spans, strict=True) if name in wanted])

    def flatten(self, stacked: Mapping[str, Tensor]) -> Tensor:
        """Named tensors ``[clients, *shape]`` -> one contiguous float32 matrix ``[clients, parameters]``."""
        clients = stacked[self.names[0]].shape[0]
        return torch.cat([stacked[name].reshape(clients, -1).float() for name in self.names], dim=1)

    def unflatten(self, matrix: Tensor) -> dict[str, Tensor]:
        """Matrix ``[clients, parameters]`` -> named views ``[clients, *shape]``; one split, so autograd is cheap."""
        parts = matrix.split(self.sizes, dim=1)
        return {
            name: part.unflatten(1, shape) if shape else part.squeeze(1)
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }

    def row(self, state: Mapping[str, Tensor]) -> Tensor:
        """One model's state dict -> its row ``[parameters]``; the inverse of ``row_state``."""
        return self.flatten({name: state[name][None] for name in self.names})[0]

    def row_state(self, row: Tensor) -> dict[str, Tensor]:
        """One model ``[parameters]`` -> its state dict, as contiguous tensors."""
        return {name: value[0].clone() for name, value in self.unflatten(row[None]).items()}


def flattened(state: Mapping[str, Tensor]) -> Tensor:
    """All numbers of one model's state dict in its order, float32 ``[numbers]``."""
    return torch.cat([value.detach().flatten().float() for value in state.values()])


def finite_rows(matrix: Tensor) -> Tensor:
    """Which rows of ``[clients, ...]`` hold neither NaN nor infinite values, bool ``[clients]``.

    One pass over everything: a finite sum has finite terms. Only other rows are looked at number by number.
    """
    rows = matrix.reshape(len(matrix), math.prod(matrix.shape[1:]))
    finite = rows.sum(dim=1).isfinite()
    suspects = (~finite).nonzero().flatten()
    finite[suspects] = rows[suspects].isfinite().all(dim=1)
    return finite


def weights_sha256(names: Sequence[str], matrix: Tensor) -> str:
    """SHA-256 over the clients' parameters in the order of their sorted names.

    Hashed per client: the UTF-8 name, a zero byte, then the row as little-endian float32.
    """
    digest = hashlib.sha256()
    rows = matrix.detach().cpu().to(torch.float32).contiguous().numpy().astype("<f4", copy=False)
    for position in sorted(range(len(names)), key=lambda i: names[i]):
        digest.update(names[position].encode() + b"\0")
        digest.update(rows[position].tobytes())
    return digest.hexdigest()
