"""A split over shared storage: one tensor of examples, and the row numbers of each client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph.models import Batch


def row_table(rows: Sequence[NDArray[np.int64]]) -> Tensor:
    """Pad the rows of each client with -1 to one int64 table ``[clients, max(1, most rows)]``."""
    table = torch.full((len(rows), max([1, *map(len, rows)])), -1, dtype=torch.int64)
    for client, own in enumerate(rows):
        table[client, : len(own)] = torch.from_numpy(own)
    return table


def class_counts(targets: Tensor, rows: Sequence[NDArray[np.int64]], classes: int) -> Tensor:
    """Count each client's examples of each class, int64 ``[clients, classes]``."""
    return torch.stack([torch.bincount(targets[own], minlength=classes) for own in rows])


@dataclass(frozen=True)
class ExampleSplit:
    """One split of a cohort whose examples lie in tensors shared by all clients and splits.

    Attributes
    ----------
    inputs : Tensor
        ``[examples, *input_shape]``, uint8 or float32.
    targets : Tensor
        ``[examples]`` int64, or ``[examples, 1]`` float32.
    rows : Tensor
        Each client's rows of both, int64 ``[clients, most]``, padded with -1 at the end.
    scale, shift : Tensor or None
        Broadcast to one input: a batch contains ``inputs * scale + shift`` as float32; None leaves inputs as stored.
    """

    inputs: Tensor
    targets: Tensor
    rows: Tensor
    scale: Tensor | None = None
    shift: Tensor | None = None

    masks: ClassVar[bool] = False
    """Whether targets may be missing, and have no weight; minibatches by rows (:meth:`minibatches`) have no weights."""

    @property
    def num_examples(self) -> Tensor:
        """Number of examples of each client, int64 ``[clients]``."""
        return (self.rows >= 0).sum(1)

    def batch(self, indices: Tensor) -> Batch:
        """Gather the examples ``indices`` (int64 ``[clients, batch]``, -1 for padding) of each client; padding is zero.

        An index at or beyond a client's number of examples counts as padding too.
        """
        rows = self._rows_of(indices)
        real = rows >= 0
        flat = rows.clamp(min=0).flatten()
        inputs = self.inputs.index_select(0, flat).float()
        if self.scale is not None:
            inputs.mul_(self.scale)
        if self.shift is not None:
            inputs.add_(self.shift)
        targets = self.targets.index_select(0, flat)
        # On a GPU, checking for padding costs more than masking it.
        if real.device.type != "cpu" or not bool(real.all()):
            padding = ~real.flatten()
            inputs.masked_fill_(padding.view(-1, *[1] * (inputs.dim() - 1)), 0)
            targets = targets.masked_fill(padding.view(-1, *[1] * (targets.dim() - 1)), 0)
        targets = targets.unflatten(0, rows.shape)
        weights = real.float().reshape(*rows.shape, *[1] * (targets.dim() - 2)).expand_as(targets)
        return Batch(inputs.unflatten(0, rows.shape), targets, weights)

    def minibatches(self, indices: Tensor) -> ExampleSplit:
        """Return minibatches ``indices`` ``[clients, steps, batch]``, -1 for padding, before anything is gathered.

        Their ``rows`` are ``[clients, steps, batch]`` too.
        """
        return replace(self, rows=self._rows_of(indices.flatten(1)).unflatten(1, indices.shape[1:]))

    def _rows_of(self, indices: Tensor) -> Tensor:
        """Return the rows of examples, -1 for padding."""
        inside = (indices >= 0) & (indices < self.rows.shape[1])
        return torch.where(inside, self.rows.gather(1, torch.where(inside, indices, 0)), -1)

    def select(self, clients: slice | Tensor) -> ExampleSplit:
        """Return the split of some clients; it shares the storage of examples."""
        return replace(self, rows=self.rows[clients])

    def to(self, device: torch.device) -> ExampleSplit:
        """Return the split with its tensors on ``device``."""
        scale, shift = (None if each is None else each.to(device) for each in (self.scale, self.shift))
        inputs, targets, rows = (each.to(device) for each in (self.inputs, self.targets, self.rows))
        return replace(self, inputs=inputs, targets=targets, rows=rows, scale=scale, shift=shift)
