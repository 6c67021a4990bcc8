"""The pause between two looks for something that others do."""

from __future__ import annotations

import time
from functools import partial
from importlib import import_module

_FIRST_SECONDS = 0.05


class GrowingPause:
    """A pause that grows by a quarter of the time waited so far: what is soon there is soon found, at few looks.

    Parameters
    ----------
    longest : float
        Seconds at most.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self.restart()

    def restart(self) -> None:
        """Begin to wait for the next thing."""
        self._began = time.monotonic()

    def sleep(self, at_most: float = float("inf")) -> None:
        """Sleep until the next look, at most some seconds."""
        grown = _FIRST_SECONDS + (time.monotonic() - self._began) / 4
        time.sleep(max(0.0, min(grown, self._longest, at_most)))


def ask_sooner(module: str) -> None:
    """Have a module of Flower ask again for an object that is still arriving soon, in place of after a second."""
    names = vars(import_module(module))
    pull = names.get("pull_objects")
    if pull is not None and not isinstance(pull, partial):
        names["pull_objects"] = partial(pull, initial_backoff=_FIRST_SECONDS)
