"""What every request and every reply has: who answers it, whom it speaks for, an error in place of an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from fedgraph.support.errors import ReplyError

CLIENT_KEY = "fedgraph-client"
EXPERIMENT_KEY = "fedgraph-experiment"
RUN_KEY = "fedgraph-run"
ROUND_KEY = "server-round"
KEEP_KEY = "keep-from"
CHALLENGE_KEY = "identity-challenge"
PROOF_KEY = "identity-proof"

_UNREACHABLE = frozenset({3, 4, 5})
"""Flower's error codes for a message, a reply or a node that is unavailable."""

_MOST_PARTITIONS = 1 << 20


def error_content(text: str) -> RecordDict:
    """The content of a reply that says why there is none."""
    return RecordDict({"config": ConfigRecord({"error": text})})


def error_of(message: Message) -> str | None:
    """Why a message is no usable reply: the client side's own words, or Flower's; None for a usable one."""
    if message.has_error():
        reason = (message.error.reason or f"error code {message.error.code}").strip()
        return reason.splitlines()[-1] if reason else "no reason given"
    config = message.content.config_records.get("config")
    if config is not None and "error" in config:
        return str(config["error"])
    return None


def proof_of(content: RecordDict) -> bytes | None:
    """The proof in an answer that its node may host its clients (``fedgraph.federation.identity``); None without
    one."""
    config = content.config_records.get("config")
    proof = None if config is None else config.get(PROOF_KEY)
    return proof if isinstance(proof, bytes) else None


def is_unreachable(message: Message) -> bool:
    """Whether Flower, not the node, answered that the node or its answer is not to be had."""
    return message.has_error() and message.error.code in _UNREACHABLE


@dataclass(frozen=True)
class Request:
    """What every request to a node says.

    client     : dotted path of the client class that answers it.
    experiment : the part of the experiment that nodes get, as JSON.
    run        : the name of the run folder.
    """

    client: str
    experiment: str
    run: str

    def header(self) -> dict[str, Any]:
        """That as entries of the record ``config``."""
        return {CLIENT_KEY: self.client, EXPERIMENT_KEY: self.experiment, RUN_KEY: self.run}

    @staticmethod
    def header_of(config: Mapping[str, Any]) -> dict[str, str]:
        """The fields from those entries."""
        known = {"client": CLIENT_KEY, "experiment": EXPERIMENT_KEY, "run": RUN_KEY}
        return {field: str(config[key]) for field, key in known.items()}


@contextmanager
def unpacking_request() -> Iterator[None]:
    """Unpack a request in this block; raises ReplyError when a part is missing."""
    try:
        yield
    except KeyError as error:
        raise ReplyError(f"the request lacks {error}; server and node run different versions of fedgraph") from None


@contextmanager
def unpacking_reply(what: str) -> Iterator[None]:
    """Unpack a reply in this block: replies are untrusted, and whatever trips over one raises ReplyError."""
    try:
        yield
    except Exception as error:
        raise ReplyError(f"{what} is malformed ({error})") from None


def told_hosts(config: Mapping[str, Any], who: str = "client") -> tuple[tuple[str, ...], tuple[int, int] | None]:
    """Whom a node says in the record ``config`` that it hosts, and ``(partition-id, num-partitions)``, None for a node
    that names its clients. Raises ReplyError for anything else; ``who`` they are, in messages."""
    try:
        clients = tuple(str(name) for name in config["clients"])
        dealt = [int(part) for part in config["partition"]]
        partition = (dealt[0], dealt[1]) if dealt else None
    except Exception as error:
        raise ReplyError(f"the answer is malformed: it does not say whom the node hosts ({error})") from None
    if len(set(clients)) != len(clients) or not all(clients):
        raise ReplyError(f"the answer names {'an' if who[0] in 'aeiou' else 'a'} {who} twice or without a name")
    if partition is not None and not 0 <= partition[0] < partition[1] <= _MOST_PARTITIONS:
        raise ReplyError(f"the answer says that it is partition {partition[0]} of {partition[1]}")
    return clients, partition
