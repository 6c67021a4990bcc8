"""Blocks of clients of a cohort that are computed together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from fedgraph.data import CohortData, ExampleSplit, Split, SplitName
from fedgraph.support.errors import DataError
from fedgraph.support.threads import available_cores, side_by_side
from fedgraph.training.batches import Schedule, num_steps, shuffling_keys
from fedgraph.training.local_training import Block, LocalTraining
from fedgraph.training.working_set import WorkingSet, working_set

log = logging.getLogger("fedgraph")

Result = TypeVar("Result")


class Blocks:
    """Divides the clients of a cohort into blocks, and computes each.

    Parameters
    ----------
    device : device of computation and data.
    """

    def __init__(self, data: CohortData, training: LocalTraining, device: torch.device) -> None:
        self.data, self.training, self.device = data, training, device
        self.model, self.settings = training.model, training.settings
        self._resident: dict[SplitName, Split] = {}
        self._made: dict[tuple[int, int], Block] = {}
        self._sizes: dict[tuple[int, bool], int] = {}

    def block(self, chosen: slice) -> Block:
        """Return the clients ``chosen`` of the training order, on the device; the same block in every round."""
        place = (chosen.start, chosen.stop)
        if place not in self._made:
            self._made[place] = self._make(chosen)
        return self._made[place]

    def _make(self, chosen: slice) -> Block:
        rows = chosen if self._order is None else self._order[chosen]
        members = range(chosen.start, chosen.stop) if self._order is None else self._order[chosen].tolist()
        return Block(
            rows=rows,
            names=[self.data.names[member] for member in members],
            keys=self._keys[rows].to(self.device),
            schedule=Schedule(self.num_examples[rows], self.settings, self.training.least, self.device),
            split=self.split("train").select(rows),
        )

    def each(
        self,
        job: Callable[[slice], Result],
        batch_size: int,
        training: bool = False,
        native: bool = False,
        most: int | None = None,
    ) -> list[Result]:
        """Return the results of ``job`` for every block of at most ``most`` clients, in order.

        Blocks run side by side on a CPU.
        """
        size, workers = self._clients_per_block(batch_size, native), self.settings.workers or available_cores()
        split = self.split("train") if native and self.settings.block_size is None else None
        if isinstance(split, ExampleSplit) and not split.masks:
            size, workers = len(self.data.names), 1  # native code gathers minibatches, on several threads
        size = min(size, most or size)
        if self.training.sequential(self.device):
            # At least one block per core.
            size = min(size, -(-len(self.data.names) // 2))
        if not training and (self.training.sequential(self.device) or self.model.mixes_examples(False)):
            size = 1  # if examples influence each other, so would padding
        if self.device.type != "cpu":
            return shrinking(job, len(self.data.names), size, self.training.forget)
        if training and self.model.draws and not self.training.draws_apart(self.device):
            workers = 1  # threads share a random generator
        return side_by_side(job, even_slices(len(self.data.names), size), workers, self.settings.threads)

    def _clients_per_block(self, batch_size: int, native: bool) -> int:
        if self.settings.block_size is not None:
            return self.settings.block_size
        own = self.training.draws_apart(self.device) or self.training.draws_hashed(self.device)
        if self.model.draws and not own:
            return 1  # each client has its own random numbers, whichever clients share its node
        if (batch_size, native) not in self._sizes:  # a GPU takes a millisecond to say how much memory is free
            self._sizes[batch_size, native] = self._working_set.clients_per_block(batch_size, self.device, native)
        return self._sizes[batch_size, native]

    @cached_property
    def _working_set(self) -> WorkingSet:
        return working_set(self.model, self.data.task)

    @cached_property
    def num_examples(self) -> Tensor:
        """Training examples of each client, int64 ``[clients]``."""
        return self.data.splits["train"].num_examples.cpu()

    @cached_property
    def _keys(self) -> Tensor:
        return shuffling_keys(self.training.seed, self.data.names)

    @cached_property
    def _order(self) -> Tensor | None:
        """Rows by decreasing number of steps, so that active clients are first; None if all are equal."""
        steps = num_steps(self.num_examples, self.settings, self.training.least)
        return None if bool((steps == steps[0]).all()) else steps.argsort(descending=True, stable=True)

    def split(self, name: SplitName) -> Split:
        """Return a split on the device, where it stays."""
        if name not in self._resident:
            if name not in self.data.splits:
                raise DataError(f"this data set has no split '{name}'; it has: {', '.join(self.data.splits)}")
            self._resident[name] = self.data.splits[name].to(self.device)
        return self._resident[name]


def even_slices(clients: int, size: int) -> Iterator[slice]:
    """Return blocks of at most ``size`` clients, of similar size and even number, as the number of cores is even."""
    count = -(-clients // size)
    count += count % 2 if 1 < count < clients else 0
    bounds = [clients * block // count for block in range(count + 1)]
    return (slice(*pair) for pair in pairwise(bounds))


def shrinking(
    job: Callable[[slice], Result], clients: int, size: int, forget: Callable[[], None] = lambda: None
) -> list[Result]:
    """Run ``job`` for each block, with smaller blocks after one has not fitted into the GPU's memory.

    ``forget`` frees what earlier blocks have left there.
    """
    results: list[Result] = []
    start = 0
    while start < clients:
        try:
            results.append(job(slice(start, min(start + size, clients))))
        except torch.OutOfMemoryError:
            if size == 1:
                raise
            size = -(-min(size, clients - start) // 2)
            forget()
            torch.cuda.empty_cache()
            log.warning("the GPU's memory is too small for this block; going on with %d clients at a time", size)
        else:
            start += size
    return results
