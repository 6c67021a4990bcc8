"""Minibatches and learning rates of each client in a round, computed for all clients of a block at once.

Clients have different numbers of minibatches, so each has its own schedule: linear warm-up, then linear decay (Chen et
al. 2022, their program).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from fedgraph.support.randomness import derive_seed, hashed
from fedgraph.training.settings import TrainSettings

_LARGEST = 2**63 - 1
_PLACES = derive_seed(0, "places of a minibatch")
"""Makes :func:`example_numbers` independent of the shuffling, which hashes the same keys."""
_FORWARD = derive_seed(0, "draws of a forward pass")
"""The same for :func:`keys_of_steps`."""


@dataclass(frozen=True)
class Schedule:
    """Minibatches of a round.

    batches : examples of each, int64 ``[steps, clients, batch]``, padded with -1.
    known   : their numbers, int64 ``[steps, clients]``, on the CPU: reading those of a GPU would wait for it.
    """

    batches: Tensor
    known: Tensor

    @cached_property
    def counts(self) -> Tensor:
        """Examples of each minibatch, int64 ``[steps, clients]``."""
        return (self.batches >= 0).sum(2)

    @cached_property
    def active(self) -> list[int]:
        """Number of clients of each step, the first of the block."""
        active: list[int] = (self.known > 0).sum(1).tolist()
        return active

    @cached_property
    def longest(self) -> list[int]:
        """Maximum number of examples of a minibatch of each step."""
        longest: list[int] = self.known.amax(1).tolist()
        return longest

    def alike(self) -> Iterator[tuple[slice, int, int]]:
        """Yield adjacent steps with equal numbers of clients and examples, and these numbers."""
        start = 0
        for (clients, examples), same in groupby(zip(self.active, self.longest, strict=True)):
            stop = start + len(list(same))
            yield slice(start, stop), clients, examples
            start = stop


def shuffling_keys(seed: int, names: Sequence[str]) -> Tensor:
    """Return the keys by which each client's examples are shuffled.

    Returns int64 ``[clients]``; with the round, a key determines the order of a client's examples.
    """
    return torch.tensor([derive_seed(seed, "batches", name) for name in names], dtype=torch.int64)


def num_steps(num_examples: Tensor, settings: TrainSettings, least: int = 1) -> Tensor:
    """Return the number of minibatches in a round of clients with ``num_examples`` examples, int64 ``[clients]``.

    Returns int64 ``[clients]``; 0 for clients without examples.

    Parameters
    ----------
    num_examples : Tensor
        int64 ``[clients]``.
    settings : TrainSettings
        Batch size, and local steps or epochs.
    least : int, default 1
        Minimum number of examples of a minibatch, see ``StackedModel.least_examples``.
    """
    per_epoch = steps_per_epoch(num_examples, settings, least)
    if settings.local_steps is not None:
        return torch.where(per_epoch > 0, settings.local_steps, 0)
    return per_epoch * (settings.local_epochs or 0)


def steps_per_epoch(num_examples: Tensor, settings: TrainSettings, least: int = 1) -> Tensor:
    """Return the number of minibatches of one pass over ``num_examples`` examples, int64 ``[clients]``.

    A last minibatch of fewer than ``least`` examples is dropped. Returns int64 ``[clients]``.
    """
    size = settings.batch_size
    whole, rest = num_examples // size, num_examples % size
    last = rest >= least if least > 1 else rest > 0
    return torch.where(whole > 0, whole, last.long()) if settings.drop_last else whole + last


def batch_sizes(num_examples: Tensor, settings: TrainSettings, least: int = 1) -> Tensor:
    """Return the numbers of examples of the minibatches of :func:`training_batches`, int64 ``[steps, clients]``."""
    per_epoch = steps_per_epoch(num_examples, settings, least)
    steps = num_steps(num_examples, settings, least)
    step = torch.arange(int(steps.max()) if len(steps) else 0)[:, None]
    first = step % per_epoch.clamp(min=1) * settings.batch_size
    return (num_examples - first).clamp(max=settings.batch_size).masked_fill_(step >= steps, 0)


def training_batches(keys: Tensor, num_examples: Tensor, settings: TrainSettings, round: int, least: int = 1) -> Tensor:
    """Return the minibatches of a round, as indices into each client's examples.

    A client's order depends only on its key and ``round``; every epoch is shuffled separately and steps cycle through
    epochs. The last steps of clients with fewer steps are padding only; padding within a minibatch follows its
    examples. Returns int64 ``[steps, clients, batch_size]``, padded with -1.

    Parameters
    ----------
    keys : Tensor
        Keys of :func:`shuffling_keys`, int64 ``[clients]``; the result is on their device and does not depend on it.
    num_examples : Tensor
        Training examples of each client, int64 ``[clients]``; read without waiting if they are on the CPU.
    settings : TrainSettings
        Batch size, and local steps or epochs.
    round : int
        Counted from 1.
    least : int, default 1
        Minimum number of examples of a minibatch; smaller ones are dropped.
    """
    size, clients, num_examples = settings.batch_size, len(keys), num_examples.cpu()
    steps, per_epoch = num_steps(num_examples, settings, least), steps_per_epoch(num_examples, settings, least)
    batches = torch.full((int(steps.max()) if clients else 0, clients, size), -1, device=keys.device)
    epoch = 0
    while bool((going := epoch * per_epoch < steps).any()):
        rows = going.nonzero()[:, 0]
        longest = int(per_epoch[rows].max())
        order = _shuffled(keys[rows], num_examples[rows], round, epoch)
        order = torch.nn.functional.pad(order, (0, max(0, longest * size - order.shape[1])), value=-1)
        within = torch.arange(longest)
        step = epoch * per_epoch[rows, None] + within
        chosen = (within < per_epoch[rows, None]) & (step < steps[rows, None])
        client = rows[:, None].expand_as(step)
        places = tuple(each[chosen].to(keys.device) for each in (step, client))
        batches[places] = order[:, : longest * size].unflatten(1, (longest, size))[chosen]
        epoch += 1
    return batches


def example_numbers(keys: Tensor, round: int, step: int, size: int) -> Tensor:
    """Return random int64 ``[clients, size]``, one per position in the minibatch of step ``step`` of a round."""
    stream = hashed(hashed(hashed(keys ^ _PLACES) ^ round) ^ step)
    return hashed(stream[:, None] + torch.arange(size, device=keys.device))


def keys_of_steps(keys: Tensor, round: int, steps: int) -> Tensor:
    """Return random int64 ``[steps, clients]``, by which clients draw in the forward passes of a round."""
    stream = hashed(hashed(keys ^ _FORWARD) ^ round)
    return hashed(stream ^ torch.arange(steps, device=keys.device)[:, None])


def _shuffled(keys: Tensor, counts: Tensor, round: int, epoch: int) -> Tensor:
    """Return a permutation of ``0..count-1`` per client, int64 ``[clients, most]``, padded with -1.

    Sorts pseudo-random numbers with the index of each example in the low bits.
    """
    most = int(counts.max())
    index = torch.arange(most, device=keys.device)
    index_mask = (1 << max(most - 1, 1).bit_length()) - 1
    stream = hashed(hashed(keys ^ round) ^ epoch)
    numbers = hashed(stream[:, None] + index)
    numbers &= _LARGEST & ~index_mask
    numbers |= index
    numbers.masked_fill_(index >= counts.to(keys.device)[:, None], _LARGEST)
    ordered = _sorted(numbers)
    return (ordered & index_mask).masked_fill_(ordered == _LARGEST, -1)


def _sorted(values: Tensor) -> Tensor:
    """Sort each row in ascending order. On a CPU NumPy sorts integers several times faster than PyTorch."""
    if values.device.type != "cpu":
        return values.sort(dim=1).values
    return torch.from_numpy(np.sort(values.numpy(), axis=1))


def learning_rates(settings: TrainSettings, num_examples: Tensor, round: int, least: int = 1) -> Tensor | None:
    """Return the learning rate of every minibatch of a round.

    The rate is that at the end of its minibatch: the first one is above 0, and the last one has
    ``final-learning-rate``. Returns float32 ``[steps, clients]``, or None if all minibatches have the rate
    ``settings.rate(round)``.

    Parameters
    ----------
    settings : TrainSettings
        Learning rate and its schedule.
    num_examples : Tensor
        Training examples of each client, int64 ``[clients]``; the result is on their device.
    round : int
        Counted from 1.
    least : int, default 1
        Minimum number of examples of a minibatch.
    """
    peak, warmup, final = settings.learning_rate, settings.warmup_epochs, settings.final_learning_rate
    if not warmup and final is None:
        return None
    steps = num_steps(num_examples, settings, least)
    number = torch.arange(1, int(steps.max()) + 1, dtype=torch.float64, device=num_examples.device)[:, None]
    rising = warmup * steps_per_epoch(num_examples, settings, least).double()
    rate = peak * (number / rising).clamp(max=1) if warmup else torch.full_like(number, peak)
    if final is not None:
        fallen = ((number - rising) / (steps - rising).clamp(min=1e-9)).clamp(0, 1)
        rate = rate + fallen * (final - peak)
    return (rate * (settings.rate(round) / peak)).float().expand(-1, len(num_examples))
