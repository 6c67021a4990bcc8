"""Typed requests and replies, to and from Flower records; everything a node sends is checked before it is used.

A request to a node carries the records ``config`` (what to do, for which clients), ``stacked`` (tensors
``[clients, ...]``) and ``shared`` (tensors without a client axis). A reply carries ``config`` (whose reply this is),
``stacked`` and ``metrics`` (numbers per client).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from pydantic import TypeAdapter
from torch import Tensor

from fedgraph.data import SPLITS, SplitName
from fedgraph.messages.array_records import checked_arrays, from_record, to_record
from fedgraph.messages.envelope import KEEP_KEY, ROUND_KEY, Request, told_hosts, unpacking_reply, unpacking_request
from fedgraph.models import TaskSpec, finite_rows
from fedgraph.support.errors import ReplyError

_TASK: TypeAdapter[TaskSpec | None] = TypeAdapter(TaskSpec | None)
_LARGEST_MOMENT = 1e30
"""Beyond which no scale may lie that a node is given (``[data] scales``)."""

_MOST_READINGS = 1e12
"""More than a client can have: a number beyond it would make the scale of all its own."""


@dataclass(frozen=True)
class WorkRequest(Request):
    """What a node is asked to do for (some of) its clients in one round.

    clients  : names, in the order of the rows of ``stacked``.
    evaluate : splits on which the received models are evaluated, before training.
    train    : whether they are trained afterwards.
    predict  : in place of all that, each client's ``predicted`` and true (``targets``) classes of its test examples.
    keep_from: rounds before this one will never be asked for again; client state of theirs may be dropped.
    """

    clients: tuple[str, ...]
    round: int
    stacked: Mapping[str, Tensor]
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    evaluate: tuple[SplitName, ...] = ()
    train: bool = True
    keep_from: int = 0
    predict: bool = False

    def pack(self, shared: ArrayRecord | None = None) -> RecordDict:
        """The request as Flower records; ``shared`` is the record of that name where the caller has it already."""
        config = ConfigRecord(
            {
                **self.header(),
                ROUND_KEY: self.round,
                "clients": list(self.clients),
                "evaluate": [str(split) for split in self.evaluate],
                "train": self.train,
                KEEP_KEY: self.keep_from,
                "predict": self.predict,
            }
        )
        return RecordDict(
            {"config": config, "stacked": to_record(self.stacked), "shared": shared or to_record(self.shared)}
        )

    @classmethod
    def unpack(cls, content: RecordDict) -> WorkRequest:
        """The request a node received. Raises ReplyError when a part is missing."""
        with unpacking_request():
            config: Any = content.config_records["config"]
            return cls(
                **cls.header_of(config),
                clients=tuple(config["clients"]),
                round=int(config[ROUND_KEY]),
                stacked=from_record(content.array_records["stacked"]),
                shared=from_record(content.array_records["shared"]),
                evaluate=tuple(config["evaluate"]),
                train=bool(config["train"]),
                keep_from=int(config[KEEP_KEY]),
                predict=bool(config["predict"]),
            )


@dataclass(frozen=True)
class WorkReply:
    """What a node sends back: tensors ``[clients, ...]`` and numbers per client, in the order of ``clients``.

    The tensors of a reply that was unpacked are views of the message's bytes: read them, or copy them, as stacking the
    replies of all nodes does once.
    """

    clients: tuple[str, ...]
    stacked: Mapping[str, Tensor] = field(default_factory=dict)
    metrics: Mapping[str, Tensor] = field(default_factory=dict)

    def pack(self) -> RecordDict:
        """The reply as Flower records."""
        return RecordDict(
            {
                "config": ConfigRecord({"clients": list(self.clients)}),
                "stacked": to_record(self.stacked),
                "metrics": MetricRecord({name: values.tolist() for name, values in self.metrics.items()}),
            }
        )

    @classmethod
    def unpack(
        cls,
        content: RecordDict,
        clients: Sequence[str],
        expected: Mapping[str, tuple[int, ...]],
        types: Mapping[str, str] | None = None,
    ) -> WorkReply:
        """Check a reply from ``clients`` and unpack it.

        ``expected`` gives the tensors that must be there and their shapes without the client axis; no others may be.
        They are float32 or of ``types``.
        Values are not checked here, because one client's bad numbers must not cost the other clients of its node
        their part in the round: see ``unusable``.

        Raises
        ------
        ReplyError
            For other clients, missing or additional tensors, other shapes or types, sizes beyond what was asked.
        """
        try:
            config: Any = content.config_records["config"]
            named = list(config["clients"])
            record = content.array_records["stacked"]
            metric_record = content.metric_records["metrics"]
        except KeyError as error:
            raise ReplyError(f"the reply has no {error}") from None
        if named != list(clients):
            raise ReplyError(f"the reply speaks for {_some(named)}, but {_some(clients)} were asked")
        count = len(clients)
        stacked = checked_arrays(record, {name: (count, *shape) for name, shape in expected.items()}, types)
        metrics = {}
        for name, values in metric_record.items():
            if not isinstance(values, list) or len(values) != count:
                raise ReplyError(f"metric '{name}' is not one number for each of the {count} clients")
            metrics[name] = torch.tensor(values, dtype=torch.float64)
        return cls(tuple(clients), stacked, metrics)

    def unusable(self) -> dict[str, str]:
        """Clients whose tensors hold values that are not finite, with the reason."""
        problems: dict[str, str] = {}
        for name, tensor in self.stacked.items():
            for position in (~finite_rows(tensor)).nonzero().flatten().tolist():
                problems.setdefault(
                    self.clients[position],
                    f"array '{name}' holds NaN or infinite values; if training diverged, a smaller [train] "
                    "learning-rate or a clip-norm helps",
                )
        return problems


@dataclass(frozen=True)
class Identity:
    """A node's answer to the opening query: whom it hosts and what data they have.

    num_examples : per split, int64 ``[clients]``.
    label_counts : int64 ``[clients, classes]``, only when it was asked for.
    partition    : ``(partition-id, num-partitions)`` for a node that clients are dealt out to, else None.
    groups       : a word per client, where the data knows groups.
    untrained    : those of ``clients`` that are meant to have no training examples.
    moments      : float64 ``[clients, 5]`` as in :class:`fedgraph.data.base.CohortData`, where the data gives them.
    """

    clients: tuple[str, ...]
    task: TaskSpec | None
    data: str
    num_examples: Mapping[str, Tensor]
    label_counts: Tensor | None = None
    partition: tuple[int, int] | None = None
    groups: tuple[str, ...] | None = None
    untrained: tuple[str, ...] = ()
    moments: Tensor | None = None

    def pack(self) -> RecordDict:
        """The answer as Flower records."""
        config = ConfigRecord(
            {
                "clients": list(self.clients),
                "task": _TASK.dump_json(self.task).decode(),
                "data": self.data,
                "partition": list(self.partition or ()),
                "groups": list(self.groups or ()),
                "untrained": list(self.untrained),
            }
        )
        known = {"label-counts": self.label_counts, "moments": self.moments}
        return RecordDict(
            {
                "config": config,
                "stacked": to_record({name: values for name, values in known.items() if values is not None}),
                "metrics": MetricRecord({name: values.tolist() for name, values in self.num_examples.items()}),
            }
        )

    @classmethod
    def unpack(cls, content: RecordDict) -> Identity:
        """Check a node's answer. Raises ReplyError for anything that is not one."""
        with unpacking_reply("the answer to the opening query"):
            config: Any = content.config_records["config"]
            task = _TASK.validate_json(str(config["task"]))
            counts = content.metric_records["metrics"]
            num_examples: dict[str, Tensor] = {
                # Whole numbers only: one NaN would spoil every mean by examples.
                split: torch.tensor(list(map(index, counts[split])), dtype=torch.int64)  # type: ignore[arg-type]
                for split in SPLITS
            }
            stacked = from_record(content.array_records["stacked"])
            label_counts, moments = stacked.get("label-counts"), stacked.get("moments")
            data = str(config["data"])
            groups, untrained = tuple(config["groups"]), tuple(config["untrained"])
        clients, partition = told_hosts(config)
        if any(values.shape != (len(clients),) or bool((values < 0).any()) for values in num_examples.values()):
            raise ReplyError("the answer to the opening query does not count the examples of each client")
        if (task is None) != (not clients):
            raise ReplyError("the answer to the opening query does not describe the task of its clients")
        if label_counts is not None and (label_counts.ndim != 2 or label_counts.shape[0] != len(clients)):
            raise ReplyError("the answer to the opening query does not count the labels of each client")
        if groups and (len(groups) != len(clients) or not all(isinstance(group, str) and group for group in groups)):
            raise ReplyError("the answer to the opening query does not name the group of each client")
        if not set(untrained) <= set(clients):
            raise ReplyError("the answer to the opening query speaks of untrained clients that it does not host")
        if moments is not None and not _are_moments(moments, len(clients)):
            raise ReplyError("the answer to the opening query does not give the mean and deviation of each client")
        return cls(clients, task, data, num_examples, label_counts, partition, groups or None, untrained, moments)


def _are_moments(moments: Tensor, clients: int) -> bool:
    """Whether these are two means of each client, each with its standard deviation, and a count.

    A mean and its deviation are both finite or both NaN. No larger than a scale may be that a node is given, since
    others' may be inferred from them. The count is a whole number, above 0 exactly where the second mean is known.
    """
    if moments.dtype != torch.float64 or moments.shape != (clients, 5):
        return False
    means, deviations, count = moments[:, 0:4:2], moments[:, 1:4:2], moments[:, 4]
    given = (means.abs() < _LARGEST_MOMENT) & (deviations < _LARGEST_MOMENT) & (deviations >= 0)
    counted = (count >= 0) & (count < _MOST_READINGS) & (count == count.floor()) & ((count > 0) == ~means[:, 1].isnan())
    return bool((given | (means.isnan() & deviations.isnan())).all() and counted.all())


def _some(names: Sequence[str], shown: int = 5) -> str:
    listed = ", ".join(str(name) for name in names[:shown])
    return f"{listed}, ... ({len(names)} clients)" if len(names) > shown else listed or "nobody"
