"""Which examples each client trains on at each step of a round."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedgraph.seeding import generator
from fedgraph.train_settings import TrainSettings


def training_batches(
    names: Sequence[str], num_examples: Sequence[int], settings: TrainSettings, seed: int, round: int
) -> Tensor:
    """Minibatches of a round: int64 ``[steps, clients, batch_size]`` into each client's own examples, -1 = padding.

    A client's order depends on ``seed``, its name and ``round`` alone; every epoch is shuffled anew and steps cycle
    through such epochs. A client that has fewer steps than others is all padding in the last ones; padding within a
    minibatch lies behind its examples.
    """
    orders = [
        _one_client(count, settings, generator(seed, "batches", name, round))
        for name, count in zip(names, num_examples, strict=True)
    ]
    return pad_sequence(orders, padding_value=-1)


def _one_client(count: int, settings: TrainSettings, random: torch.Generator) -> Tensor:
    size = settings.batch_size
    per_epoch = count // size if settings.drop_last and count >= size else math.ceil(count / size)
    if settings.local_steps is not None:
        steps = settings.local_steps if per_epoch else 0
    else:
        steps = (settings.local_epochs or 0) * per_epoch
    rows = torch.full((steps, size), -1)
    for start in range(0, steps, max(per_epoch, 1)):
        epoch = torch.full((per_epoch * size,), -1)
        order = torch.randperm(count, generator=random)[: per_epoch * size]
        epoch[: len(order)] = order
        rows[start : start + per_epoch] = epoch.view(per_epoch, size)[: steps - start]
    return rows


def repeat_examples(indices: Tensor) -> Tensor:
    """Fill the padding of each minibatch by repeating its own examples in turn; empty ones stay padding.

    ``indices`` is ``[clients, batch]``. Layers with batch statistics then see real examples only.
    """
    counts = (indices >= 0).sum(1, keepdim=True).clamp(min=1)
    columns = torch.arange(indices.shape[1]) % counts
    return indices.gather(1, columns)
