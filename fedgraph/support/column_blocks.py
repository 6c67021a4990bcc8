"""Server-side algebra in blocks of columns, on all cores, with the same bits on any number of them.

The threads within one PyTorch operation are pinned for a run (``[train] threads``, usually one), because small models
train faster that way. The server's matrices ``[clients, parameters]`` are cut into blocks of columns instead: a block
stays in a core's cache, and several threads take block after block, each with one thread within an operation. How a
sum is added up is then settled by the shapes alone: neither the number of cores, nor that of pinned threads, nor who
else keeps the machine busy changes a result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from fedgraph.support.threads import available_cores, side_by_side

Result = TypeVar("Result")

_WORTH_A_THREAD = 200_000_000
"""Multiplications of a matrix product, a few milliseconds of work: for less, another thread costs more than it
saves."""


def column_blocks(rows: int, columns: int, entries: int, narrowest: int) -> list[slice]:
    """Slices of the columns of a matrix ``[rows, columns]``, of about ``entries`` entries each.

    Their bounds follow from the arguments alone. A block is a multiple of 16 columns wide, a cache line of float32, or
    ``narrowest`` where that is more; the last one takes what is left.
    """
    width = max(narrowest, entries // max(rows, 1) // 16 * 16)
    return [slice(start, min(start + width, columns)) for start in range(0, columns, width)]


def over_blocks(job: Callable[[slice], Result], blocks: list[slice], products: float) -> list[Result]:
    """Results of ``job`` for every block, in the order of ``blocks``, computed on the CPU without gradients.

    products : multiplications of all blocks together; decides how many threads are worth having.
    """

    def without_gradients(block: slice) -> Result:
        # Gradient mode belongs to a thread.
        with torch.no_grad():
            return job(block)

    workers = max(1, min(available_cores(), int(products / _WORTH_A_THREAD)))
    return side_by_side(without_gradients, blocks, workers, threads=1)
