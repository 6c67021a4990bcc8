"""A lock between processes that ends with the process that holds it."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_SECONDS = 0.2


@contextmanager
def locked(path: Path, wait: float | None = None) -> Iterator[None]:
    """Hold the lock of the file ``path`` for the block; a killed process lets go of it by itself.

    path : is made, in a folder that is there, and left there.
    wait : seconds; None waits for as long as it takes.

    Raises
    ------
    TimeoutError
        When another still holds it after that time.
    """
    with path.open("w") as stream:
        if wait is None:
            fcntl.flock(stream, fcntl.LOCK_EX)
        else:
            _acquire(stream.fileno(), path, time.monotonic() + wait)
        yield


def _acquire(descriptor: int, path: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"another process holds {path}") from None
            time.sleep(_POLL_SECONDS)
