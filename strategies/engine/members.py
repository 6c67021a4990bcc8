"""Who takes part in a run of FedNGM, with what features and how many rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedgraph.data import SPLITS
from fedgraph.data.schema import Schema, schema_from_json
from fedgraph.federation import Federation, OrderedGrid, Traffic, hosts_of, nodes_of, split_replies
from fedgraph.methods.fedngm import MESSAGE, PhaseReply, PhaseRequest
from fedgraph.models import TaskSpec
from fedgraph.support.errors import ReplyError

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Members:
    """Who takes part, in the order of the names of clients.

    hosts    : positions of its clients by node.
    num_rows : of each client, for training.
    absent   : why there is nothing of other clients.
    """

    names: tuple[str, ...]
    hosts: Mapping[int, Tensor]
    num_rows: tuple[int, ...]
    schemas: Mapping[str, Schema]
    data: str
    absent: Mapping[str, str]

    @classmethod
    def of(cls, answers: Mapping[int, PhaseReply]) -> Members:
        """Those whose schema can be used, of all who answered the first question."""
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
            data="; ".join(sorted({answer.data for answer in answers.values() if answer.clients})),
            absent=absent,
        )

    def without(self, lost: Mapping[str, str]) -> Members:
        """The others, where some have become absent."""
        rows = dict(zip(self.names, self.num_rows, strict=True))
        node_of = {self.names[place]: node for node, places in self.hosts.items() for place in places.tolist()}
        names = tuple(name for name in self.names if name not in lost)
        return replace(
            self,
            names=names,
            hosts=hosts_of(names, node_of),
            num_rows=tuple(rows[name] for name in names),
            absent={**self.absent, **lost},
        )

    def federation(self) -> Federation:
        """The same as other methods know it."""
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
        """One exchange with the nodes of all members.

        Parameters
        ----------
        grid : Grid
            Carries the messages.
        request : PhaseRequest
            What every node is sent.
        read : callable
            Checks and decodes a client's answer: its text, and its ``width`` parameters or its ``sums``. It raises
            ReplyError for an answer that cannot be used.
        timeout : float
            Seconds to wait for the replies.
        traffic : Traffic
            Counts the messages and their bytes.
        width, sums : int
            How many parameters, or sums, each client answers with.

        Returns
        -------
        tuple of dict
            What was read, and what was wrong with other answers, by client.
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
