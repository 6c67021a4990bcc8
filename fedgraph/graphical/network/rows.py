"""Training and held-out rows of clients: losses of models in them, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from fedgraph.graphical.network.network import Network, Weights

ROWS = 256
"""Number of rows that are computed together: their intermediate results stay in the processor's cache for the
gradient."""


class Rows(Protocol):
    """Rows of clients, with losses and gradients of models ``trained`` ``[clients, trainable]``.

    Minibatches are places ``[clients, batch]`` of rows, padded with -1; None stands for all rows.
    """

    @property
    def counts(self) -> Tensor:
        """Number of observed values of each feature, int64 ``[clients, features]``."""

    def losses(self, trained: Tensor) -> Tensor:
        """Return mean losses of all rows, ``[clients, features]``; 0 for features that are not learned."""

    def gradient(self, trained: Tensor, places: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the gradient of a minibatch's loss, ``[clients, trainable]``, and whose rows contain no target.

        The latter is bool ``[clients]``.
        """


def stack_rows(tables: Sequence[Tensor]) -> Tensor:
    """Stack tables ``[rows, units]`` of clients to ``[clients, most rows, units]``, padded with missing values."""
    stacked = tables[0].new_full((len(tables), max(map(len, tables)), tables[0].shape[1]), torch.nan)
    for place, table in enumerate(tables):
        stacked[place, : len(table)] = table
    return stacked


@dataclass(frozen=True)
class _Part:
    """Rows that are computed together; ``[clients, units, rows]``.

    observed : 1 for targets that count and 0 for others; None when all do.
    base     : see :meth:`fedgraph.graphical.network.network.Network.base`.
    """

    inputs: Tensor
    targets: Tensor
    observed: Tensor | None
    base: Tensor | None

    def offset(self, weights: Weights) -> Tensor:
        """Return the term that is added to the output of the layers, ``[clients, units, rows or 1]``."""
        return weights.offset if self.base is None else weights.offset + self.base


@dataclass(frozen=True)
class _Batch:
    """Rows of a step.

    counts : observed values of each feature in them, ``[clients, features]``.
    """

    parts: list[_Part]
    counts: Tensor


class NetworkRows:
    """:class:`Rows` in operations of PyTorch, for all networks.

    tables  : units ``[rows, units]`` of each client, or with the learned targets behind them (see
              :func:`fedgraph.graphical.network.training.train`).
    buffers : of the models, tensors with a leading client axis.
    """

    def __init__(self, network: Network, buffers: dict[str, Tensor], tables: Sequence[Tensor]) -> None:
        layout = network.layout
        self._network, self._buffers = network, buffers
        self._layout = layout.part(name for name in layout.names if name not in layout.buffers)
        # The last row belongs to no client: padding of minibatches points at it.
        self._rows = functional.pad(stack_rows(tables), (0, 0, 0, 1), value=torch.nan)

    @property
    def counts(self) -> Tensor:
        """See :class:`Rows`."""
        return self._whole.counts

    @torch.no_grad()
    def losses(self, trained: Tensor) -> Tensor:
        """See :class:`Rows`."""
        weights = self._network.learned_weights(self._state(trained))
        sums = torch.stack([self._losses(weights, part) for part in self._whole.parts]).sum(0)
        return sums / self.counts.clamp(min=1)

    def gradient(self, trained: Tensor, places: Tensor | None) -> tuple[Tensor, Tensor]:
        """See :class:`Rows`."""
        clients = torch.arange(len(self._rows))[:, None]
        batch = self._whole if places is None else self._batch(self._rows[clients, places])
        parameters = trained.detach().requires_grad_()
        weights = self._network.learned_weights(self._state(parameters))
        made = weights.tensors
        sums = [torch.zeros_like(value) for value in made]
        schema, heads = self._network.schema, self._network.heads
        counts = batch.counts.clamp(min=1)[:, schema.unit_feature]
        slopes = heads.slopes / len(schema.unit_feature) / counts
        with torch.no_grad():
            for part in batch.parts:
                found, inputs = weights.layers.forward(part.inputs)
                gradient = self._errors(found, weights, part).mul_(slopes[:, :, None])
                of_weights, _ = weights.layers.backward(inputs, self._network.of_found(gradient))
                torch._foreach_add_(sums, [*of_weights, gradient.sum(2, keepdim=True)])
        return torch.autograd.grad(made, parameters, sums)[0], (batch.counts == 0).all(1)

    @cached_property
    def _whole(self) -> _Batch:
        return self._batch(self._rows[:, :-1])

    def _batch(self, rows: Tensor) -> _Batch:
        """Prepare rows ``[clients, rows, units]`` for training."""
        network, parts = self._network, []
        counts = torch.zeros(len(rows), len(network.first_units), dtype=torch.int64)
        width = len(network.schema.unit_feature)
        for some in rows.split(ROWS, 1):
            both = some.transpose(1, 2).contiguous()
            # The same tensor where rows have only one half.
            units, wanted = both[:, :width], both[:, -width:]
            counted = network.learned_from(units) & ~wanted.isnan()
            counts += counted.index_select(1, network.first_units).sum(2)
            observed = None if bool(counted.all()) else counted.float()
            targets = wanted if observed is None else wanted.nan_to_num(0.0)
            base = network.base(self._buffers, units)
            parts.append(_Part(network.inputs(self._buffers, units), targets, observed, base))
        return _Batch(parts, counts)

    def _state(self, trained: Tensor) -> dict[str, Tensor]:
        return {**self._layout.unflatten(trained), **self._buffers}

    def _errors(self, found: Tensor, weights: Weights, part: _Part) -> Tensor:
        """Return predictions minus targets, 0 for targets that do not count, ``[clients, units, rows]``."""
        predictions = self._network.heads.predictions(self._network.outputs(found, part.offset(weights)))
        errors = predictions - part.targets
        return errors if part.observed is None else errors.mul_(part.observed)

    def _losses(self, weights: Weights, part: _Part) -> Tensor:
        """Sum the losses over a part's rows, ``[clients, features]``."""
        outputs = self._network.outputs(weights.layers(part.inputs), part.offset(weights))
        return self._network.heads.losses(outputs, part.targets, part.observed)
