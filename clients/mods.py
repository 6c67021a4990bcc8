"""A mod for any ClientApp that adds the client's name to every reply."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedgraph.clients.terms import noting_terms
from fedgraph.messages.apps import APP_RECORD, NAME_KEY, TERMS_KEY, asks_who
from fedgraph.support.errors import IdentityError


def node_client_name(context: Context) -> str:
    """Return the name of a node's client: node config ``client``, else ``partition-id``.

    Raises IdentityError if both are missing.
    """
    for key in ("client", "partition-id"):
        if key in context.node_config:
            return str(context.node_config[key])
    raise IdentityError(
        "the name of this client is unknown: start the node with --node-config 'client=\"mercy\"', or partition-id"
    )


def client_name(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Add the name of the client to every reply: ``ClientApp(mods=[client_name])``.

    The name is the node config's ``client``, else its ``partition-id``. Strategies of this package that aggregate over
    a graph of clients require it, and query it before the first round.
    """
    sender = {NAME_KEY: node_client_name(context)}
    if asks_who(message.content):
        return Message(RecordDict({APP_RECORD: ConfigRecord(dict(sender))}), reply_to=message)
    with noting_terms() as used:
        reply = call_next(message, context)
    if reply.has_content():
        reply.content[APP_RECORD] = ConfigRecord({**sender, **({TERMS_KEY: sorted(used)} if used else {})})
    return reply
