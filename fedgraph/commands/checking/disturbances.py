"""What can happen to a run: replies lost, spoilt or late, nodes restarted, the power cut."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from flwr.app import Array, ConfigRecord, Context, Message, RecordDict

from fedgraph.clients.app import app as client_app
from fedgraph.clients.engine.node import forget_cohorts
from fedgraph.federation.grids import LocalGrid
from fedgraph.messages import ROUND_KEY, error_content
from fedgraph.runs import Callback

Serve = Callable[[Message, Context], Message]
Disturbance = Callable[[Message, Message], Message | None]
"""Function of a request and its reply; returns what arrives in its place, None where there is nothing to disturb."""

_OURS = ("fedgraph", "flwr")


class PowerCut(BaseException):
    """Ends a run where it is, as a kill does: nothing that catches errors catches it."""


@dataclass(frozen=True)
class Place:
    """Where a run is disturbed: at one node, in one round.

    Attributes
    ----------
    node : int
        ``partition-id`` of the node.
    round : int or None
        The round; None for every exchange, in methods without rounds.
    """

    node: int
    round: int | None

    def holds(self, message: Message, context: Context) -> bool:
        """Check whether a message is one to this node in this round; never the opening query."""
        here = context.node_config["partition-id"] == self.node
        opening = message.metadata.message_type == "query.identify"
        return here and not opening and self.round in (None, round_of(message))


def round_of(message: Message) -> int | None:
    """Return the round that a request is for; None where it names none."""
    config: Any = message.content.config_records.get("config", {})
    server_round = config.get(ROUND_KEY)
    return None if server_round is None else int(server_round)


class Disturbed:
    """The ClientApp, of whose answers at some places only ``disturb(request, reply)`` arrives.

    The clients have done their work by then, and keep what they keep. In rounds, answers without tensors arrive as they
    are: what was measured makes no model.

    Attributes
    ----------
    happened : bool
        Whether a reply was disturbed at all.
    """

    def __init__(self, places: Iterable[Place], disturb: Disturbance) -> None:
        self._places, self._disturb = tuple(places), disturb
        self.happened = False

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        reply = client_app(message, context)
        here = [place for place in self._places if place.holds(message, context)]
        if not here or (here[0].round is not None and not any(map(len, reply.content.array_records.values()))):
            return reply
        changed = self._disturb(message, reply)
        self.happened |= changed is not None
        return reply if changed is None else changed


def silent(places: Iterable[Place]) -> Serve:
    """Return the ClientApp, whose nodes hear nothing at these places, and do nothing."""
    where = tuple(places)

    def serve(message: Message, context: Context) -> Message:
        if any(place.holds(message, context) for place in where):
            return lost(message)
        return client_app(message, context)

    return serve


def lost(request: Message, reply: Message | None = None) -> Message:
    """Return what the server sees in place of a reply that did not arrive."""
    return Message(error_content("no answer: this is the absence that fedgraph check tries"), reply_to=request)


def _changed(change: Callable[[np.ndarray], np.ndarray | None]) -> Disturbance:
    """Return a disturbance of every array for which ``change`` returns another one."""

    def spoil(request: Message, reply: Message) -> Message | None:
        found = False
        for record in reply.content.array_records.values():
            for name, array in list(record.items()):
                changed = change(array.numpy().copy())
                if changed is not None:
                    record[name] = Array(changed)
                    found = True
        return reply if found else None

    return spoil


def _with_nan(values: np.ndarray) -> np.ndarray | None:
    if values.dtype.kind != "f" or not values.size:
        return None
    values.flat[0] = np.nan
    return values


def _without_one_array(request: Message, reply: Message) -> Message | None:
    record = next((record for record in reply.content.array_records.values() if len(record)), None)
    if record is None:
        return None
    del record[next(iter(record))]
    return reply


def _of_somebody_else(request: Message, reply: Message) -> Message | None:
    named = {
        name: record for name, record in reply.content.config_records.items() if isinstance(record.get("clients"), list)
    }
    for name, record in named.items():
        reply.content[name] = ConfigRecord({**record, "clients": ["somebody-else"]})
    return reply if named else None


SPOILT: dict[str, Disturbance] = {
    "tensors of another shape": _changed(lambda values: np.zeros((3, 2), values.dtype)),
    "a NaN": _changed(_with_nan),
    "a tensor missing": _without_one_array,
    "the name of another client": _of_somebody_else,
}
"""What may be wrong with a reply, and the function that makes it so."""


class ShuffledGrid(LocalGrid):
    """Grid whose replies arrive in another order than they were asked for; node ids are in another order too."""

    @classmethod
    def of_partitions(cls, *arguments: Any, **named: Any) -> LocalGrid:
        """Build the grid, the node of the first clients with the highest id."""
        grid = super().of_partitions(*arguments, **named)
        configs = [context.node_config for context in grid.contexts.values()]
        for context, config in zip(grid.contexts.values(), reversed(configs), strict=True):
            context.node_config = config
        return grid

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Deliver messages; the reply to the last arrives first."""
        replies = list(super().send_and_receive(messages, timeout=timeout))
        return replies[-1:] + replies[:-1]


class OwnModules:
    """Modules of a user that hold the classes of a run, which a restarted process would load anew.

    Parameters
    ----------
    names : iterable of str
        Names of modules; those of this project and of Flower are left as they are.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._loaded = {name: sys.modules[name] for name in names if name.partition(".")[0] not in _OURS}

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Put the modules back at the end of the block."""
        try:
            yield
        finally:
            sys.modules.update(self._loaded)

    def restart(self) -> None:
        """Load the modules anew, and forget what nodes have prepared."""
        forget_cohorts()
        for name, module in self._loaded.items():
            spec = module.__spec__
            if spec is None or spec.loader is None:
                continue
            anew: ModuleType = importlib.util.module_from_spec(spec)
            sys.modules[name] = anew
            spec.loader.exec_module(anew)


def restarting(modules: OwnModules) -> Serve:
    """Return the ClientApp on nodes that are restarted before every message; their state folders stay."""

    def serve(message: Message, context: Context) -> Message:
        modules.restart()
        bare = Context(context.run_id, context.node_id, context.node_config, RecordDict(), context.run_config)
        return client_app(message, bare)

    return serve


class PowerCuts(Callback):
    """Cuts the power once within a round, when its first node has worked, and once within a later epoch of a server.

    Parameters
    ----------
    within : int
        The round; in a method without rounds, the exchange.
    """

    def __init__(self, within: int) -> None:
        self._within = within
        self._exchanges = 0
        self._done: set[str] = set()

    @property
    def happened(self) -> bool:
        """Whether there was a cut at all."""
        return bool(self._done)

    def serve(self, message: Message, context: Context) -> Message:
        """Answer a message as the ClientApp, and cut the power where it is due."""
        reply = client_app(message, context)
        if message.metadata.message_type != "query.identify" and context.node_config["partition-id"] == 0:
            self._exchanges += 1
            server_round = round_of(message)
            if (self._exchanges if server_round is None else server_round) >= self._within:
                self._cut("message")
        return reply

    def on_epoch(self, phase: str, epoch: int) -> None:
        """Cut the power in the second epoch."""
        if epoch >= 2:
            self._cut("epoch")

    def _cut(self, kind: str) -> None:
        if kind not in self._done:
            self._done.add(kind)
            raise PowerCut
