"""Clients that take part in a run of FedNGM, with their features and numbers of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, TypeVar

import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedgraph.data import SPLITS
from fedgraph.data.schema import Schema, agree, schema_from_json
from fedgraph.federation import Federation, OrderedGrid, Traffic, data_of, hosts_of, nodes_of, split_replies
from fedgraph.methods.fedngm import MESSAGE, PhaseReply, PhaseRequest
from fedgraph.models import TaskSpec
from fedgraph.support.errors import DataError, ReplyError
from fedgraph.support.untrusted import in_short

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Members:
    """Clients that take part, in the order of their names.

    Attributes
    ----------
    names : tuple of str
        Names of the clients, sorted.
    hosts : mapping of int to Tensor
        By node id the positions of its clients.
    num_rows : tuple of int
        Training rows of each client.
    schemas : mapping of str to Schema
        Features by client.
    data : str
        Description of the data.
    absent : mapping of str to str
        Reasons why other clients are missing, by name.
    """

    names: tuple[str, ...]
    hosts: Mapping[int, Tensor]
    num_rows: tuple[int, ...]
    schemas: Mapping[str, Schema]
    data: str
    absent: Mapping[str, str]

    @classmethod
    def of(cls, answers: Mapping[int, PhaseReply]) -> Members:
        """Return the clients with a usable schema, of all that answered the first request."""
        node_of = nodes_of({node: answer.clients for node, answer in answers.items()})
        found: dict[str, tuple[Schema, int]] = {}
        absent: dict[str, str] = {}
        for answer in answers.values():
            for name, text, rows in zip(answer.clients, answer.texts, answer.num_rows, strict=True):
                try:
                    found[name] = schema_from_json(text, f"the schema of client '{name}'"), rows
                except ReplyError as error:
                    absent[name] = str(error)
        names = tuple(sorted(found))
        return cls(
            names=names,
            hosts=hosts_of(names, node_of),
            num_rows=tuple(found[name][1] for name in names),
            schemas={name: found[name][0] for name in names},
            data=data_of(answer.data for answer in answers.values() if answer.clients),
            absent=absent,
        )

    def without(self, lost: Mapping[str, str]) -> Members:
        """Return the other clients, after those of ``lost`` have become absent."""
        rows = dict(zip(self.names, self.num_rows, strict=True))
        node_of = {self.names[place]: node for node, places in self.hosts.items() for place in places.tolist()}
        names = tuple(name for name in self.names if name not in lost)
        return replace(
            self,
            names=names,
            hosts=hosts_of(names, node_of),
            num_rows=tuple(rows[name] for name in names),
            schemas={name: self.schemas[name] for name in names},
            absent={**self.absent, **lost},
        )

    def disagreeing(self, disputes: Literal["error", "private"]) -> dict[str, str]:
        """Return the clients whose features fit fewer clients than those of others do, and why; {} if all fit equally.

        For clients that cannot :func:`fedgraph.data.schema.agree`.
        """
        problems: dict[str, list[str]] = {name: [] for name in self.names}
        for pair in combinations(self.names, 2):
            try:
                agree({name: self.schemas[name] for name in pair}, disputes)
            except DataError as error:
                for name in pair:
                    problems[name].append(str(error))
        counts = {name: len(found) for name, found in problems.items()}
        if min(counts.values()) == max(counts.values()):
            return {}
        most = max(counts.values())
        return {
            name: f"its features do not go together with those of {most} others: {in_short(problems[name][0], 300)}"
            for name, count in counts.items()
            if count == most
        }

    def federation(self) -> Federation:
        """Return the same clients as a :class:`Federation`, for code shared with other methods."""
        task = TaskSpec("regression", (), (1,))
        counts: dict[str, Tensor] = {split: torch.tensor(self.num_rows) for split in SPLITS}
        return Federation(self.names, self.hosts, task, self.data, counts)

    def ask(
        self,
        grid: Grid,
        request: PhaseRequest,
        read: Callable[[str, Tensor], Answer],
        *,
        timeout: float,
        traffic: Traffic,
        width: int = 0,
        sums: int = 0,
    ) -> tuple[dict[str, Answer], dict[str, str]]:
        """Run one exchange with the nodes of all members.

        Parameters
        ----------
        grid : Grid
            Grid that delivers the messages.
        request : PhaseRequest
            The request to all nodes.
        read : callable
            Checks and decodes a client's answer: its text, and its ``width`` parameters or its ``sums``. Raises
            ReplyError for an answer that cannot be used.
        timeout : float
            Seconds to wait for the replies.
        traffic : Traffic
            Counter for the messages and their bytes.
        width, sums : int
            Number of parameters, or of sums, in each client's answer.

        Returns
        -------
        found : dict of str to Answer
            Decoded answers by client.
        lost : dict of str to str
            Problems with other answers, by client.
        """
        hosted = {node: [self.names[place] for place in places.tolist()] for node, places in self.hosts.items()}
        messages = [Message(request.pack(), node, MESSAGE) for node in hosted]

        def unpacked(node: int, content: RecordDict) -> dict[str, tuple[str, Tensor]]:
            reply = PhaseReply.unpack(content, width, sums)
            if not set(hosted[node]) <= set(reply.clients):
                raise ReplyError("the answer lacks some of the node's clients")
            told = reply.parameters if reply.sums is None else reply.sums
            rows = {name: (reply.texts[place], told[place]) for place, name in enumerate(reply.clients)}
            return {name: rows[name] for name in hosted[node]}

        received = OrderedGrid(grid, self.federation(), traffic).send_and_receive(messages, timeout=timeout)
        replies, problems = split_replies(received, hosted, unpacked)
        lost = {name: problem for node, problem in problems.items() for name in hosted[node]}
        found: dict[str, Answer] = {}
        for answers in replies.values():
            for name, (text, row) in answers.items():
                try:
                    found[name] = read(text, row)
                except ReplyError as error:
                    lost[name] = str(error)
        return found, lost
