"""Disturbances of a run: replies lost, spoilt or reordered, nodes restarted, the power cut."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import Array, ConfigRecord, Context, Message, RecordDict

from fedgraph.clients.app import app as client_app
from fedgraph.clients.engine.node import forget_cohorts
from fedgraph.messages import ROUND_KEY, error_content
from fedgraph.runs import Callback

AGAIN, CUT, LOST, ALL_LOST = "nothing changed", "a power cut", "a lost reply", "all replies lost"
REORDERED, RESTARTED, ON_RAY = "replies in another order", "nodes that restart", "nodes on Ray"
SHAPE, NAN, MISSING, NAME = SPOILT = (
    "tensors of another shape",
    "a NaN",
    "a tensor missing",
    "the name of another client",
)
"""Kinds of malformed replies."""


class PowerCut(BaseException):
    """Ends a run at once, like a kill: not caught by ``except Exception``."""


class ChangedNodes(Callback):
    """A ClientApp and callback that disturb a run.

    Two replies are lost or spoilt after the clients' work: the first node's in round 1 and the second's in round 2
    (without rounds: all of the first node). In rounds, replies without tensors are not changed. The power is cut once
    in round 2 after the first node's work, and once in the second epoch of a server. ``happened`` is whether a reply
    was changed or the power was cut.
    """

    def __init__(self, change: str, has_rounds: bool, restart: Callable[[], None]) -> None:
        self._change, self._has_rounds, self._restart = change, has_rounds, restart
        self._cuts: set[str] = set()
        self.happened = False

    def __call__(self, message: Message, context: Context) -> Message:
        """Handle a message."""
        if self._change == RESTARTED:
            self._restart()
            context = Context(context.run_id, context.node_id, context.node_config, RecordDict(), context.run_config)
        reply = client_app(message, context)
        if message.metadata.message_type == "query.identify":
            return reply
        config: Any = message.content.config_records.get("config", {})
        node, server_round = context.node_config["partition-id"], int(config.get(ROUND_KEY, 0))
        if node == 0 and (server_round >= 2 or not self._has_rounds):
            self._cut("message")
        if self._has_rounds:
            affected = server_round == 2 if self._change == ALL_LOST else (node, server_round) in ((0, 1), (1, 2))
            affected = affected and any(map(len, reply.content.array_records.values()))
        else:
            affected = node == 0 or self._change == ALL_LOST
        if affected and self._change in (LOST, ALL_LOST):
            self.happened = True
            return lost(message)
        if affected:
            self.happened |= spoil(reply, self._change)
        return reply

    def on_epoch(self, phase: str, epoch: int) -> None:
        """Cut the power in the second epoch."""
        if epoch >= 2:
            self._cut("epoch")

    def _cut(self, kind: str) -> None:
        if self._change == CUT and kind not in self._cuts:
            self._cuts.add(kind)
            self.happened = True
            raise PowerCut


def lost(request: Message) -> Message:
    """Return the message that the server receives instead of a lost reply."""
    return Message(error_content("no reply, simulated by fedgraph check"), reply_to=request)


def spoil(reply: Message, kind: str) -> bool:
    """Change a reply to one of :data:`SPOILT`, and return whether this was possible."""
    changed = False
    for record in reply.content.array_records.values():
        for name, array in list(record.items()):
            values = array.numpy().copy()
            if kind == SHAPE:
                record[name] = Array(np.zeros((3, 2), values.dtype))
            elif kind == NAN and values.dtype.kind == "f" and values.size:
                values.flat[0] = np.nan
                record[name] = Array(values)
            elif kind == MISSING and not changed:
                del record[name]
            else:
                continue
            changed = True
    for name, config in list(reply.content.config_records.items()):
        if kind == NAME and isinstance(config.get("clients"), list):
            reply.content[name] = ConfigRecord({**config, "clients": ["somebody-else"]})
            changed = True
    return changed


@contextmanager
def restartable(names: Iterable[str]) -> Iterator[Callable[[], None]]:
    """Yield a function that simulates a restart of the process; restore the modules at the end of the block.

    The function reloads the named modules, except those of this project and Flower, and clears the nodes' caches.
    """
    loaded = {name: sys.modules[name] for name in names if name.partition(".")[0] not in ("fedgraph", "flwr")}

    def restart() -> None:
        forget_cohorts()
        for name, module in loaded.items():
            spec = module.__spec__
            if spec is not None and spec.loader is not None:
                sys.modules[name] = anew = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(anew)

    try:
        yield restart
    finally:
        sys.modules.update(loaded)
