"""Many models of one architecture as a single matrix ``[clients, parameters]``, and back to named tensors.

Computations on the server (propagation, averages, distances) are one matrix operation on this form; the cohort trains
it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgraph.support.untrusted import LARGEST


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's tensors in the order in which they lie in a row of the matrix.

    Attributes
    ----------
    names : tuple of str
        Of the tensors.
    shapes : tuple of tuple of int
        Of the tensors, without a client axis.
    buffers : frozenset of str
        Names of floating-point tensors that are not trained (running statistics). They come after the parameters
        proper, so that ``row[:num_trainable]`` is the part that an optimiser sees.
    frozen : frozenset of str
        Names of those buffers that never change: parameters that require no gradient.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    buffers: frozenset[str] = frozenset()
    frozen: frozenset[str] = frozenset()

    @classmethod
    def of(cls, state: Mapping[str, Tensor], buffers: Iterable[str] = (), frozen: Iterable[str] = ()) -> Layout:
        """Build the layout of one model's state dict (shapes without a client axis)."""
        kept = frozenset(buffers)
        order = [name for name in state if name not in kept] + [name for name in state if name in kept]
        return cls(tuple(order), tuple(tuple(state[name].shape) for name in order), kept, frozenset(frozen))

    @property
    def sizes(self) -> list[int]:
        """Number of entries of each tensor."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def num_parameters(self) -> int:
        """Number of columns of the matrix, buffers included."""
        return sum(self.sizes)

    @property
    def num_trainable(self) -> int:
        """Number of leading columns that an optimiser changes."""
        return sum(size for name, size in zip(self.names, self.sizes, strict=True) if name not in self.buffers)

    def shapes_by_name(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor, regardless of their order."""
        return dict(zip(self.names, self.shapes, strict=True))

    def part(self, names: Iterable[str]) -> Layout:
        """Return the layout of some of the tensors, in the order in which they lie here."""
        wanted = set(names)
        chosen = [(name, shape) for name, shape in zip(self.names, self.shapes, strict=True) if name in wanted]
        names, shapes = tuple(name for name, _ in chosen), tuple(shape for _, shape in chosen)
        return Layout(names, shapes, self.buffers & wanted, self.frozen & wanted)

    def columns(self, part: Layout) -> Tensor:
        """Return the columns of this matrix that contain the tensors of a part, int64 ``[part.num_parameters]``."""
        wanted = set(part.names)
        spans = torch.arange(self.num_parameters).split(self.sizes)
        return torch.cat([span for name, span in zip(self.names, spans, strict=True) if name in wanted])

    def flatten(self, stacked: Mapping[str, Tensor]) -> Tensor:
        """Convert named tensors ``[clients, *shape]`` to one contiguous float32 matrix ``[clients, parameters]``."""
        clients = stacked[self.names[0]].shape[0]
        return torch.cat([stacked[name].reshape(clients, -1).float() for name in self.names], dim=1)

    def unflatten(self, matrix: Tensor) -> dict[str, Tensor]:
        """Convert a matrix ``[clients, parameters]`` to named views ``[clients, *shape]``, in a single split."""
        parts = matrix.split(self.sizes, dim=1)
        return {
            name: part.unflatten(1, shape) if shape else part.squeeze(1)
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }

    def row(self, state: Mapping[str, Tensor]) -> Tensor:
        """Convert one model's state dict to its row ``[parameters]``; the inverse of :meth:`row_state`."""
        return self.flatten({name: state[name][None] for name in self.names})[0]

    def row_state(self, row: Tensor) -> dict[str, Tensor]:
        """Convert a row ``[parameters]`` to a state dict of contiguous tensors."""
        return {name: value[0].clone() for name, value in self.unflatten(row[None]).items()}


def flattened(state: Mapping[str, Tensor]) -> Tensor:
    """Concatenate all numbers of one model's state dict.

    Returns float32 ``[numbers]``, in the order of the state dict.
    """
    return torch.cat([value.detach().flatten().float() for value in state.values()])


def finite_rows(matrix: Tensor) -> Tensor:
    """Find the rows of ``[clients, ...]`` without NaN and infinite values.

    One pass over everything: a finite sum has finite terms. Only rows with another sum are checked number by number,
    and a row that was expanded to many is looked at once. Returns bool ``[clients]``.
    """
    if len(matrix) > 1 and matrix.stride(0) == 0:
        return finite_rows(matrix[:1]).expand(len(matrix))
    rows = matrix.reshape(len(matrix), math.prod(matrix.shape[1:]))
    finite = rows.sum(dim=1).isfinite()
    suspects = (~finite).nonzero().flatten()
    finite[suspects] = rows[suspects].isfinite().all(dim=1)
    return finite


def usable_rows(tensor: Tensor) -> Tensor:
    """Find the rows of ``[clients, ...]`` without NaN, infinite values, and values beyond ``LARGEST``.

    One pass over everything: no value is larger than the length of its row, which is NaN where a value is. Only rows
    whose length is larger, or overflows, are looked at number by number. Returns bool ``[clients]``.
    """
    if not tensor.is_floating_point() or not tensor.numel():
        return finite_rows(tensor)
    rows = tensor.reshape(len(tensor), -1)
    usable = torch.linalg.vector_norm(rows, dim=1) <= LARGEST
    suspects = (~usable).nonzero().flatten()
    usable[suspects] = (rows[suspects].abs() <= LARGEST).all(dim=1)
    return usable


def weights_sha256(names: Sequence[str], matrix: Tensor) -> str:
    """Compute the SHA-256 of the clients' parameters, in the order of their sorted names.

    Per client are hashed: the UTF-8 name, a zero byte, then the row as little-endian float32. Returns 64 hexadecimal
    digits.

    Parameters
    ----------
    names : sequence of str
        The clients, in the order of the rows.
    matrix : Tensor
        ``[clients, parameters]``.
    """
    digest = hashlib.sha256()
    rows = matrix.detach().cpu().to(torch.float32).contiguous().numpy().astype("<f4", copy=False)
    for position in sorted(range(len(names)), key=lambda i: names[i]):
        digest.update(names[position].encode() + b"\0")
        digest.update(rows[position].tobytes())
    return digest.hexdigest()
