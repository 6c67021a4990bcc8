"""The grid of ``fedgraph simulate``: any ServerApp and ClientApp in one process, in an order that repeats.

Messages are treated as by Flower's own grid: a node works on copies, and keeps a handler's changes to ``context.state``
only if the handler returns.
"""

from __future__ import annotations

import copy
import logging
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, SimpleNamespace, TracebackType
from typing import Any

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedgraph.federation.grids.in_process import LocalGrid, error_reply
from fedgraph.support.errors import RunError

_log = logging.getLogger("fedgraph")

_WAITS, _WAITED_SECONDS = 4, 3.0
"""A program that has slept this often and this long between queries with the same answer would wait for ever."""
_IDLE = 0.2
"""Of the time between two questions, the part that the processor is busy at most while a program sleeps."""
_QUESTIONS = 50_000
"""Number of queries in a row after which a program that does not sleep would wait for ever, too."""


@dataclass(frozen=True)
class Failure:
    """An exception that ended the work of a ClientApp on a message.

    Attributes
    ----------
    node_id : int
        The node.
    partition : int
        Its position among the nodes.
    message_type : str
        Such as ``"train"``.
    error : Exception
        The exception; of several with the same traceback, the first one has it.
    """

    node_id: int
    partition: int
    message_type: str
    error: Exception


class SimulationGrid(LocalGrid):
    """Grid for the ServerApp and ClientApp of any Flower app, in this thread.

    Messages are delivered and replies returned in the order of nodes, not of messages: Flower's
    strategies shuffle the nodes that they sample. Messages of a generator are delivered as they come. A program that
    waits for more nodes or replies than there are is ended by an error.

    Parameters
    ----------
    client_app : ClientApp or callable
        The ClientApp that every node runs.
    node_configs : sequence of mappings
        A node config per node.
    run_config : mapping, optional
        Run config that every context contains.
    raise_errors : bool, default False
        Raise an exception of the ClientApp at once, as it is, instead of logging it and replying with an error.

    Attributes
    ----------
    failures : list of Failure
        Exceptions of the ClientApp so far.
    answered : int
        Messages so far that a ClientApp answered without an exception.
    """

    def __init__(
        self,
        client_app: ClientApp | Callable[[Message, Context], Message],
        node_configs: Sequence[Mapping[str, Any]],
        run_config: Mapping[str, Any] | None = None,
        raise_errors: bool = False,
    ) -> None:
        super().__init__(client_app, node_configs, run_config)
        self.failures: list[Failure] = []
        self.answered = 0
        self._raise_errors = raise_errors
        self._shown: set[str] = set()
        self._positions = {node_id: position for position, node_id in enumerate(self.contexts)}
        self._questions = _Questions()
        self.set_run(SimpleNamespace(run_id=1, fab_id="", fab_version="", fab_hash="", override_config={}))

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes, or raise RunError in a loop that waits for more."""
        self._questions.asked()
        nodes = len(self.contexts)
        present = f"there {'is' if nodes == 1 else 'are'} {nodes}, and no more will come"
        wanted = self._questions.number_in(sys._getframe(1), "min_available_nodes")
        if wanted is not None and wanted > nodes:
            raise RunError(
                f"the ServerApp waits for {wanted} nodes, but {present}: simulate {wanted} nodes, or lower "
                "min_available_nodes, min_train_nodes or min_evaluate_nodes of its strategy"
            )
        if self._questions.is_stuck:
            raise RunError(
                f"the ServerApp asks for the nodes again and again, but {present}: simulate more nodes, or let it "
                "wait for fewer"
            )
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver messages at once and return their ids; the replies wait to be pulled."""
        given = list(messages)
        for reply in self._delivered(given):
            self._replies[reply.metadata.reply_to_message_id] = reply
        return [message.metadata.message_id for message in given]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to the given messages, each handed out once, or raise RunError in a loop that waits for
        more.
        """
        requested = set(message_ids)
        pulled = [self._replies.pop(message_id) for message_id in list(self._replies) if message_id in requested]
        if not pulled:
            self._questions.asked()
            if self._questions.is_stuck:
                raise RunError(
                    "the ServerApp waits for replies that will not come: every message that it pushed was answered at "
                    "once, and each reply is handed out once"
                )
        return sorted(pulled, key=lambda reply: self._position(reply.metadata.src_node_id))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Deliver messages and return the replies; ``timeout`` has no effect, because calls return with the reply."""
        return self._delivered(messages)

    def _delivered(self, messages: Iterable[Message]) -> list[Message]:
        if isinstance(messages, Sequence):
            messages = sorted(messages, key=lambda message: self._position(message.metadata.dst_node_id))
        # A generator makes messages one by one because all of them at once would take too much memory.
        replies = [self._deliver(message) for message in messages]
        self._questions = _Questions()
        return sorted(replies, key=lambda reply: self._position(reply.metadata.src_node_id))

    def _position(self, node_id: int) -> int:
        return self._positions.get(node_id, len(self._positions))

    def _answer(self, message: Message, context: Context) -> Message:
        working = copy.copy(context)
        working.state = _copied(context.state)
        working.node_config, working.run_config = dict(context.node_config), dict(context.run_config)
        message.content = _copied(message.content)
        try:
            reply = super()._answer(message, working)
        except SystemExit as ended:
            raise RunError(f"the ClientApp has called sys.exit({ended.code!r})") from ended
        _check_reply(reply, message)
        self.contexts[context.node_id] = working
        self.answered += 1
        if reply.has_content():
            reply.content = _copied(reply.content)
        return reply

    def _failed(self, message: Message, error: Exception) -> Message:
        node_id = message.metadata.dst_node_id
        failure = Failure(node_id, self._position(node_id), message.metadata.message_type, error)
        self.failures.append(failure)
        where = f"ClientApp of node {node_id} (partition {failure.partition}), message '{failure.message_type}'"
        if self._raise_errors:
            error.add_note(f"Raised by the {where}")
            raise error
        # A mistake in the app is the same at every node.
        within = _within_app(error)
        trace, reason = "".join(traceback.format_tb(within)), f"{type(error).__name__}: {error}"
        if trace in self._shown:
            _log.warning("%s: %s (traceback as above)", where, reason)
            error.__traceback__ = None  # its frames hold a client's model and data
        else:
            _log.warning("%s:\n%s", where, "".join(traceback.format_exception(type(error), error, within)).rstrip())
        self._shown.add(trace)
        return error_reply(message, reason)


class _Questions:
    """Questions of a program to the grid that nothing came between: does it wait for another answer?"""

    def __init__(self) -> None:
        self._count = self._waits = 0
        self._waited = 0.0
        self._last: tuple[float, float] | None = None
        self._place: tuple[int, int] | None = None

    def asked(self) -> None:
        """Note a question, and whether the program slept since the last one."""
        now = time.monotonic(), time.process_time()
        if self._last is not None:
            passed, computed = now[0] - self._last[0], now[1] - self._last[1]
            slept = passed > 0.001 and computed < _IDLE * passed
            self._waits, self._waited = (self._waits + 1, self._waited + passed) if slept else (0, 0.0)
        self._count, self._last = self._count + 1, now

    @property
    def is_stuck(self) -> bool:
        """Whether the program waits for an answer that it will not get."""
        return (self._waits >= _WAITS and self._waited >= _WAITED_SECONDS) or self._count > _QUESTIONS

    def number_in(self, caller: FrameType, name: str) -> int | None:
        """Return a number of the asking function if it slept and asks a second time at the same place, in a loop."""
        before, self._place = self._place, (id(caller), caller.f_lineno)
        value = caller.f_locals.get(name) if before == self._place and self._waits else None
        return value if isinstance(value, int) else None


def _within_app(error: Exception) -> TracebackType | None:
    """Return the traceback of an exception from where the grids call the ClientApp."""
    here, trace = Path(__file__).parent, error.__traceback__
    while trace is not None and trace.tb_next is not None and Path(trace.tb_frame.f_code.co_filename).parent == here:
        trace = trace.tb_next
    return trace


def _copied(content: RecordDict) -> RecordDict:
    """Copy records and their lists; the bytes of arrays never change and are shared."""
    copies: dict[str, Any] = {name: record.copy() for name, record in content.items()}
    for record in copies.values():
        if not isinstance(record, ArrayRecord):
            record.update({key: value.copy() for key, value in record.items() if isinstance(value, list)})
    return RecordDict(copies)


def _check_reply(reply: object, message: Message) -> None:
    """Raise for messages that Flower would lose while its ServerApp waits for ever."""
    if not isinstance(reply, Message):
        raise TypeError(f"the ClientApp returned {type(reply).__name__} instead of a Message")
    if reply.metadata.reply_to_message_id != message.metadata.message_id:
        raise ValueError(
            "the ClientApp returned a Message that is no reply to the one it got: make it with "
            "Message(content, reply_to=message)"
        )
