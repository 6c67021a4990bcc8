"""The common part of requests and replies: client class, hosted clients, errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from fedgraph.support.errors import FedgraphError, ReplyError
from fedgraph.support.files import file_name
from fedgraph.support.untrusted import check_name, in_short

CLIENT_KEY = "fedgraph-client"
EXPERIMENT_KEY = "fedgraph-experiment"
RUN_KEY = "fedgraph-run"
ROUND_KEY = "server-round"
KEEP_KEY = "keep-from"
CHALLENGE_KEY = "identity-challenge"
PROOF_KEY = "identity-proof"

_UNREACHABLE = frozenset({3, 4, 5})
"""Flower's error codes for an unavailable message, reply or node."""

_LONGEST_FILE_NAME = 200
_MOST_PARTITIONS = 1 << 20


def error_content(text: str) -> RecordDict:
    """Build the content of a reply that reports an error.

    Returns a record ``config`` with the text under ``error``, read by :func:`read_error`.
    """
    return RecordDict({"config": ConfigRecord({"error": text})})


def read_error(message: Message) -> str | None:
    """Return the error of a message, or None for a usable reply.

    It is the message of the client side, or the last line of Flower's, without control characters and limited to 2,000
    characters.
    """
    if message.has_error():
        reason = (message.error.reason or f"error code {message.error.code}").strip()
        return in_short(reason.splitlines()[-1]) if reason else "no reason given"
    config = message.content.config_records.get("config")
    if config is not None and "error" in config:
        return in_short(str(config["error"])) or "no reason given"
    return None


def read_proof(content: RecordDict) -> bytes | None:
    """Return the signature that the node may host its clients (:func:`fedgraph.federation.prove`), or None."""
    config = content.config_records.get("config")
    proof = None if config is None else config.get(PROOF_KEY)
    return proof if isinstance(proof, bytes) else None


def is_unreachable(message: Message) -> bool:
    """Return whether Flower reports that the node or its answer is unavailable (error codes 3, 4 and 5)."""
    return message.has_error() and message.error.code in _UNREACHABLE


@dataclass(frozen=True)
class Request:
    """Base class of requests to a node.

    Attributes
    ----------
    client : str
        Dotted path of the client class that answers it.
    experiment : str
        The node's part of the experiment, as JSON.
    run : str
        Name of the run folder.
    """

    client: str = field(default="", kw_only=True)
    experiment: str = field(default="", kw_only=True)
    run: str = field(default="", kw_only=True)

    def pack(self) -> RecordDict:
        """Convert to Flower records; requests of methods add theirs."""
        return RecordDict({"config": ConfigRecord(self.header())})

    def header(self) -> dict[str, Any]:
        """Return these fields as entries of the record ``config``."""
        return {CLIENT_KEY: self.client, EXPERIMENT_KEY: self.experiment, RUN_KEY: self.run}

    @staticmethod
    def read_header(config: Mapping[str, Any]) -> dict[str, str]:
        """Read the fields from the entries of the record ``config``. Raises ReplyError for an invalid name."""
        known = {"client": CLIENT_KEY, "experiment": EXPERIMENT_KEY, "run": RUN_KEY}
        found = {field: str(config[key]) for field, key in known.items()}
        # Nodes keep state in a folder of this name.
        if not 0 < len(file_name(found["run"])) <= _LONGEST_FILE_NAME:
            raise ReplyError(f"the request is of a run with an impossible name: {in_short(found['run'], 60)}")
        return found


@contextmanager
def unpacking_request() -> Iterator[None]:
    """Raise ReplyError for missing or invalid parts of a request in a ``with`` block; errors of this project pass."""
    try:
        yield
    except FedgraphError:
        raise
    except KeyError as error:
        raise ReplyError(f"the request lacks {error}; server and node run different versions of fedgraph") from None
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise ReplyError(f"the request is malformed ({in_short(str(error), 300)})") from None


@contextmanager
def unpacking_reply(what: str) -> Iterator[None]:
    """Convert any exception in a ``with`` block that reads an untrusted reply to a ReplyError.

    Parameters
    ----------
    what : str
        Description of the reply, in error messages.
    """
    try:
        yield
    except Exception as error:
        raise ReplyError(f"{what} is malformed ({in_short(str(error), 300)})") from None


def read_hosts(config: Mapping[str, Any], who: str = "client") -> tuple[tuple[str, ...], tuple[int, int] | None]:
    """Read the clients of a node from its answer.

    Raises ReplyError when clients are missing, not unique or have invalid names, or the partition is out of range.

    Parameters
    ----------
    config : mapping
        Record ``config`` of the answer.
    who : str, default "client"
        Term for a client in error messages, for example "owner".

    Returns
    -------
    clients : tuple of str
        Names of the clients.
    partition : tuple of (int, int) or None
        ``(partition-id, num-partitions)``; None for a node that names its clients.
    """
    try:
        if not isinstance(config["clients"], list):
            raise ReplyError(f"the answer is malformed: it has no list of {who}s")
        clients = tuple(config["clients"])
        for name in clients:
            check_name(name, "a client")
        divided = [int(part) for part in config["partition"]]
        partition = (divided[0], divided[1]) if divided else None
    except ReplyError:
        raise
    except Exception as error:
        raise ReplyError(
            f"the answer is malformed: it does not say whom the node hosts ({in_short(str(error), 300)})"
        ) from None
    if len(set(clients)) != len(clients):
        raise ReplyError(f"the answer names {'an' if who[0] in 'aeiou' else 'a'} {who} twice")
    if partition is not None and not 0 <= partition[0] < partition[1] <= _MOST_PARTITIONS:
        raise ReplyError(f"the answer says that it is partition {partition[0]} of {partition[1]}")
    return clients, partition
