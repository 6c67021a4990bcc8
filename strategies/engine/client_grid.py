"""Environment of a stock Flower strategy: a grid with a node per client, a seed, a log of its warnings."""

from __future__ import annotations

import gc
import logging
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from flwr.app import Message

from fedgraph.federation import Federation, OrderedGrid, PassingGrid
from fedgraph.support.errors import RunError, quoted


class ClientGrid(PassingGrid):
    """The grid for a stock strategy: every client is a node, numbered from 1 in the order of names.

    Parameters
    ----------
    grid : grid with the nodes that host the clients.
    timeout : seconds that the strategy may wait for clients.
    whose : description of the strategy in messages.

    Attributes
    ----------
    gone : positions of the clients whose node was not connected at the last check.
    """

    def __init__(self, grid: OrderedGrid, federation: Federation, timeout: float, whose: str) -> None:
        super().__init__(grid)
        self._federation, self._whose = federation, whose
        self._timeout, self._deadline = timeout, time.monotonic() + timeout
        self.gone, self._just_looked = self._look(), True

    def _look(self) -> list[int]:
        """Return the positions of the clients whose node is not connected, by a call to Flower's server."""
        connected = set(self._grid.get_node_ids())
        hosts = self._federation.hosts.items()
        return sorted(place for node, rows in hosts if node not in connected for place in rows.tolist())

    def get_node_ids(self) -> Iterable[int]:
        """Return the numbers of the clients whose node is connected.

        Raises RunError when a strategy waits longer than ``timeout`` seconds.
        """
        self.gone, self._just_looked = self.gone if self._just_looked else self._look(), False
        gone = set(self.gone)
        if time.monotonic() > self._deadline:
            names = [self._federation.names[position] for position in self.gone]
            raise RunError(
                f"{self._whose}, has waited {self._timeout:.0f} s ([experiment] timeout) for more than the "
                f"{len(self._federation.names) - len(gone)} connected clients; missing: {quoted(names)}. To go on with "
                "fewer, set min-available-nodes, min-train-nodes or min-evaluate-nodes in its table"
            )
        return [position + 1 for position in range(len(self._federation.names)) if position not in gone]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Raise RunError: a strategy returns its messages."""
        return self._sends_itself()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Raise RunError: a strategy receives its replies as arguments."""
        return self._sends_itself()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Raise RunError: a strategy returns its messages."""
        return self._sends_itself()

    def _sends_itself(self) -> NoReturn:
        raise RunError(
            f"{self._whose}, sends messages itself: configure_train and configure_evaluate return the messages to send"
        )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python's global generator, by which stock strategies draw clients, and restore it afterwards."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


@contextmanager
def noting_warnings(notes: list[str]) -> Iterator[None]:
    """Add each warning of Flower once to the notes of a run, independent of its log level."""
    flower = logging.getLogger("flwr")
    level, shown = flower.level, flower.getEffectiveLevel()

    def note(record: logging.LogRecord) -> bool:
        text = " ".join(record.getMessage().split()).rstrip(".")
        if record.levelno >= logging.WARNING and text not in notes:
            notes.append(text)
        return record.levelno >= shown

    flower.addFilter(note)
    flower.setLevel(min(shown, logging.WARNING))
    try:
        yield
    finally:
        flower.setLevel(level)
        flower.removeFilter(note)


@contextmanager
def quick_collections() -> Iterator[None]:
    """Exclude existing objects from garbage collection, which Flower runs for each reply."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
