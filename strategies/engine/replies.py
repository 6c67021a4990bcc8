"""Checked, stacked replies of one exchange, in the order of the clients' names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from fedgraph.algorithms import Answers
from fedgraph.federation import Federation, by_reason, split_replies
from fedgraph.graph import ClientGraph
from fedgraph.messages import WorkReply

log = logging.getLogger("fedgraph")

Reader = Callable[[RecordDict, list[str]], tuple[WorkReply, Mapping[str, str]]]
"""Function of a reply's content and the requested clients; returns their reply, and the unusable ones with reasons.

May raise ReplyError.
"""


@dataclass(frozen=True)
class Replies:
    """Usable replies of one round.

    Attributes
    ----------
    positions : positions in the federation of the clients that replied, int64 ``[present]``, ascending.
    tensors : the clients' tensors, each ``[present, ...]``.
    metrics : numbers per client, each float64 ``[present]``.
    graph : the given client graph among those present, or None.
    num_examples : training examples that they count, int64 ``[present]``; see :attr:`Federation.weights`.
    absent : clients without a usable reply, and why.
    kept : clients whose nodes keep the evaluated models; see :class:`fedgraph.messages.WorkReply`.
    not_asked : clients that the strategy has not drawn, which are not absent, and why they have no metrics.
    means : if requested, mean models ``[parameters]`` of several clients, by their positions.
    found, saved : the rounds of the state that nodes have found and saved, by purpose and client; see
        :class:`fedgraph.messages.WorkReply`.
    """

    positions: Tensor
    names: tuple[str, ...]
    tensors: Mapping[str, Tensor]
    metrics: Mapping[str, Tensor]
    graph: ClientGraph | None
    num_examples: Tensor
    absent: Mapping[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    not_asked: Mapping[str, str] = field(default_factory=dict)
    means: Mapping[tuple[int, ...], Tensor] = field(default_factory=dict)
    found: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    saved: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def fresh(self) -> Tensor:
        """Which clients replied in this round, bool ``[present]``; under ``keep-last`` replies may be older."""
        return torch.tensor([name not in self.absent for name in self.names], dtype=torch.bool)

    def answers(self, robust: Callable[[Tensor, Tensor], Tensor] | None = None) -> Answers:
        """Return the replies as answers for the algorithm; ``robust`` as there."""
        whose = self.positions, self.names, self.tensors, self.num_examples, self.graph, self.fresh
        return Answers(*whose, robust, self.metrics, self.means)

    @classmethod
    def of(
        cls,
        federation: Federation,
        positions: Tensor,
        tensors: Mapping[str, Tensor],
        metrics: Mapping[str, Tensor],
        absent: Mapping[str, str],
    ) -> Replies:
        """Build the replies of the clients at ``positions``, with their graph and numbers of examples."""
        names = tuple(federation.names[position] for position in positions.tolist())
        graph = federation.graph
        if graph is not None and 0 < len(names) < len(federation.names):
            graph = graph.subgraph(names)
        return cls(positions, names, tensors, metrics, graph, federation.weights[positions], absent)


def collect(
    federation: Federation,
    asked: Mapping[int, Tensor],
    messages: Iterable[Message],
    read: Reader,
    log_absent: bool = True,
    timeout: float | None = None,
) -> Replies:
    """Unpack and stack usable replies, and log the reasons for missing ones.

    Parameters
    ----------
    asked : positions of the requested clients of each node.
    read : unpacks and checks the reply of a node.
    log_absent : False if the caller reports absent clients.
    timeout : seconds that nodes had, ``[experiment] timeout``, for the reasons.
    """
    names = federation.names
    clients = {node: [names[position] for position in positions.tolist()] for node, positions in asked.items()}
    found, problems = split_replies(messages, asked, lambda node, content: read(content, clients[node]), timeout)
    absent = {name: problem for node, problem in problems.items() for name in clients[node]}
    parts: list[tuple[Tensor, WorkReply]] = []
    rounds: dict[str, dict[str, int]] = {}
    saved: dict[str, dict[str, int]] = {}
    for node, (reply, unusable) in found.items():
        absent.update(unusable)
        for purpose, each in reply.found.items():
            rounds.setdefault(purpose, {}).update(zip(reply.clients, each, strict=True))
        for purpose, number in reply.saved.items():
            saved.setdefault(purpose, {}).update(dict.fromkeys(reply.clients, number))
        if not unusable:
            parts.append((asked[node], reply))
            continue
        good = torch.tensor([name not in unusable for name in clients[node]])
        parts.append((asked[node][good], _rows(reply, good)))
    for reason in by_reason(absent) if log_absent else ():
        # Of a lasting absence, the screen shows only the first exchange; the run's log has all.
        log.warning("no usable reply from %s", reason, extra={"once": f"absent: {reason}"})
    return replace(_stack(federation, parts, absent), found=rounds, saved=saved)


def joined(federation: Federation, reports: Sequence[Replies]) -> Replies:
    """Join the reports of several exchanges of a round; the last one of a client that trained twice."""
    if len(reports) == 1:
        return reports[0]
    whole: dict[str, Tensor] = {}
    for report in reports:
        for name, values in report.metrics.items():
            nothing = torch.full((len(federation.names),), torch.nan, dtype=torch.float64)
            whole.setdefault(name, nothing)[report.positions] = values
    empty_reply = torch.zeros(0, dtype=torch.int64)
    positions = torch.cat([empty_reply, *(report.positions for report in reports)]).unique()
    metrics = {name: values[positions] for name, values in sorted(whole.items())}
    absent = {name: reason for report in reports for name, reason in report.absent.items()}
    kept = tuple(sorted({name for report in reports for name in report.kept}))
    return replace(Replies.of(federation, positions, {}, metrics, absent), kept=kept)


def _rows(reply: WorkReply, good: Tensor) -> WorkReply:
    """Return the rows of a reply where ``good`` (bool ``[clients]``) is True."""
    return WorkReply(
        tuple(name for name, keep in zip(reply.clients, good.tolist(), strict=True) if keep),
        {name: tensor[good] for name, tensor in reply.stacked.items()},
        {name: tensor[good] for name, tensor in reply.metrics.items()},
        tuple(name for name, keep in zip(reply.clients, good.tolist(), strict=True) if keep and name in reply.kept),
    )


def _stack(federation: Federation, parts: list[tuple[Tensor, WorkReply]], absent: Mapping[str, str]) -> Replies:
    positions = torch.cat([part for part, _ in parts]) if parts else torch.zeros(0, dtype=torch.int64)
    order = None if bool((positions.diff() > 0).all()) else positions.argsort()
    places = () if order is None else order.argsort().split([len(part) for part, _ in parts])

    def joined(pieces: list[Tensor]) -> Tensor:
        # The only copy of the replies; pieces are views of messages.
        if order is None:
            return torch.cat(pieces)
        whole = pieces[0].new_empty(len(order), *pieces[0].shape[1:])
        for place, piece in zip(places, pieces, strict=True):
            whole.index_copy_(0, place, piece)
        return whole

    tensors = {
        name: joined([reply.stacked[name] for _, reply in parts]) for name in (parts[0][1].stacked if parts else ())
    }
    # A metric that a node does not report is NaN for its clients.
    measured = dict.fromkeys(name for _, reply in parts for name in reply.metrics)
    metrics = {
        name: joined(
            [reply.metrics.get(name, torch.full((len(rows),), torch.nan, dtype=torch.float64)) for rows, reply in parts]
        )
        for name in measured
    }
    kept = tuple(sorted(name for _, reply in parts for name in reply.kept))
    positions = positions if order is None else positions[order]
    return replace(Replies.of(federation, positions, tensors, metrics, absent), kept=kept)
