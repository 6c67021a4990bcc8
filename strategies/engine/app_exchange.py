"""Conversion of an algorithm's requests to messages of a Flower app, and of replies to its answers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from fedgraph.algorithms import Answers, Ask, Clients, ModelRows, matrix
from fedgraph.defence import bounded_counts
from fedgraph.messages import checked_arrays, to_record
from fedgraph.messages.apps import (
    APP_RECORD,
    further_record,
    models_record,
    read_model,
    read_models,
    read_num_examples,
    read_numbers,
)
from fedgraph.models import finite_rows
from fedgraph.support.errors import ReplyError
from fedgraph.support.untrusted import in_short

log = logging.getLogger("fedgraph")


@dataclass(frozen=True)
class Keys:
    """Keys of records and of a metric, as in Flower's strategies."""

    arrays: str
    config: str
    weight: str


@dataclass(frozen=True)
class AppReply:
    """A usable reply of a client.

    Attributes
    ----------
    model : its trained model, as read-only views; None in an evaluation.
    num_examples : its weight, usually a number of examples, or None.
    tensors : tensors in addition to models, see :meth:`with_tensors`.
    """

    name: str
    content: RecordDict
    model: dict[str, Tensor] | None
    num_examples: float | None
    metrics: dict[str, float]
    tensors: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, message: Message, keys: Keys, template: Mapping[str, Tensor] | None) -> AppReply:
        """Check and read a reply; ``template`` is a model like the expected one, if any.

        Raises ReplyError, which names a wrong layer.
        """
        content = message.content
        model = None if template is None else read_model(content, keys.arrays, template)
        return cls(name, content, model, read_num_examples(content, keys.weight), read_numbers(content, keys.weight))

    def with_tensors(self, ask: Ask) -> AppReply:
        """Return the reply with the further tensors of an exchange, each the only array of a record.

        Raises ReplyError for a missing tensor, or one with a wrong shape or type.
        """
        returns = {} if ask.returns is None else ask.returns
        wanted = {name: shape for name, shape in returns.items() if name != "parameters" and name not in ask.models}
        found = {name: self._tensor(name, shape, ask.types.get(name, "float32")) for name, shape in wanted.items()}
        return replace(self, tensors=found)

    def _tensor(self, name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
        record = self.content.array_records.get(further_record(name))
        if record is None or len(record) != 1:
            raise ReplyError(f"it lacks '{further_record(name)}', an array record with one array")
        ((key, array),) = record.items()
        if tuple(array.shape) != tuple(shape):
            raise ReplyError(f"its '{name}' has shape {tuple(array.shape)} instead of {tuple(shape)}")
        value = checked_arrays(record, {key: tuple(shape)}, {key: array.dtype})[key]
        wanted: torch.dtype = getattr(torch, dtype)
        if value.is_floating_point() != wanted.is_floating_point or value.is_complex() or value.dtype == torch.bool:
            raise ReplyError(f"its '{name}' has type {array.dtype} instead of {dtype}")
        if not bool(finite_rows(value[None])):
            raise ReplyError(f"its '{name}' has non-finite values")
        return value.to(wanted)

    def forget_arrays(self) -> None:
        """Remove everything except metrics from the message."""
        for name in list(self.content.array_records):
            del self.content[name]


_OLD_RECORDS = ("fitins.parameters", "evaluateins.parameters")
_OLD_APP = (
    "its ClientApp has a client_fn, of Flower's old API: write it with @app.train() and @app.evaluate(), see Flower's "
    "guide 'Upgrade to Message API'"
)


def last_words(message: Message) -> str:
    """Return a node's error, which Flower logs in full; of a traceback only what was raised at its end."""
    lines = (message.error.reason or "").strip().splitlines()
    frames = [place for place, line in enumerate(lines) if line.startswith("  File ")]
    if frames:
        # A frame has its line of code below it, and marks below that.
        after = lines[frames[-1] + 1 :]
        lines = list(dropwhile(lambda line: line.startswith("    "), after)) or lines[-1:]
    words = in_short("\n".join(lines), 500) if lines else "it failed without words"
    return f"{words} ({_OLD_APP})" if any(record in words for record in _OLD_RECORDS) else words


def named(models: ModelRows, place: int, row: Tensor) -> dict[str, Tensor]:
    """Return a row ``[parameters]`` as arrays; uncomputed arrays are those of the client at ``place``."""
    pieces = models.layout.unflatten(row[None])
    own = models.models[place].items()
    return {name: pieces[name][0].to(value.dtype) if name in pieces else value for name, value in own}


def request(
    ask: Ask, place: int, models: ModelRows, config: ConfigRecord, keys: Keys, terms: Mapping[str, Any]
) -> RecordDict:
    """Return the message to the client at ``place``: model, config, further models and tensors, and ``terms``."""
    rows = ask.stacked.get("parameters", models)
    own = models.models[place] if isinstance(rows, ModelRows) else named(models, place, rows[place])
    content = RecordDict({keys.arrays: to_record(own), keys.config: config})
    its = {name: value[place] for name, value in ask.stacked.items() if isinstance(value, Tensor)}
    for name, value in {**ask.shared, **its}.items():
        if name in ask.models and name != "parameters":
            each = value[None] if value.dim() == 1 else value
            content[further_record(name)] = models_record([named(models, place, row) for row in each])
        elif name != "parameters":
            content[further_record(name)] = to_record({name: value})
    if terms:
        content[APP_RECORD] = ConfigRecord({"arrays": keys.arrays, **terms})
    return content


def answers(clients: Clients, models: ModelRows, ask: Ask, replies: Sequence[AppReply]) -> Answers:
    """Return the answers for an algorithm; uncomputed tensors are copied to ``models``."""
    places = torch.tensor([clients.names.index(reply.name) for reply in replies], dtype=torch.int64)
    rows = ModelRows([reply.model for reply in replies if reply.model is not None], models.own)
    graph, names = clients.graph, tuple(reply.name for reply in replies)
    if graph is not None and 0 < len(names) < len(clients):
        graph = graph.subgraph(names)
    models.take_over(places, rows)
    further = {name: _further(models, ask, name, replies) for name in ask.returns or () if name != "parameters"}
    fresh = torch.ones(len(places), dtype=torch.bool)
    return Answers(places, names, {"parameters": rows, **further}, clients.num_examples[places], graph, fresh)


def _further(models: ModelRows, ask: Ask, name: str, replies: Sequence[AppReply]) -> Tensor:
    """Return the clients' further tensors, ``[present, ...]``.

    Further models ``[models, parameters]`` are unchanged for clients that did not return them.
    """
    if name not in ask.models:
        return torch.stack([reply.tensors[name] for reply in replies]) if replies else torch.zeros(0)
    sent, found = ask.shared[name], []
    for reply in replies:
        record = reply.content.array_records.get(further_record(name))
        rows = sent if record is None else _read_further(models, record, sent, f"client '{reply.name}': {name}")
        found.append(rows)
    return torch.stack(found) if found else sent[None][:0]


def _read_further(models: ModelRows, record: ArrayRecord, sent: Tensor, whose: str) -> Tensor:
    try:
        rows = matrix(ModelRows(read_models(record, len(sent), models.models[0]), models.own))
    except ReplyError as error:
        log.warning("%s: not used, since %s", whose, error)
        return sent
    if not bool(finite_rows(rows).all()):
        log.warning("%s: ignored, as it is not finite", whose)
        return sent
    return rows


def averaged(replies: Sequence[AppReply], keys: Keys, most: float | None) -> list[AppReply]:
    """Return the replies whose metrics can be averaged: those with a weight, and the same metrics as the first.

    Their weights are bounded by ``most``, as :func:`fedgraph.defence.bounded_counts` has it.
    """
    weighed = [reply for reply in replies if reply.num_examples and len(reply.content.metric_records) == 1]
    weighed = [reply for reply in weighed if reply.metrics.keys() == weighed[0].metrics.keys()]
    claimed = torch.tensor([reply.num_examples for reply in weighed], dtype=torch.float64)
    bounded = bounded_counts(claimed, most)
    for place in (bounded < claimed).nonzero().flatten().tolist():
        (record,) = weighed[place].content.metric_records.values()
        record[keys.weight] = float(bounded[place])
    return weighed
