"""Clients whose answers are not as they should be."""

import pytest
from flwr.app import Message

from fedgraph.clients.app import app as client_app
from fedgraph.messages import error_content


@pytest.fixture(scope="session")
def spoiling():
    """``spoiling(chosen, change)``: a ClientApp that replies to chosen messages with what ``change(content)`` returns.

    ``chosen`` is a function of message and context, or the name of a client, whose node is meant. ``change`` may be a
    text: that of an error.
    """

    def of(chosen, change):
        def client(message, context):
            reply = client_app(message, context)
            hosted = str(context.node_config.get("clients"))
            if not (chosen in hosted if isinstance(chosen, str) else chosen(message, context)):
                return reply
            return Message(
                error_content(change) if isinstance(change, str) else change(reply.content), reply_to=message
            )

        return client

    return of
