"""Request and reply of a round, and the answer to the opening query; messages of nodes are checked before use.

A request to a node has the records ``config`` (what to do, for which clients), ``stacked`` (tensors ``[clients, ...]``)
and ``shared`` (tensors without a client axis). A reply has ``config`` (whose reply this is), ``stacked`` and
``metrics`` (numbers per client), and ``shared`` if the mean of the clients' models was requested.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from pydantic import TypeAdapter
from torch import Tensor

from fedgraph.data import SPLITS, SplitName
from fedgraph.messages.array_records import checked_arrays, from_record, to_record
from fedgraph.messages.envelope import KEEP_KEY, ROUND_KEY, Request, read_hosts, unpacking_reply, unpacking_request
from fedgraph.models import TaskSpec, usable_rows
from fedgraph.support.errors import ReplyError
from fedgraph.support.untrusted import LARGEST, LONGEST_DESCRIPTION, in_short, read_json

_TASK: TypeAdapter[TaskSpec | None] = TypeAdapter(TaskSpec | None)
_LARGEST_MOMENT = 1e30
"""Bound on the scales of ``[data] scales``."""

_MOST_READINGS = 1e12
"""Bound on the number of readings of a client, which limits its influence on the common scale."""

_MOST_EXAMPLES = 1 << 40
"""Bound on the number of examples of a client; sums of larger ones would overflow."""

_LAST_ROUND = 1 << 40
"""Bound on the rounds in a reply, which fit into an int64."""

_MOST_STATES = 20
"""Bound on the kinds of state of a client."""


@dataclass(frozen=True)
class WorkRequest(Request):
    """Request to a node to evaluate and train (some of) its clients in one round.

    Attributes
    ----------
    clients : tuple of str
        Names, in the order of the rows of ``stacked``.
    round : int
        Round of the run.
    stacked : mapping of str to Tensor
        Tensors ``[clients, ...]``.
    shared : mapping of str to Tensor
        Tensors that all clients have in common.
    evaluate : tuple of str
        Splits on which the received models are evaluated, before training.
    train : bool
        Whether the models are trained afterwards.
    keep_from : int
        No later request is for an earlier round; client state of these may be deleted.
    predict : bool
        Instead return ``predicted`` and true classes (``targets``) of each client's test examples.
    mean : bool
        Return the mean of the trained models, weighted by training examples, instead of all of them.
    attempts : mapping of str to int
        The last round whose client state counts, of each attempt at the run, see
        :class:`fedgraph.training.ClientState`; empty if all does.
    """

    clients: tuple[str, ...]
    round: int
    stacked: Mapping[str, Tensor]
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    evaluate: tuple[SplitName, ...] = ()
    train: bool = True
    keep_from: int = 0
    predict: bool = False
    mean: bool = False
    attempts: Mapping[str, int] = field(default_factory=dict)

    def pack(self, shared: ArrayRecord | None = None) -> RecordDict:
        """Convert to Flower records; ``shared`` is an existing record of that name."""
        config = ConfigRecord(
            {
                **self.header(),
                ROUND_KEY: self.round,
                "clients": list(self.clients),
                "evaluate": [str(split) for split in self.evaluate],
                "train": self.train,
                KEEP_KEY: self.keep_from,
                "predict": self.predict,
                "mean": self.mean,
                "attempts": list(self.attempts),
                "attempts-until": list(self.attempts.values()),
            }
        )
        return RecordDict(
            {"config": config, "stacked": to_record(self.stacked), "shared": shared or to_record(self.shared)}
        )

    @classmethod
    def unpack(cls, content: RecordDict) -> WorkRequest:
        """Read a request. Raises ReplyError when a part is missing."""
        with unpacking_request():
            config: Any = content.config_records["config"]
            clients = tuple(str(name) for name in config["clients"])
            stacked = from_record(content.array_records["stacked"])
            for name, tensor in stacked.items():
                if tensor.shape[:1] != (len(clients),):
                    raise ReplyError(f"'{name}' of the request needs a row for each of its {len(clients)} clients")
            evaluate = list(config["evaluate"])
            if not set(evaluate) <= set(SPLITS) or len(set(evaluate)) < len(evaluate):
                listed = in_short(", ".join(map(str, evaluate[:5])), 60)
                raise ReplyError(f"the request is to evaluate on {listed}, which are no splits, each named once")
            return cls(
                **cls.read_header(config),
                clients=clients,
                round=int(config[ROUND_KEY]),
                stacked=_Sent(stacked),
                shared=_Sent(from_record(content.array_records["shared"])),
                evaluate=tuple(evaluate),
                train=bool(config["train"]),
                keep_from=int(config[KEEP_KEY]),
                predict=bool(config["predict"]),
                mean=bool(config["mean"]),
                attempts=_attempts(config.get("attempts", ()), config.get("attempts-until", ())),
            )


def _attempts(names: Sequence[str], until: Sequence[int]) -> dict[str, int]:
    """Return the attempts of a request; those of older versions have none."""
    known = [name for name in names if re.fullmatch("[0-9a-f]{8}|", name)]
    if len(known) < len(names):
        raise ReplyError("the request has attempts that are not named by 8 hexadecimal digits")
    return {name: int(last) for name, last in zip(known, until, strict=True)}


class _Sent(dict[str, Tensor]):
    """Tensors of a request; a missing one is a ReplyError instead of a KeyError."""

    def __missing__(self, name: str) -> Tensor:
        raise ReplyError(f"the request lacks '{name}': server and node run different versions")


@dataclass(frozen=True)
class WorkReply:
    """Reply of a node: tensors and numbers per client.

    Tensors of an unpacked reply are read-only views of the message's bytes, which stacking copies once.

    Attributes
    ----------
    clients : tuple of str
        Names, in the order of the rows.
    stacked : mapping of str to Tensor
        Tensors ``[clients, ...]``.
    metrics : mapping of str to Tensor
        Numbers per client, ``[clients]``; of an unpacked reply NaN where a number is not finite.
    kept : tuple of str
        Clients whose evaluated models are kept by the node, because the server has others.
    shared : mapping of str to Tensor
        Tensors of all clients together: the mean of their models, if requested.
    failed : mapping of str to str
        Clients that are not part of ``shared``, and why.
    found : mapping of str to tuple of int
        Rounds after which the clients' state was saved that the node has found, by purpose; -1 for none.
    saved : mapping of str to int
        The round after which the node has saved state of all these clients, by purpose.
    """

    clients: tuple[str, ...]
    stacked: Mapping[str, Tensor] = field(default_factory=dict)
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    found: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    saved: Mapping[str, int] = field(default_factory=dict)

    def pack(self) -> RecordDict:
        """Convert to Flower records."""
        kept = {"kept": list(self.kept)} if self.kept else {}
        states = {"found": self.found, "saved": self.saved}
        in_json = {name: json.dumps(dict(value)) for name, value in states.items() if value}
        content = RecordDict(
            {
                "config": ConfigRecord({"clients": list(self.clients), **kept, **in_json}),
                "stacked": to_record(self.stacked),
                "metrics": MetricRecord({name: values.tolist() for name, values in self.metrics.items()}),
            }
        )
        if self.shared:
            content["shared"] = to_record(self.shared)
            content.config_records["config"]["failed"] = json.dumps(dict(self.failed))
        return content

    @classmethod
    def unpack(
        cls,
        content: RecordDict,
        clients: Sequence[str],
        expected: Mapping[str, tuple[int, ...]],
        types: Mapping[str, str] | None = None,
        shared: Mapping[str, tuple[int, ...]] | None = None,
    ) -> WorkReply:
        """Check a reply from ``clients`` and unpack it.

        Values are checked by :meth:`unusable`, as invalid numbers of one client must not exclude the other clients of
        its node. Raises ReplyError for other clients, missing or additional tensors, other shapes or types, superfluous
        bytes, and metrics that are not one number per client.

        Parameters
        ----------
        content : RecordDict
            Content of the reply.
        clients : sequence of str
            Requested clients.
        expected : mapping of str to tuple of int
            Shapes of the tensors without the client axis, by name; the reply must contain exactly these tensors.
        types : mapping of str to str, optional
            NumPy types by name, ``float32`` for names that are missing.
        shared : mapping of str to tuple of int, optional
            Shapes of the tensors of all clients together, by name; by default empty.
        """
        try:
            config: Any = content.config_records["config"]
            named = config["clients"]
            record = content.array_records["stacked"]
            metric_record = content.metric_records["metrics"]
        except KeyError as error:
            raise ReplyError(f"the reply has no {error}") from None
        if named != list(clients):
            others = _some(named) if isinstance(named, list) else in_short(repr(named), 60)
            raise ReplyError(f"the reply speaks for {others}, but {_some(clients)} were asked")
        kept = config.get("kept", [])
        if not isinstance(kept, list) or not set(kept) <= set(clients):
            raise ReplyError("the reply names other clients' models as kept than were asked")
        count = len(clients)
        stacked = checked_arrays(record, {name: (count, *shape) for name, shape in expected.items()}, types)
        metrics = {}
        for name, values in metric_record.items():
            if not isinstance(values, list) or len(values) != count:
                raise ReplyError(f"metric '{name}' must be one number for each of the {count} clients")
            found = torch.tensor(values, dtype=torch.float64)
            # An infinite loss would make the mean over all clients infinite.
            metrics[name] = found.where(found.isfinite(), torch.nan)
        together = checked_arrays(content.array_records.get("shared", ArrayRecord()), shared or {}, types)
        failures = read_json(config.get("failed", "{}"), "which clients failed") if shared else {}
        if not isinstance(failures, dict):
            raise ReplyError("the reply does not say which clients failed, by name")
        failed = {name: in_short(str(failures[name])) for name in clients if name in failures}
        return cls(tuple(clients), stacked, metrics, tuple(kept), together, failed, *_states(config, count))

    def unusable(self) -> dict[str, str]:
        """Return the clients whose tensors contain NaN, infinite or huge values, with the reason."""
        problems: dict[str, str] = {}
        for name, tensor in self.stacked.items():
            for position in (~usable_rows(tensor)).nonzero().flatten().tolist():
                finite = bool(tensor[position].isfinite().all())
                problems.setdefault(
                    self.clients[position],
                    f"array '{name}' holds {f'values beyond {LARGEST:g}' if finite else 'NaN or infinite values'}; if "
                    "training diverged, a smaller [train] learning-rate or a clip-norm helps",
                )
        return problems


@dataclass(frozen=True)
class Identity:
    """A node's answer to the opening query: the clients that it hosts and the data they have.

    Attributes
    ----------
    clients : tuple of str
        Names of the clients.
    task : TaskSpec or None
        The common task; None for a node without clients.
    data : str
        Description of the data.
    num_examples : mapping of str to Tensor
        Number of examples by split, int64 ``[clients]``.
    label_counts : Tensor or None
        Examples per class, int64 ``[clients, classes]``; None unless requested.
    partition : tuple of (int, int) or None
        ``(partition-id, num-partitions)`` of a node that clients are assigned to by number, else None.
    groups : tuple of str or None
        Group of each client, where the data defines groups.
    untrained : tuple of str
        Clients that intentionally have no training examples.
    moments : Tensor or None
        float64 ``[clients, 5]`` as in :class:`fedgraph.data.base.CohortData`, if the data has them.
    computed : str
        Description of the way the node computes the model; may be empty.
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
    computed: str = ""

    def pack(self) -> RecordDict:
        """Convert to Flower records."""
        config = ConfigRecord(
            {
                "clients": list(self.clients),
                "computed": self.computed,
                "task": _TASK.dump_json(self.task, exclude_none=True).decode(),
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
        """Check and unpack a node's answer. Raises ReplyError for anything else."""
        with unpacking_reply("the answer to the opening query"):
            config: Any = content.config_records["config"]
            task = _TASK.validate_json(str(config["task"]))
            counts = content.metric_records["metrics"]
            num_examples: dict[str, Tensor] = {
                # Integers only: a NaN would make every weighted mean NaN.
                split: torch.tensor(list(map(index, counts[split])), dtype=torch.int64)  # type: ignore[arg-type]
                for split in SPLITS
            }
            stacked = from_record(content.array_records["stacked"])
            label_counts, moments = stacked.get("label-counts"), stacked.get("moments")
            data = in_short(str(config["data"]), LONGEST_DESCRIPTION)
            computed = in_short(str(config.get("computed", "")), LONGEST_DESCRIPTION)
            groups, untrained = tuple(config["groups"]), tuple(config["untrained"])
        clients, partition = read_hosts(config)
        if any(values.shape != (len(clients),) or not _are_counts(values) for values in num_examples.values()):
            raise ReplyError("the answer to the opening query does not count the examples of each client")
        if (task is None) != (not clients):
            raise ReplyError("the answer to the opening query does not describe the task of its clients")
        if label_counts is not None and (
            label_counts.dtype != torch.int64
            or label_counts.ndim != 2
            or len(label_counts) != len(clients)
            or (task is not None and task.kind == "classification" and label_counts.shape[1:] != task.output_shape)
            or not _are_counts(label_counts)
        ):
            raise ReplyError("the answer to the opening query does not count the labels of each client")
        if groups and (len(groups) != len(clients) or not all(isinstance(group, str) and group for group in groups)):
            raise ReplyError("the answer to the opening query does not name the group of each client")
        if not set(untrained) <= set(clients):
            raise ReplyError("the answer to the opening query speaks of untrained clients that it does not host")
        if moments is not None and not _are_moments(moments, len(clients)):
            raise ReplyError("the answer to the opening query does not give the mean and deviation of each client")
        return cls(
            clients, task, data, num_examples, label_counts, partition, groups or None, untrained, moments, computed
        )

    @property
    def alike(self) -> Hashable:
        """The part of the answers that must be equal for all nodes, the task and the kinds of numbers."""
        return self.task, self.label_counts is not None, self.moments is not None

    def check_trains(self) -> None:
        """Raise ReplyError when a client unexpectedly has no training examples."""
        counts = zip(self.clients, self.num_examples["train"].tolist(), strict=True)
        empty = [name for name, count in counts if count == 0 and name not in self.untrained]
        if empty:
            raise ReplyError(f"no training examples at client {_some(empty)}: leave it out or give it data")


def _states(config: Any, count: int) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """Read ``found`` and ``saved`` of a reply from ``count`` clients; see :class:`WorkReply`."""
    found, saved = (
        read_json(config.get(name, "{}"), f"what the node has {name} of its clients' state")
        for name in ("found", "saved")
    )
    if not isinstance(found, dict) or not isinstance(saved, dict) or len({*found, *saved}) > _MOST_STATES:
        raise ReplyError("the reply does not say which state the node has of its clients")
    for rounds in found.values():
        if not isinstance(rounds, list) or len(rounds) != count or not all(map(_is_round, rounds)):
            raise ReplyError(f"the reply must give a round of the state of each of the {count} clients")
    if not all(map(_is_round, saved.values())):
        raise ReplyError("the reply must give the round after which state was saved")
    return (
        {in_short(purpose, 60): tuple(rounds) for purpose, rounds in found.items()},
        {in_short(purpose, 60): number for purpose, number in saved.items()},
    )


def _is_round(value: object) -> bool:
    return type(value) is int and -1 <= value <= _LAST_ROUND


def _are_counts(values: Tensor) -> bool:
    return bool(((values >= 0) & (values <= _MOST_EXAMPLES)).all())


def _are_moments(moments: Tensor, clients: int) -> bool:
    """Check that these are two means of each client, each with its standard deviation, and a count.

    A mean and its deviation are both finite or both NaN, and bounded as scales, since scales of other clients may be
    derived from them. The count is an integer, above 0 exactly if the second mean is known.
    """
    if moments.dtype != torch.float64 or moments.shape != (clients, 5):
        return False
    means, deviations, count = moments[:, 0:4:2], moments[:, 1:4:2], moments[:, 4]
    given = (means.abs() < _LARGEST_MOMENT) & (deviations < _LARGEST_MOMENT) & (deviations >= 0)
    counted = (count >= 0) & (count < _MOST_READINGS) & (count == count.floor()) & ((count > 0) == ~means[:, 1].isnan())
    return bool((given | (means.isnan() & deviations.isnan())).all() and counted.all())


def _some(names: Sequence[str], shown: int = 5) -> str:
    listed = ", ".join(in_short(str(name), 60) for name in names[:shown])
    return f"{listed}, ... ({len(names)} clients)" if len(names) > shown else listed or "nobody"
