"""The in-process grid: ServerApp, strategy and ClientApp unchanged, in one process, where a debugger works."""

from __future__ import annotations

import copy
import itertools
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from importlib.metadata import version
from typing import Any

from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedgraph.support.errors import RunError

_delivering = ContextVar("delivering", default=False)
_SERVER_NODE = 1
_CLIENT_APP_RAISED = 2
"""Flower's error code for an exception inside a ClientApp."""


class LocalGrid(Grid):
    """Grid that delivers messages to a ClientApp by calling it, one node after the other.

    An exception inside the ClientApp becomes an error reply with its traceback, as in Flower.

    Parameters
    ----------
    client_app : ClientApp or callable
        The ClientApp that every node runs.
    node_configs : sequence of mappings
        A node config per node, with the keys that ``flower-supernode --node-config`` sets.
    run_config : mapping, optional
        Run config that every context contains.

    Attributes
    ----------
    contexts : dict of int to Context
        Flower context of each node, by node id.
    reads_messages_once : bool
        True: messages may come from a generator, so that there need not be all at the same time.
    nodes_may_come : bool
        False: all nodes are there from the start.
    """

    nodes_may_come = False
    reads_messages_once = True

    def __init__(
        self,
        client_app: ClientApp | Callable[[Message, Context], Message],
        node_configs: Sequence[Mapping[str, Any]],
        run_config: Mapping[str, Any] | None = None,
    ) -> None:
        self._client_app = client_app
        self._run: Any = None
        self._ids = itertools.count(1)
        self._replies: dict[str, Message] = {}
        _identify_process()
        # Node ids may have any value, as on the other grids; they start high so that they are not mistaken for indices.
        self.contexts = {
            1000 + index: Context(
                run_id=1,
                node_id=1000 + index,
                node_config=dict(config),
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for index, config in enumerate(node_configs)
        }

    @classmethod
    def of_partitions(
        cls, client_app: ClientApp, nodes: int, run_config: Mapping[str, Any] | None = None, **node_config: Any
    ) -> LocalGrid:
        """Build a grid of ``nodes`` nodes among which clients are divided.

        Parameters
        ----------
        client_app : ClientApp
            The ClientApp that every node runs.
        nodes : int
            Number of nodes; node i gets ``partition-id`` i.
        run_config : mapping, optional
            Run config that every context contains.
        **node_config
            Further keys of every node config, with underscores for dashes.
        """
        extra = {key.replace("_", "-"): value for key, value in node_config.items()}
        configs = [{"partition-id": index, "num-partitions": nodes, **extra} for index in range(nodes)]
        return cls(client_app, configs, run_config)

    def set_run(self, run: Any) -> None:
        """Keep Flower's description of the run."""
        self._run = run

    @property
    def run(self) -> Any:
        """Flower's description of the run, if one was set."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Build a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver messages at once and return their ids; the replies wait to be pulled."""
        pushed = []
        for message in messages:
            reply = self._deliver(message)
            self._replies[message.metadata.message_id] = reply
            pushed.append(message.metadata.message_id)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to the given messages, each handed out once."""
        return [self._replies.pop(message_id) for message_id in message_ids if message_id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Deliver messages and return the replies; ``timeout`` has no effect, because calls return with the reply."""
        return [self._deliver(message) for message in messages]

    def _deliver(self, message: Message) -> Message:
        message.metadata.__dict__["_message_id"] = f"message-{next(self._ids)}"
        context = self.contexts.get(message.metadata.dst_node_id)
        if context is None:
            return error_reply(message, f"node {message.metadata.dst_node_id} is not connected")
        # Flower hands every node its own copy; a record shared between messages must not leak from one to the next.
        delivered = copy.copy(message)
        delivered.content = RecordDict({name: record.copy() for name, record in message.content.items()})
        token = _delivering.set(True)
        try:
            reply = self._answer(delivered, context)
        except Exception as error:
            return self._failed(message, error)
        finally:
            _delivering.reset(token)
        reply.metadata.__dict__["_message_id"] = f"message-{next(self._ids)}"
        return reply

    def _answer(self, message: Message, context: Context) -> Message:
        """Return the reply of the node with this context."""
        return self._client_app(message, context)

    def _failed(self, message: Message, error: Exception) -> Message:
        """Return the reply of a node whose ClientApp has raised an exception."""
        return error_reply(message, "".join(traceback.format_exception(error)))


def is_simulated() -> bool:
    """Return whether the node whose message is being answered is simulated: in this process, or by Flower on Ray."""
    # Flower imports this package in the processes of simulated nodes, and in none of a SuperNode.
    return _delivering.get() or "flwr.simulation" in sys.modules


def error_reply(message: Message, reason: str) -> Message:
    """Return Flower's reply for an exception inside a ClientApp."""
    return Message(Error(code=_CLIENT_APP_RAISED, reason=reason), reply_to=message)


def _identify_process() -> None:
    """Give this process the run and node that Flower requires to build a message, as its own processes have them.

    Flower has no public way to say who a process is. It is set on the class that its messages ask, if the installed
    version has it.
    """
    requested = vars(sys.modules[Message.__module__]).get("TaskIdentity")
    if requested is not None:
        requested.run_id, requested.task_id, requested.node_id = 1, 1, _SERVER_NODE
    try:
        Message(RecordDict(), _SERVER_NODE, MessageType.QUERY)
    except RuntimeError as error:
        raise RunError(
            f"flwr {version('flwr')} builds messages in another way than the versions that fedgraph knows ({error}): "
            "install one that `pip show fedgraph-flower` asks for"
        ) from None
