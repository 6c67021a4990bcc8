"""Who takes part in a run of FedNGM, with what features and how many rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedgraph.data import SPLITS
from fedgraph.data.schema import Schema, schema_from_json
from fedgraph.federation import Federation, hosts_of, nodes_of
from fedgraph.methods.fedngm import PhaseReply
from fedgraph.models import TaskSpec
from fedgraph.support.errors import ReplyError


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
