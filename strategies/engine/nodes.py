"""The nodes of a run for methods of rounds: exchanges return checked, stacked replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from flwr.app import Message, MessageType, RecordDict
from torch import Tensor

from fedgraph.data import SplitName
from fedgraph.federation import Federation, OrderedGrid
from fedgraph.messages import WorkReply, WorkRequest, to_record
from fedgraph.messages.frozen_layers import is_lacking
from fedgraph.models import usable_rows
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.replies import Reader, Replies, collect
from fedgraph.support.errors import ReplyError

Tensors = Mapping[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]


class Nodes:
    """Nodes that host the clients of a federation.

    Parameters
    ----------
    grid : grid that delivers the messages.
    plan : strategy-independent settings.
    timeout : seconds to wait for the replies of an exchange.
    """

    def __init__(self, grid: OrderedGrid, federation: Federation, plan: RunPlan, timeout: float) -> None:
        self.grid = grid
        self._federation, self._plan, self.timeout = federation, plan, timeout

    def ask(
        self,
        server_round: int,
        stacked: Tensors,
        shared: Tensors,
        splits: Sequence[SplitName] = (),
        shapes: Shapes | None = None,
        further: Callable[[Tensor, bool], Tensors] | None = None,
        predictions: Reader | None = None,
        types: Mapping[str, str] | None = None,
        only: Tensor | None = None,
        means: bool = False,
    ) -> Replies:
        """Run one exchange with all nodes, or with those of some clients.

        Returns usable replies, and the reasons for missing ones.

        Parameters
        ----------
        stacked : tensors ``[clients, ...]``, one row per client.
        shared : tensors for all clients.
        splits : splits on which the sent models are evaluated, before training.
        shapes : tensors that each client returns after training, without the client axis. By default clients do not
            train.
        further : given the positions of a node's clients, and whether the sent models are evaluated or predict, returns
            further shared tensors for this node.
        predictions : reads the predictions of the sent models on the test examples; by default none are requested.
        types : NumPy types of returned tensors that are not float32, by name.
        only : positions of the clients of the exchange; by default all.
        means : whether nodes return the mean of their clients' models.
        """
        kind = MessageType.EVALUATE if shapes is None else MessageType.TRAIN
        shared_record, messages = to_record(shared), []
        requested = self._federation.hosts if only is None else _among(self._federation.hosts, only)
        for node in self.grid.get_node_ids():
            if node not in requested:
                continue
            positions = requested[node]
            rows = _slice_or_rows(positions)
            more = {} if further is None else further(positions, bool(splits) or predictions is not None)
            request = self._request(
                server_round,
                tuple(self._federation.names[position] for position in positions.tolist()),
                {name: tensor[rows] for name, tensor in stacked.items()},
                {**shared, **more},
                splits,
                shapes is not None,
                predictions is not None,
                means,
            )
            content = request.pack(None if more else shared_record)
            messages.append(Message(content, node, kind, group_id=str(server_round)))
        if not means:
            return self.exchange(messages, requested, predictions or self._reader(shapes, types))
        found: dict[tuple[str, ...], Tensor] = {}
        replies = self.exchange(messages, requested, partial(_read_mean, shapes=shapes or {}, found=found))
        return replace(replies, means=self._by_positions(replies, found))

    def _by_positions(self, replies: Replies, found: Mapping[tuple[str, ...], Tensor]) -> dict[tuple[int, ...], Tensor]:
        """Return the means of nodes by the positions of their clients, sorted."""
        present, where = set(replies.names), self._federation.positions
        means = {tuple(where[name] for name in names if name in present): mean for names, mean in found.items()}
        return {positions: means[positions] for positions in sorted(means) if positions}

    def exchange(self, messages: Iterable[Message], asked: Mapping[int, Tensor], read: Reader) -> Replies:
        """Send messages, and return the usable replies."""
        return collect(self._federation, asked, self.send(messages), read, timeout=self.timeout)

    def send(self, messages: Iterable[Message]) -> list[Message]:
        """Send messages, and return the replies within the timeout.

        A request is repeated with the frozen layers of the model for nodes that lack them, initially all.
        """
        frozen = self._plan.frozen
        if frozen is None:
            return self.grid.send_and_receive(messages, timeout=self.timeout)
        sent = {message.metadata.dst_node_id: message for message in messages}
        for message in sent.values():
            frozen.add_fingerprint(message.content)
        received = self.grid.send_and_receive(sent.values(), timeout=self.timeout)
        lacks = [reply.metadata.src_node_id for reply in received if reply.has_content() and is_lacking(reply.content)]
        again = [_repeated(sent[node], frozen.add_layers(sent[node].content)) for node in lacks if node in sent]
        answers = {reply.metadata.src_node_id: reply for reply in received if reply.metadata.src_node_id not in lacks}
        answers |= {
            reply.metadata.src_node_id: reply for reply in self.grid.send_and_receive(again, timeout=self.timeout)
        }
        return [answers[node] for node in sent if node in answers]

    def _request(
        self,
        server_round: int,
        clients: tuple[str, ...],
        stacked: Tensors,
        shared: Tensors,
        splits: Sequence[SplitName],
        train: bool,
        predict: bool = False,
        mean: bool = False,
    ) -> WorkRequest:
        plan = self._plan
        return WorkRequest(
            client=plan.client,
            experiment=plan.experiment,
            run=plan.run,
            clients=clients,
            round=server_round,
            stacked=stacked,
            shared=shared,
            evaluate=tuple(splits),
            train=train,
            keep_from=plan.keep_from(server_round),
            predict=predict,
            mean=mean,
            attempts=plan.attempts,
        )

    def _reader(self, shapes: Shapes | None, types: Mapping[str, str] | None = None) -> Reader:
        return partial(_read, shapes=shapes or {}, types=types)


def _read(
    content: RecordDict,
    clients: list[str],
    shapes: Shapes,
    types: Mapping[str, str] | None,
) -> tuple[WorkReply, Mapping[str, str]]:
    """Unpack and check the reply of one node; see :data:`fedgraph.strategies.engine.replies.Reader`."""
    reply = WorkReply.unpack(content, clients, shapes, types)
    return reply, reply.unusable()


def _read_mean(
    content: RecordDict, clients: list[str], shapes: Shapes, found: dict[tuple[str, ...], Tensor]
) -> tuple[WorkReply, Mapping[str, str]]:
    """Unpack and check the mean of a node's models, and store it by its clients."""
    reply = WorkReply.unpack(content, clients, {}, shared=shapes)
    mean = reply.shared["parameters"]
    if not bool(usable_rows(mean[None]).all()):
        raise ReplyError("the mean of its models contains NaN, infinite or too large values")
    found[tuple(clients)] = mean
    return reply, reply.failed


def _among(hosts: Mapping[int, Tensor], only: Tensor) -> dict[int, Tensor]:
    """Return the clients of each node that are among ``only``; nodes without any are skipped."""
    if len(only.unique()) == sum(map(len, hosts.values())):
        return dict(hosts)
    found = {node: rows[torch.isin(rows, only)] for node, rows in hosts.items()}
    return {node: rows for node, rows in found.items() if len(rows)}


def _repeated(message: Message, content: RecordDict) -> Message:
    """Return a message to the same node with other content."""
    metadata = message.metadata
    return Message(content, metadata.dst_node_id, metadata.message_type, group_id=metadata.group_id)


def _slice_or_rows(positions: Tensor) -> slice | Tensor:
    """Return adjacent rows as a slice, which avoids copies."""
    first, last = int(positions[0]), int(positions[-1])
    return slice(first, last + 1) if last - first + 1 == len(positions) else positions
