"""Threads: number of cores, PyTorch's own threads, parallel jobs, and algebra in blocks of columns.

The threads within one PyTorch operation are pinned for a run (``[train] threads``, usually one), because small models
train faster that way. The server's matrices ``[clients, parameters]`` are cut into blocks of columns instead: a block
stays in a core's cache, and several threads process block after block, each with one thread within an operation. The
order of summation then depends on the shapes alone: results are bitwise identical for any number of cores or pinned
threads, and any other load of the machine.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import joblib
import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


class _ThisThread(threading.local):
    """State of a thread.

    pooled : whether the thread belongs to a pool.
    """

    pooled = False


_this_thread = _ThisThread()


def available_cores() -> int:
    """Return the number of cores that this process may use.

    That is ``OMP_NUM_THREADS``, which Ray sets for its actors; else all cores that the scheduler and a container's
    quota allow.
    """
    granted = os.environ.get("OMP_NUM_THREADS", "")
    return int(granted) if granted.isdigit() and int(granted) > 0 else _all_cores()


@cache
def _all_cores() -> int:
    return int(joblib.cpu_count())


@contextmanager
def pinned_threads(count: int) -> Iterator[None]:
    """Run the block with ``count`` intra-op threads and restore the number afterwards.

    Small models run faster with one, and results then agree between grids.
    """
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def side_by_side(job: Callable[[Item], Result], items: Iterable[Item], workers: int, threads: int) -> list[Result]:
    """Run ``job`` for all items in ``workers`` threads with ``threads`` intra-op threads each.

    PyTorch releases Python's global lock while it computes, so threads scale for all but the smallest tensors. A single
    worker is the calling thread, and so is the worker of a job that itself calls this function. Returns results in the
    order of ``items``.

    Raises
    ------
    Exception
        The first exception of a job, once no job is running any more.
    """
    remaining = list(items)
    # A pool thread that waits for others of its pool could deadlock: all may be waiting.
    if min(workers, len(remaining)) <= 1 or _this_thread.pooled:
        with pinned_threads(threads):
            return [job(item) for item in remaining]

    def pinned(item: Item) -> Result:
        # The setting belongs to a thread: that of a pool thread may have been made for another cohort.
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        return job(item)

    with pinned_threads(threads):
        futures = [_pool(workers).submit(pinned, item) for item in remaining]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()
            for future in futures:
                if not future.cancelled():
                    future.exception()


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    """Return a pool whose threads are kept: starting a thread costs as much as a small block."""
    return ThreadPoolExecutor(workers, thread_name_prefix="fedgraph-worker", initializer=_mark_as_pooled)


def _mark_as_pooled() -> None:
    _this_thread.pooled = True


# A forked process does not inherit the threads.
os.register_at_fork(after_in_child=_pool.cache_clear)


_WORTH_A_THREAD = 200_000_000
"""Multiplications for which another thread pays, a few milliseconds of work."""


def column_blocks(rows: int, columns: int, entries: int, narrowest: int) -> list[slice]:
    """Slice the columns of a matrix ``[rows, columns]`` into blocks of about ``entries`` entries each.

    The bounds depend only on the arguments. A block is a multiple of 16 columns wide, a cache line of float32, or
    ``narrowest`` if that is more; the last one takes the rest.
    """
    width = max(narrowest, entries // max(rows, 1) // 16 * 16)
    return [slice(start, min(start + width, columns)) for start in range(0, columns, width)]


def over_blocks(job: Callable[[slice], Result], blocks: list[slice], products: float) -> list[Result]:
    """Run ``job`` for every block on the CPU, without gradients; return results in the order of the blocks.

    Parameters
    ----------
    job : callable
        Takes a slice of columns.
    blocks : list of slice
        As from :func:`column_blocks`.
    products : float
        Multiplications of all blocks together; determines the number of threads.
    """

    def without_gradients(block: slice) -> Result:
        # Gradient mode belongs to a thread.
        with torch.no_grad():
            return job(block)

    workers = max(1, min(available_cores(), int(products / _WORTH_A_THREAD)))
    return side_by_side(without_gradients, blocks, workers, threads=1)
