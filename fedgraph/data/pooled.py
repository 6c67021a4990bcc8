"""The examples of all clients pooled for a centralised model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedgraph.data.base import CohortData, Split
from fedgraph.data.examples import ExampleSplit, row_table
from fedgraph.models import Batch

EVERYBODY = "everybody"
"""Name of the client that has the examples of all clients."""


@dataclass(frozen=True)
class PooledSplit:
    """The examples of all clients of a split, in order, held by each of ``clients`` identical clients.

    Attributes
    ----------
    ends : cumulative number of examples of the clients of ``split``, int64 ``[members]``.
    """

    split: Split
    ends: Tensor
    clients: int = 1

    @classmethod
    def of(cls, split: Split) -> PooledSplit:
        """Pool the examples of all clients of ``split``; nothing is copied."""
        return cls(split, split.num_examples.cumsum(0))

    @property
    def num_examples(self) -> Tensor:
        """See :class:`fedgraph.data.base.Split`; int64 ``[1]`` before any selection."""
        return self.ends[-1:].expand(self.clients)

    def batch(self, indices: Tensor) -> Batch:
        """See :class:`fedgraph.data.base.Split`; raises IndexError on a CPU for an index beyond the last example."""
        ends = self.ends.to(indices.device)
        padding = indices < 0
        if indices.device.type == "cpu" and indices.numel() and int(indices.max()) >= int(ends[-1]):
            raise IndexError(f"example index {int(indices.max())} of {int(ends[-1])} examples")
        flat = indices.masked_fill(padding, 0).flatten()
        # A client without examples ends where the one before it ends, and so owns none.
        owner = torch.searchsorted(ends, flat, right=True).clamp_(max=len(ends) - 1)
        starts = torch.nn.functional.pad(ends[:-1], (1, 0))
        own = torch.where(padding.flatten(), -1, flat - starts[owner])
        # Each example is read from its owner, which is repeated as a row for each of its examples.
        inputs, targets, weights = self.split.select(owner).batch(own[:, None])
        return Batch(*(part.squeeze(1).unflatten(0, indices.shape) for part in (inputs, targets, weights)))

    def select(self, clients: slice | Tensor) -> PooledSplit:
        """See :class:`fedgraph.data.base.Split`."""
        device = clients.device if isinstance(clients, Tensor) else None
        return replace(self, clients=len(torch.arange(self.clients, device=device)[clients]))

    def to(self, device: torch.device) -> PooledSplit:
        """See :class:`fedgraph.data.base.Split`."""
        return replace(self, split=self.split.to(device), ends=self.ends.to(device))


def pooled(data: CohortData) -> CohortData:
    """Give the examples of all clients, in their order, to one client named ``everybody``.

    Its ``mean`` and ``std`` are 0 and 1, because each example keeps the scaling of the client from which it came:
    metrics on pooled data are in scaled units. Evaluate a centralised model on the clients' own data instead.
    """
    return replace(
        data,
        names=(EVERYBODY,),
        splits={name: _pooled(split) for name, split in data.splits.items()},
        mean=torch.zeros(1),
        std=torch.ones(1),
        label_counts=None if data.label_counts is None else data.label_counts.sum(0, keepdim=True),
        groups=None,
        untrained=(),
        moments=None,
        preprocessing=None,
    )


def _pooled(split: Split) -> Split:
    """Pool a split. Shared examples need no look-up of owners: their rows are concatenated."""
    if isinstance(split, ExampleSplit):
        return replace(split, rows=row_table([split.rows[split.rows >= 0].cpu().numpy()]).to(split.rows.device))
    return PooledSplit.of(split)
