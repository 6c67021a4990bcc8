"""Clients of the nodes of a Flower app, which send their names by the mod ``client_name``."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedgraph.messages.apps import APP_RECORD, WHO_KEY, read_client
from fedgraph.strategies.engine.app_exchange import last_words
from fedgraph.support.errors import IdentityError, ReplyError, quoted, similar
from fedgraph.support.untrusted import in_short

log = logging.getLogger("fedgraph")

_NAMES = "A node's name is its node config `client`, else its `partition-id`"
ADVICE = f"have `client_name` (from fedgraph.clients) as the first mod, `ClientApp(mods=[client_name])`. {_NAMES}"


class AppClients:
    """Names of the nodes of an app.

    Parameters
    ----------
    needs_names : whether names are required; otherwise a node without a name has its id.
    known : clients that may take part, such as those of a graph; None for all.

    Attributes
    ----------
    say_names : whether clients send their names, because it is required or one has done so.
    """

    def __init__(self, needs_names: bool, known: Sequence[str] | None = None) -> None:
        self.needs_names, self._known = needs_names, None if known is None else frozenset(known)
        self.name_of: dict[int, str] = {}
        self.say_names = needs_names
        self._strangers: set[str] = set()

    def identify(self, grid: Grid, nodes: Iterable[int], timeout: float) -> dict[str, int]:
        """Return the nodes by the names of their clients, which are queried from new nodes.

        A client is the same under another node id. Nodes without a name, and unknown clients, are skipped with a
        warning. Raises IdentityError when names are required but missing on all nodes, or two nodes send the same.
        """
        requested = sorted(nodes)
        new = [node for node in requested if node not in self.name_of]
        if new and self.say_names:
            self._ask(grid, new, timeout)
            if not any(node in self.name_of for node in requested):
                # The query may have reached a node before its app was ready.
                self._ask(grid, new, timeout)
        elif new:
            self.name_of.update({node: str(node) for node in new})
        found: dict[str, int] = {}
        for node in requested:
            name = self.name_of.get(node)
            if name is None or not self._takes_part(name):
                continue
            if name in found:
                raise IdentityError(
                    f"nodes {found[name]} and {node} have the same client '{name}': set a different `client` in each "
                    "node config"
                )
            found[name] = node
        if not found and requested and self.needs_names:
            self._raise_without_clients(requested)
        return dict(sorted(found.items()))

    def name_from(self, node: int, name: str | None) -> str:
        """Return the client of a node that has answered, possibly with its name for the first time.

        Raises ReplyError if the name has changed.
        """
        known = self.name_of.get(node)
        if name is not None:
            self.say_names = True
        if known is None:
            known = self.name_of[node] = str(node) if name is None else name
        if name is not None and name != known:
            raise ReplyError(f"it has the name '{in_short(name, 50)}', but was '{known}'")
        return known

    def _ask(self, grid: Grid, nodes: Sequence[int], timeout: float) -> None:
        question = RecordDict({APP_RECORD: ConfigRecord({WHO_KEY: True})})
        messages = [Message(question, node, MessageType.TRAIN) for node in nodes]
        silent = dict.fromkeys(nodes, "no answer in time")
        for reply in grid.send_and_receive(messages, timeout=timeout):
            node = reply.metadata.src_node_id
            if reply.has_error():
                silent[node] = last_words(reply)
                continue
            try:
                name = read_client(reply.content)
            except ReplyError as error:
                silent[node] = str(error)
                continue
            silent[node] = "its answer has no name"
            if name is not None and node in silent:
                self.name_of[node] = name
                del silent[node]
        for node, reason in silent.items():
            log.warning("node %d does not send the name of its client (%s): %s", node, reason, ADVICE)

    def _takes_part(self, name: str) -> bool:
        if self._known is None or name in self._known:
            return True
        if name not in self._strangers:
            self._strangers.add(name)
            shown = in_short(name, 50)
            log.warning(
                "client '%s' is not in the client graph and is excluded%s", shown, similar([shown], sorted(self._known))
            )
        return False

    def _raise_without_clients(self, nodes: Sequence[int]) -> None:
        named = sorted(self.name_of[node] for node in nodes if node in self.name_of)
        if not named:
            raise IdentityError(f"this strategy requires the names of clients, but no node sends one: {ADVICE}")
        known = sorted(self._known or ())
        raise IdentityError(
            f"no connected client is in the client graph: connected are {quoted(named)}, the graph has {quoted(known)}"
            f". {_NAMES}"
        )
