"""The name of the client that a reply is from."""

from __future__ import annotations

from flwr.app import RecordDict

from fedgraph.support.untrusted import check_name

_RECORD, _CLIENT = "fedgraph", "client"


def client_named(content: RecordDict, node: int) -> str:
    """Return the name of the client that a reply is from, as the mod ``client_name`` has added it.

    Parameters
    ----------
    content : RecordDict
        Content of the reply.
    node : int
        Id of the node, whose digits are the name where the reply has none.

    Raises
    ------
    ReplyError
        For a name that cannot be shown.
    """
    record = content.config_records.get(_RECORD)
    if record is None or _CLIENT not in record:
        return str(node)
    name = record[_CLIENT]
    check_name(name, "a client")
    return str(name)
