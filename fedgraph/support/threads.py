"""Threads: how many cores there are, PyTorch's own threads pinned, and jobs run side by side."""

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
    """pooled : whether the thread belongs to a pool."""

    pooled = False


_this_thread = _ThisThread()


def available_cores() -> int:
    """Cores that this process may use: what ``OMP_NUM_THREADS`` grants, as Ray sets it for its actors, else all.

    All are those that the scheduler and a container's quota allow.
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
    """Results of ``job`` in the order of ``items``, computed by ``workers`` threads with ``threads`` intra-op threads.

    PyTorch releases Python's global lock while it computes, so threads scale for all but the smallest tensors. One
    worker is the calling thread; so is that of a job which calls this in turn. The first exception is raised once no
    job runs any more.
    """
    remaining = list(items)
    # A thread of a pool that waited for others of it could wait for ever: all may be waiting.
    if min(workers, len(remaining)) <= 1 or _this_thread.pooled:
        with pinned_threads(threads):
            return [job(item) for item in remaining]

    def pinned(item: Item) -> Result:
        # The number belongs to a thread: one that a pool keeps may have been set for another cohort.
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
    """Threads are kept: starting one costs as much as a small block."""
    return ThreadPoolExecutor(workers, thread_name_prefix="fedgraph-worker", initializer=_mark_as_pooled)


def _mark_as_pooled() -> None:
    _this_thread.pooled = True


# A forked process has none of the threads.
os.register_at_fork(after_in_child=_pool.cache_clear)
