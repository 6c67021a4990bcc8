"""The pause between two looks for something that others do."""

from __future__ import annotations

import time

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
