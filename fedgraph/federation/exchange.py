"""The server's side of every exchange: the opening query, and a grid with a fixed order of nodes and replies."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedgraph.federation.agreement import contradictions
from fedgraph.federation.federation import Federation, Traffic
from fedgraph.federation.identity import challenge, check_proof
from fedgraph.federation.roll_call import Answer, RollCall
from fedgraph.messages import (
    CHALLENGE_KEY,
    CLIENT_KEY,
    EXPERIMENT_KEY,
    Identity,
    check_content,
    error_of,
    is_unreachable,
    proof_of,
)
from fedgraph.support.errors import IdentityError, ReplyError
from fedgraph.support.untrusted import in_short

log = logging.getLogger("fedgraph")

_POLL_SECONDS = 0.5
_REMIND_SECONDS = 10.0
_ANSWER_SECONDS = 300.0
"""Seconds in which a connected node may load its libraries and data before it answers the opening query."""

_LONGEST_TRACEBACK = 20_000
"""Letters of an error of a node that are written to the log."""

_ONCE_PER_NODE = frozenset({"shared", "arrays"})
"""Records that a node receives or sends once for all its clients; all other records have arrays per client."""

SomeReply = TypeVar("SomeReply")


class OrderedGrid(Grid):
    """Flower grid restricted to the nodes that host clients, in the order of their first client's name.

    Node ids are random in every run and replies arrive in any order, so that sums over replies in order of arrival
    would not be reproducible. All traffic after the opening query passes through this grid, which counts exchanges and
    array bytes.

    Parameters
    ----------
    grid : Grid
        Grid that delivers the messages.
    federation : Federation
        Clients of the run and the nodes that host them.
    traffic : Traffic, optional
        Counter to continue; a new one by default.

    Attributes
    ----------
    traffic : Traffic
        What was sent so far.
    """

    def __init__(self, grid: Grid, federation: Federation, traffic: Traffic | None = None) -> None:
        self._grid = grid
        self.traffic = Traffic() if traffic is None else traffic
        self._num_clients = {node: len(rows) for node, rows in federation.hosts.items()}
        self._rank = {
            node: rank for rank, node in enumerate(sorted(federation.hosts, key=lambda n: federation.clients_of(n)[0]))
        }

    def set_run(self, run: Any) -> None:
        """Pass Flower's description of the run on to the grid below."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """Flower's description of the run."""
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Build a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the connected nodes that host clients, in order."""
        connected = set(self._grid.get_node_ids())
        return [node for node in self._rank if node in connected]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages to the grid below."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to the given messages, in the order of the nodes."""
        return self._ordered(self._grid.pull_messages(message_ids))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Run one exchange and return the replies in the order of the nodes, whichever came first.

        Replies of nodes that host no client are dropped. ``timeout`` is in seconds.
        """
        outgoing = list(messages)
        if not outgoing:
            return []
        self.traffic.exchanges += 1
        replies = self._ordered(self._grid.send_and_receive(outgoing, timeout=timeout))
        _count(self.traffic, outgoing, replies, self._hosted)
        return replies

    def _hosted(self, node: int) -> int:
        return self._num_clients.get(node, 1)

    def _ordered(self, replies: Iterable[Message]) -> list[Message]:
        known = [reply for reply in replies if reply.metadata.src_node_id in self._rank]
        return sorted(known, key=lambda reply: self._rank[reply.metadata.src_node_id])


def _count(
    traffic: Traffic,
    sent: Iterable[Message],
    received: Iterable[Message],
    hosted: Callable[[int], int] = lambda node: 1,
) -> None:
    """Add the requests and replies of an exchange to ``traffic``.

    ``hosted`` returns the number of clients of a node. A request that names clients counts for these only.
    """
    asked: dict[int, int] = {}
    for message in sent:
        node = message.metadata.dst_node_id
        asked[node] = _clients_named(message) or hosted(node)
        once, own = _array_bytes(message)
        traffic.bytes_down += once + own
        traffic.bytes_down_alone += asked[node] * once + own
    for message in received:
        once, own = _array_bytes(message)
        traffic.bytes_up += once + own
        traffic.bytes_up_alone += asked.get(message.metadata.src_node_id, 1) * once + own


def _clients_named(message: Message) -> int:
    config: Any = message.content.config_records.get("config", {}) if message.has_content() else {}
    named = config.get("clients")
    return len(named) if isinstance(named, list) else 0


def _array_bytes(message: Message) -> tuple[int, int]:
    """Return the bytes of the arrays that a node's clients share, and of the arrays that each client has for itself."""
    once = own = 0
    for name, record in message.content.items() if message.has_content() else ():
        if isinstance(record, ArrayRecord):
            size = sum(len(array.data) for array in record.values())
            once, own = (once + size, own) if name in _ONCE_PER_NODE else (once, own + size)
    return once, own


def split_replies(
    replies: Iterable[Message], asked: Iterable[int], read: Callable[[int, RecordDict], SomeReply]
) -> tuple[dict[int, SomeReply], dict[int, str]]:
    """Take in the replies of the nodes that were asked, and separate usable ones from problems.

    This is the only place where replies are read: whatever is wrong with a reply is a problem of its node alone. The
    structure of each is checked before anything is decoded (:func:`fedgraph.messages.check_content`). Replies of nodes
    that were not asked, and second replies of a node, are ignored.

    Parameters
    ----------
    replies : iterable of Message
        Replies in any order.
    asked : iterable of int
        Ids of the nodes that were asked.
    read : callable
        Checks and unpacks the content of a reply, given the node id and the content. May raise ReplyError or
        IdentityError; any other exception is reported as a malformed reply.

    Returns
    -------
    found : dict of int to SomeReply
        Usable replies by node id.
    problems : dict of int to str
        Reasons by node id, for all nodes asked that have no usable reply.
    """
    found: dict[int, SomeReply] = {}
    problems = dict.fromkeys(asked, "no reply in time")
    answered: set[int] = set()
    for reply in replies:
        node = reply.metadata.src_node_id
        if node not in problems or node in answered:
            log.warning("ignored a reply from node %d, which was not asked or has already answered", node)
            continue
        answered.add(node)
        if reply.has_error():
            log.error("node %d: %s", node, in_short(reply.error.reason or "", _LONGEST_TRACEBACK))
        problem = error_of(reply)
        if problem is None:
            try:
                check_content(reply.content)
                found[node] = read(node, reply.content)
            except (ReplyError, IdentityError) as error:
                problem = str(error)
            except Exception as error:
                # Replies are untrusted: no exception that one of them causes may end the run.
                problem = f"malformed reply ({type(error).__name__}: {error})"
        if problem is not None:
            problems[node] = in_short(problem)
    return found, {node: problem for node, problem in problems.items() if node not in found}


SomeAnswer = TypeVar("SomeAnswer", bound=Answer)


def identify(
    grid: Grid,
    client: str,
    experiment: str,
    roll_call: RollCall,
    label_counts: bool,
    on_wait: Callable[[str], None] = lambda text: None,
    traffic: Traffic | None = None,
    tolerate: bool = False,
) -> Federation:
    """Run the opening query: ask all nodes whom they host, and wait until all clients are there.

    Parameters
    ----------
    grid : Grid
        Grid whose nodes are asked.
    client : str
        Dotted path of the client class.
    experiment : str
        Part of the experiment that nodes get, as JSON.
    roll_call : RollCall
        Clients to wait for, and how long.
    label_counts : bool
        Whether nodes also report the number of examples per class of each client.
    on_wait : callable, optional
        Called with a sentence about the clients that are missing, see :func:`ask_everybody`.
    traffic : Traffic, optional
        Counter that the exchange is added to.
    tolerate : bool, default False
        Continue without nodes whose answer is missing, unusable or contradicts the others, see :func:`ask_everybody`.

    Returns
    -------
    Federation
        All clients and the nodes that host them.

    Raises
    ------
    IdentityError
        As for :func:`ask_everybody`, and when a client is hosted twice or nodes host no client at all.
    DataError
        When clients disagree on the task, or a client has no training examples although it should.
    """
    config = ConfigRecord({CLIENT_KEY: client, EXPERIMENT_KEY: experiment, "label-counts": label_counts})
    content = RecordDict({"config": config})

    def read(content: RecordDict) -> Identity:
        identity = Identity.unpack(content)
        if tolerate:
            identity.check_trains()
        return identity

    identities = ask_everybody(
        grid, content, "query.identify", read, roll_call, tolerate=tolerate, on_wait=on_wait, traffic=traffic
    )
    return Federation.of(identities)


def ask_everybody(
    grid: Grid,
    content: RecordDict,
    message_type: str,
    read: Callable[[RecordDict], SomeAnswer],
    roll_call: RollCall,
    timeout: float = _ANSWER_SECONDS,
    tolerate: bool = False,
    on_wait: Callable[[str], None] = lambda text: None,
    traffic: Traffic | None = None,
) -> dict[int, SomeAnswer]:
    """Run one exchange with all nodes, including those that connect in time, and return their answers.

    The exchange ends when all clients that the roll call waits for have answered: all expected clients, or every
    partition that nodes report and at least ``min_clients`` clients.

    Parameters
    ----------
    grid : Grid
        Grid whose nodes are asked.
    content : RecordDict
        The request; where the roll call has keys, a challenge is added to its record ``config``.
    message_type : str
        Flower message type of the request.
    read : callable
        Checks and unpacks the content of an answer; raises ReplyError.
    roll_call : RollCall
        Clients to wait for, how long, and the public keys that prove them.
    timeout : float, default 300
        Seconds in which a node must answer; never less than ``roll_call.wait``.
    tolerate : bool, default False
        Continue without nodes whose answer is missing or unusable, or contradicts those of most other nodes
        (:func:`fedgraph.federation.agreement.contradictions`), if at least ``min_clients`` clients remain. Where
        clients are expected by name, an unusable answer does not end the run at once: the node is asked again every ten
        seconds while other clients are waited for.
    on_wait : callable, optional
        Called with a sentence that names the missing clients and the time left, when the clients change and at least
        every ten seconds.
    traffic : Traffic, optional
        Counter that the exchange is added to.

    Returns
    -------
    dict of int to SomeAnswer
        Answers by node id.

    Raises
    ------
    IdentityError
        When a node cannot name its clients (with the node's own message), does not prove that it may host them although
        the roll call has keys, or when clients are still missing after ``roll_call.wait`` seconds.
    """
    heard_of: dict[int, SomeAnswer] = {}
    failed: dict[int, str] = {}
    refused: dict[int, str] = {}
    asked_again = time.monotonic()
    traffic = Traffic() if traffic is None else traffic
    traffic.exchanges += 1
    wait = roll_call.wait
    deadline = time.monotonic() + wait
    news = _News(on_wait)
    challenged = challenge()
    if roll_call.keys is not None:
        content.config_records["config"][CHALLENGE_KEY] = challenged
    while True:
        again = roll_call.expect is not None and time.monotonic() - asked_again >= _REMIND_SECONDS
        asked_again = time.monotonic() if again else asked_again
        known = set(heard_of) | (set() if again else set(failed))
        unknown = [node for node in grid.get_node_ids() if node not in known]
        silent = set(unknown)
        messages = [Message(content, node, message_type) for node in unknown]
        if messages:
            replies = list(grid.send_and_receive(messages, timeout=max(wait, timeout)))
            _count(traffic, messages, replies)
            silent -= {reply.metadata.src_node_id for reply in replies}
            # A node that has ended is listed for a while; its clients may come back on another one.
            heard = [reply for reply in replies if not is_unreachable(reply)]
            sources = {reply.metadata.src_node_id for reply in heard}
            asked = [node for node in unknown if node in sources]
            admitted, problems = split_replies(heard, asked, partial(_admitted, read, roll_call, challenged))
            heard_of |= admitted
            failed = {node: problem for node, problem in failed.items() if node not in admitted}
            for node, problem in problems.items():
                if not tolerate and roll_call.expect is None:
                    raise IdentityError(f"node {node} cannot take part: {problem}")
                if failed.get(node) != problem:
                    log.warning("going on without node %d: %s", node, problem)
                failed[node] = problem
        told = refused
        refused = contradictions(heard_of) if tolerate else {}
        for node, problem in refused.items():
            if told.get(node) != problem:
                log.warning("going on without node %d: %s", node, problem)
        answers = {node: answer for node, answer in heard_of.items() if node not in refused}
        missing = roll_call.missing(answers.values(), silent)
        if missing is None:
            return answers
        left = deadline - time.monotonic()
        if left < 0:
            if tolerate and sum(len(answer.clients) for answer in answers.values()) >= roll_call.min_clients:
                log.warning("waited %.0f s for nodes, and go on although %s", wait, missing)
                return answers
            reasons = "".join(f"; node {node}: {problem}" for node, problem in (failed | refused).items())
            raise IdentityError(f"waited {wait:.0f} s for nodes, but {missing}{reasons}")
        news.tell(missing, left)
        time.sleep(_POLL_SECONDS)


def _admitted(
    read: Callable[[RecordDict], SomeAnswer], roll_call: RollCall, challenged: str, node: int, content: RecordDict
) -> SomeAnswer:
    """Return the answer of a node that may host the clients it names. Raises ReplyError or IdentityError."""
    answer = read(content)
    roll_call.check_expected(answer.clients)
    if roll_call.keys is not None:
        check_proof(roll_call.keys, proof_of(content), challenged, node, answer.clients)
    return answer


class _News:
    """Reports which clients a run waits for when that changes, and every ten seconds when it does not."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._said = ""
        self._when = float("-inf")

    def tell(self, missing: str, left: float) -> None:
        now = time.monotonic()
        if missing != self._said or now - self._when >= _REMIND_SECONDS:
            self._tell(f"{missing} ({left:.0f} s left)")
            self._said, self._when = missing, now
