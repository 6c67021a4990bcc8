"""Who is behind the nodes of a Flower app: each is a client, which says its name by the mod ``client_name``."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedgraph.messages.apps import APP_RECORD, WHO_KEY, read_client
from fedgraph.strategies.engine.app_exchange import last_words
from fedgraph.support.errors import IdentityError, ReplyError, quoted
from fedgraph.support.untrusted import in_short

log = logging.getLogger("fedgraph")

_NAMES = "A node's name is its node config `client`, else its `partition-id`"
ADVICE = f"have `client_name` (from fedgraph.clients) as the first mod, `ClientApp(mods=[client_name])`. {_NAMES}"


class AppClients:
    """Names of the nodes of an app.

    Parameters
    ----------
    needs_names : whether clients have to say their names; otherwise a node that does not is called by its id.
    known : clients that may take part, such as those of a graph; None for all.

    Attributes
    ----------
    say_names : whether clients say their names, because they have to, or as one has.
    """

    def __init__(self, needs_names: bool, known: Sequence[str] | None = None) -> None:
        self.needs_names, self._known = needs_names, None if known is None else frozenset(known)
        self.name_of: dict[int, str] = {}
        self.say_names = needs_names
        self._strangers: set[str] = set()

    def identify(self, grid: Grid, nodes: Iterable[int], timeout: float) -> dict[str, int]:
        """Return the nodes by the names of their clients; new nodes are asked for them.

        A client that is back under another node id is the same client. Nodes without a name, and clients that are not
        known, are left out, with a warning. Raises IdentityError when names are needed and no node says one, or two
        nodes say the same.
        """
        asked = sorted(nodes)
        new = [node for node in asked if node not in self.name_of]
        if new and self.say_names:
            self._ask(grid, new, timeout)
            if not any(node in self.name_of for node in asked):
                # A node may have been asked before its app was ready.
                self._ask(grid, new, timeout)
        elif new:
            self.name_of.update({node: str(node) for node in new})
        found: dict[str, int] = {}
        for node in asked:
            name = self.name_of.get(node)
            if name is None or not self._takes_part(name):
                continue
            if name in found:
                raise IdentityError(
                    f"nodes {found[name]} and {node} both say that they are client '{name}': give each node a "
                    "`client` of its own in its node config"
                )
            found[name] = node
        if not found and asked and self.needs_names:
            self._raise_without_clients(asked)
        return dict(sorted(found.items()))

    def name_from(self, node: int, name: str | None) -> str:
        """Return the client of a node that has answered, which may say its name for the first time.

        Raises ReplyError for another name than before.
        """
        known = self.name_of.get(node)
        if name is not None:
            self.say_names = True
        if known is None:
            known = self.name_of[node] = str(node) if name is None else name
        if name is not None and name != known:
            raise ReplyError(f"it says that it is client '{in_short(name, 50)}', and is '{known}'")
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
            log.warning("node %d does not say which client it is (%s): %s", node, reason, ADVICE)

    def _takes_part(self, name: str) -> bool:
        if self._known is None or name in self._known:
            return True
        if name not in self._strangers:
            self._strangers.add(name)
            log.warning("client '%s' is not in the client graph, and is left out", in_short(name, 50))
        return False

    def _raise_without_clients(self, nodes: Sequence[int]) -> None:
        named = sorted(self.name_of[node] for node in nodes if node in self.name_of)
        if not named:
            raise IdentityError(f"no node says which client it is, which this strategy has to know: {ADVICE}")
        known = sorted(self._known or ())
        raise IdentityError(
            f"no connected client is in the client graph: connected are {quoted(named)}, the graph has {quoted(known)}"
            f". {_NAMES}"
        )
