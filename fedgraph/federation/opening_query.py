"""The first exchange of a run, in which nodes name their clients, until all clients are present."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedgraph.federation.contradictions import contradictions
from fedgraph.federation.exchange import split_replies
from fedgraph.federation.federation import Federation
from fedgraph.federation.identity import challenge, check_proof
from fedgraph.federation.roll_call import Answer, RollCall
from fedgraph.federation.traffic import Traffic
from fedgraph.messages import (
    CHALLENGE_KEY,
    CLIENT_KEY,
    EXPERIMENT_KEY,
    Identity,
    is_unreachable,
    mark_empty,
    read_proof,
)
from fedgraph.support.errors import IdentityError, quoted

log = logging.getLogger("fedgraph")

_POLL_SECONDS = 0.5
_REMIND_SECONDS = 10.0
_ANSWER_SECONDS = 300.0
"""Seconds for a connected node to load libraries and data before it answers the opening query."""

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
    notes: list[str] | None = None,
) -> Federation:
    """Run the opening query: all nodes name their clients, until all clients are present.

    Raises IdentityError as :func:`ask_all_nodes`, for duplicate clients, or without any client. Raises DataError when
    clients disagree on the task, or a client unexpectedly has no training examples.

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
        Called with a sentence about the clients that are missing, see :func:`ask_all_nodes`.
    traffic : Traffic, optional
        Counter that the exchange is added to.
    tolerate : bool, default False
        Continue without nodes whose answer is missing, unusable or contradicts the others, see :func:`ask_all_nodes`.
    notes : list of str, optional
        Notes of the run, to which those on nodes that are left out are added.
    """
    config = ConfigRecord({CLIENT_KEY: client, EXPERIMENT_KEY: experiment, "label-counts": label_counts})
    content = RecordDict({"config": config})

    def read(content: RecordDict) -> Identity:
        identity = Identity.unpack(content)
        if tolerate:
            identity.check_trains()
        return identity

    identities = ask_all_nodes(
        grid, content, "query.identify", read, roll_call,
        tolerate=tolerate, on_wait=on_wait, traffic=traffic, notes=notes,
    )  # fmt: skip
    return Federation.of(identities)


def ask_all_nodes(
    grid: Grid,
    content: RecordDict,
    message_type: str,
    read: Callable[[RecordDict], SomeAnswer],
    roll_call: RollCall,
    timeout: float = _ANSWER_SECONDS,
    tolerate: bool = False,
    on_wait: Callable[[str], None] = lambda text: None,
    traffic: Traffic | None = None,
    notes: list[str] | None = None,
) -> dict[int, SomeAnswer]:
    """Run one exchange with all nodes, including those that connect in time; return answers by node id.

    The exchange ends when all clients of the roll call have answered (all expected clients, or every partition that
    nodes report and at least ``min_clients`` clients), or when no more nodes may connect. Raises IdentityError when a
    node cannot name its clients (with the node's message), lacks a proof required by the keys of the roll call, or when
    clients are missing after ``roll_call.wait`` seconds.

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
        (:func:`fedgraph.federation.contradictions.contradictions`), if at least ``min_clients`` clients remain. Where
        clients are expected by name, an unusable answer does not end the run at once: the node is asked again every ten
        seconds while other clients are waited for.
    on_wait : callable, optional
        Called with a sentence that names the missing clients and the time left, when the clients change and at least
        every ten seconds.
    traffic : Traffic, optional
        Counter that the exchange is added to.
    notes : list of str, optional
        Notes of the run: those on nodes that are left out, and on clients that are missing, are added.
    """
    reported_by: dict[int, SomeAnswer] = {}
    failed: dict[int, str] = {}
    refused: dict[int, str] = {}
    last_request = time.monotonic()
    traffic = Traffic() if traffic is None else traffic
    traffic.exchanges += 1
    wait = roll_call.wait
    deadline = time.monotonic() + wait
    reminder = _Reminder(on_wait)
    challenged = challenge()
    if roll_call.keys is not None:
        content.config_records["config"][CHALLENGE_KEY] = challenged
    while True:
        again = roll_call.expect is not None and time.monotonic() - last_request >= _REMIND_SECONDS
        last_request = time.monotonic() if again else last_request
        known = set(reported_by) | (set() if again else set(failed))
        unknown = [node for node in grid.get_node_ids() if node not in known]
        silent = set(unknown)
        messages = [Message(mark_empty(content), node, message_type) for node in unknown]
        if messages:
            replies = list(grid.send_and_receive(messages, timeout=max(wait, timeout)))
            traffic.count(messages, replies)
            silent -= {reply.metadata.src_node_id for reply in replies}
            # A stopped node is listed for a while; its clients may return on another one.
            received = [reply for reply in replies if not is_unreachable(reply)]
            sources = {reply.metadata.src_node_id for reply in received}
            requested = [node for node in unknown if node in sources]
            admitted, problems = split_replies(received, requested, partial(_admitted, read, roll_call, challenged))
            reported_by |= admitted
            failed = {node: problem for node, problem in failed.items() if node not in admitted}
            for node, problem in problems.items():
                if not tolerate and roll_call.expect is None:
                    # In a single process the user has not started any nodes.
                    which = f"node {node} cannot take part: " if nodes_may_come(grid) else ""
                    raise IdentityError(f"{which}{problem}")
                if failed.get(node) != problem:
                    log.warning("going on without node %d: %s", node, problem)
                failed[node] = problem
        before = refused
        refused = contradictions(reported_by) if tolerate else {}
        for node, problem in refused.items():
            if before.get(node) != problem:
                log.warning("going on without node %d: %s", node, problem)
        answers = {node: answer for node, answer in reported_by.items() if node not in refused}
        missing = roll_call.missing(answers.values(), silent, failed.keys() | refused.keys())
        if missing is None:
            # Where clients are expected by name, other nodes do not matter.
            _note(notes, reported_by, failed | refused if roll_call.expect is None else {})
            return answers
        left = deadline - time.monotonic()
        nobody_comes = not silent and not nodes_may_come(grid)
        if nobody_comes or left < 0:
            waited = "" if nobody_comes else f"waited {wait:.0f} s for nodes, "
            if tolerate and sum(len(answer.clients) for answer in answers.values()) >= roll_call.min_clients:
                log.warning("%sgoing on although %s", waited, missing)
                _note(notes, reported_by, failed | refused, f"the run began although {missing}")
                return answers
            reasons = "".join(f"; node {node}: {problem}" for node, problem in (failed | refused).items())
            raise IdentityError(f"{waited and waited + 'but '}{missing}{reasons}")
        reminder.report(missing, left)
        time.sleep(_POLL_SECONDS)


def _note(notes: list[str] | None, reported_by: Mapping[int, Answer], problems: Mapping[int, str], *more: str) -> None:
    """Add notes on nodes that are left out, by the clients that they host as far as they have said."""
    if notes is None:
        return
    for node, problem in problems.items():
        clients = reported_by[node].clients if node in reported_by else ()
        whose = f" of {quoted(clients)}" if clients else f" {node}"
        notes.append(f"the run began without the node{whose}: {problem}")
    notes.extend(more)


def nodes_may_come(grid: Grid) -> bool:
    """Return whether more nodes may connect; not on a grid with ``nodes_may_come = False``."""
    return getattr(grid, "nodes_may_come", True)


def _admitted(
    read: Callable[[RecordDict], SomeAnswer], roll_call: RollCall, challenged: str, node: int, content: RecordDict
) -> SomeAnswer:
    """Return the answer of a node after checking its proof. Raises ReplyError or IdentityError."""
    answer = read(content)
    roll_call.check_expected(answer.clients)
    if roll_call.keys is not None:
        check_proof(roll_call.keys, read_proof(content), challenged, node, answer.clients)
    return answer


class _Reminder:
    """Reports missing clients when they change, and every ten seconds."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._reported = ""
        self._reported_at = float("-inf")

    def report(self, missing: str, left: float) -> None:
        now = time.monotonic()
        if missing != self._reported or now - self._reported_at >= _REMIND_SECONDS:
            self._report(f"{missing} ({left:.0f} s left)")
            self._reported, self._reported_at = missing, now
