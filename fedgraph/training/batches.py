"""Minibatches and learning rates of each client in a round, computed for all clients of a block at once.

Clients have different numbers of minibatches, so each has its own schedule: linear warm-up, then linear decay (Chen et
al. 2022, their program).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedgraph.support.randomness import derive_seed, hashed
from fedgraph.training.settings import TrainSettings

Made = TypeVar("Made")

_LARGEST = 2**63 - 1
_PLACES = derive_seed(0, "places of a minibatch")
"""Makes :func:`example_numbers` independent of the shuffling, which hashes the same keys."""
_FORWARD = derive_seed(0, "draws of a forward pass")
"""The same for :func:`keys_of_steps`."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """The minibatches of some clients as far as they are alike in every round: all but the order of the examples.

    num_examples : training examples of each client, int64 ``[clients]``, on the CPU.
    settings     : batch size, and local steps or epochs.
    least        : minimum number of examples of a minibatch; smaller ones are dropped.
    device       : of the minibatches. Making those of a round does not wait for a GPU.
    """

    num_examples: Tensor
    settings: TrainSettings
    least: int
    device: torch.device

    @cached_property
    def steps(self) -> Tensor:
        """Minibatches of each client, int64 ``[clients]``, on the CPU."""
        return num_steps(self.num_examples, self.settings, self.least)

    @cached_property
    def known(self) -> Tensor:
        """Examples of each minibatch, int64 ``[steps, clients]``, on the CPU."""
        return batch_sizes(self.num_examples, self.settings, self.least)

    @cached_property
    def counts(self) -> Tensor:
        """The same on the device."""
        return self.known.to(self.device)

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

    def batches(self, keys: Tensor, round: int) -> Tensor:
        """Return the minibatches of a round, see :func:`training_batches`."""
        size, shape = self.settings.batch_size, (*self.known.shape, self.settings.batch_size)
        if not len(self.known):
            return keys.new_empty(shape)
        orders = [
            _shuffled(keys[rows], counts, most, round, epoch, longest * size).view(-1, size)
            for epoch, (rows, counts, most, longest) in enumerate(self._epochs)
        ]
        if bool((self.steps < len(self.known)).any()):
            orders.append(keys.new_full((1, size), -1))
        every = torch.cat(orders) if len(orders) > 1 else orders[0]
        return every.index_select(0, self._places).view(shape)

    @cached_property
    def _going(self) -> Tensor:
        """Whether a client has minibatches in an epoch, bool ``[epochs, clients]``."""
        epochs = -(-self.steps // self._per_epoch)
        return torch.arange(int(epochs.max()))[:, None] < epochs

    @cached_property
    def _per_epoch(self) -> Tensor:
        return steps_per_epoch(self.num_examples, self.settings, self.least).clamp(min=1)

    @cached_property
    def _longest(self) -> Tensor:
        """Maximum number of minibatches of a client in an epoch, int64 ``[epochs]``."""
        return torch.where(self._going, self._per_epoch, 0).amax(1)

    @cached_property
    def _epochs(self) -> list[tuple[slice | Tensor, Tensor, int, int]]:
        """For each epoch its clients, their numbers of examples, the largest of these, and of minibatches."""
        found = []
        for going, longest in zip(self._going, self._longest.tolist(), strict=True):
            counts = self.num_examples[going]
            rows = slice(None) if bool(going.all()) else going.nonzero()[:, 0].to(self.device)
            found.append((rows, counts.to(self.device), int(counts.max()), longest))
        return found

    @cached_property
    def _places(self) -> Tensor:
        """Row of each minibatch among those of all epochs, int64 ``[steps * clients]``; beyond them without one."""
        step = torch.arange(len(self.known))[:, None]
        epoch = (step // self._per_epoch).clamp(max=len(self._going) - 1)
        rows = self._going.sum(1) * self._longest
        of_client = (self._going.long().cumsum(1) - 1).gather(0, epoch) * self._longest[epoch]
        places = (rows.cumsum(0) - rows)[epoch] + of_client + step % self._per_epoch
        return places.masked_fill_(step >= self.steps, int(rows.sum())).flatten().to(self.device)


class Ahead(Generic[Made]):
    """What is made for the next round while a GPU computes the present one, where the next one is to be expected.

    That is where the same block had the round before as well, as when all clients take part. Only the last block is
    remembered: a node with several of them has nothing made ahead, for which its memory might not suffice.
    """

    def __init__(self) -> None:
        self._block: object = None
        self._round = 0
        self._made: Made | None = None
        self._continues = False

    def taken(self, block: object, round: int) -> Made | None:
        """Return what was made for this round of a block, or None. From now on the round is the present one."""
        self._continues = block is self._block and round == self._round
        made = self._made if self._continues else None
        self._block, self._round, self._made = block, round + 1, None
        return made

    def make(self, work: Callable[[], Made]) -> None:
        """Make something for the next round, if it is to be expected and the GPU has memory for it."""
        if self._continues:
            with suppress(torch.OutOfMemoryError):
                self._made = work()

    def forget(self) -> None:
        """Free what is made."""
        self._block, self._made = None, None


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
    return Schedule(num_examples.cpu(), settings, least, keys.device).batches(keys, round)


def example_numbers(keys: Tensor, round: int, step: int, size: int) -> Tensor:
    """Return random int64 ``[clients, size]``, one per position in the minibatch of step ``step`` of a round."""
    stream = hashed(hashed(hashed(keys ^ _PLACES) ^ round) ^ step)
    return hashed(stream[:, None] + torch.arange(size, device=keys.device))


def keys_of_steps(keys: Tensor, round: int, steps: int) -> Tensor:
    """Return random int64 ``[steps, clients]``, by which clients draw in the forward passes of a round."""
    stream = hashed(hashed(keys ^ _FORWARD) ^ round)
    return hashed(stream ^ torch.arange(steps, device=keys.device)[:, None])


def _shuffled(keys: Tensor, counts: Tensor, most: int, round: int, epoch: int, width: int) -> Tensor:
    """Return a permutation of ``0..count-1`` per client, int64 ``[clients, width]``, cut off or padded with -1.

    Sorts pseudo-random numbers with the index of each example in the low bits. ``most`` is the largest of ``counts``.
    """
    index = torch.arange(max(most, width), device=keys.device)
    index_mask = (1 << max(most - 1, 1).bit_length()) - 1
    stream = hashed(hashed(keys ^ round) ^ epoch)
    numbers = hashed(stream[:, None] + index)
    numbers &= _LARGEST & ~index_mask
    numbers |= index
    numbers.masked_fill_(index >= counts[:, None], _LARGEST)
    ordered = _sorted(numbers)[:, :width]
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
