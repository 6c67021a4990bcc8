"""From what an algorithm asks to the messages of a Flower app, and from replies to what an algorithm is answered."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from fedgraph.algorithms import Answers, Ask, Clients, ModelRows, matrix
from fedgraph.messages import to_record
from fedgraph.messages.apps import (
    APP_RECORD,
    further_models,
    model_of,
    models_of,
    models_record,
    number_of_examples,
    numbers_of,
)
from fedgraph.support.errors import ReplyError
from fedgraph.support.untrusted import in_short

log = logging.getLogger("fedgraph")


@dataclass(frozen=True)
class Keys:
    """Names of records and of a metric, as in Flower's strategies."""

    arrays: str
    config: str
    weight: str


@dataclass(frozen=True)
class AppReply:
    """A usable reply of a client.

    Attributes
    ----------
    name : str
        The client.
    content : RecordDict
        All that it sent.
    model : dict of str to Tensor or None
        Its trained model, as views that are not to be written to; None in an evaluation.
    num_examples : int or None
        As it says; None where it does not.
    metrics : dict of str to float
        What else it says.
    """

    name: str
    content: RecordDict
    model: dict[str, Tensor] | None
    num_examples: int | None
    metrics: dict[str, float]

    @classmethod
    def of(cls, name: str, message: Message, keys: Keys, template: Mapping[str, Tensor] | None) -> AppReply:
        """Check a reply and read it; ``template`` is a model like the one expected, None where none is.

        Raises ReplyError, with the layer where one is wrong.
        """
        content = message.content
        model = None if template is None else model_of(content, keys.arrays, template)
        return cls(name, content, model, number_of_examples(content, keys.weight), numbers_of(content, keys.weight))

    def forget_arrays(self) -> None:
        """Leave nothing in the message but metrics."""
        for name in list(self.content.array_records):
            del self.content[name]


def last_words(message: Message) -> str:
    """Return the last line of why a node failed; Flower logs all of it."""
    lines = (message.error.reason or "").strip().splitlines()
    return in_short(lines[-1], 500) if lines else "it failed without words"


def named(models: ModelRows, place: int, row: Tensor) -> dict[str, Tensor]:
    """Return a row ``[parameters]`` as arrays; those in no computation are those of the client at ``place``."""
    pieces = models.layout.unflatten(row[None])
    own = models.models[place].items()
    return {name: pieces[name][0].to(value.dtype) if name in pieces else value for name, value in own}


def request(
    ask: Ask, place: int, models: ModelRows, config: ConfigRecord, keys: Keys, terms: Mapping[str, Any]
) -> RecordDict:
    """Return what the client at ``place`` is sent: its model, the config, and what the terms of its loss need."""
    rows = ask.stacked.get("parameters", models)
    own = models.models[place] if isinstance(rows, ModelRows) else named(models, place, rows[place])
    content = RecordDict({keys.arrays: to_record(own), keys.config: config})
    if not terms:
        return content
    told: dict[str, Any] = {"arrays": keys.arrays, **terms}
    for name, value in ask.shared.items():
        if name not in ask.models:
            told[name] = value.tolist()
        elif name != "parameters":
            each = value[None] if value.dim() == 1 else value
            content[further_models(name)] = models_record([named(models, place, row) for row in each])
    told |= {
        name: value[place].tolist()
        for name, value in ask.stacked.items()
        if name != "parameters" and isinstance(value, Tensor)
    }
    content[APP_RECORD] = ConfigRecord(told)
    return content


def answers(clients: Clients, models: ModelRows, ask: Ask, replies: Sequence[AppReply]) -> Answers:
    """Return what an algorithm is answered; what is in no computation is taken over to ``models``."""
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
    """Return further models that clients sent back, ``[present, models, parameters]``; else as they were sent them."""
    sent, found = ask.shared[name], []
    for reply in replies:
        record = reply.content.array_records.get(further_models(name))
        rows = sent if record is None else _read_further(models, record, sent, f"client '{reply.name}': {name}")
        found.append(rows)
    return torch.stack(found) if found else sent[None][:0]


def _read_further(models: ModelRows, record: ArrayRecord, sent: Tensor, whose: str) -> Tensor:
    try:
        rows = matrix(ModelRows(models_of(record, len(sent), models.models[0]), models.own))
    except ReplyError as error:
        log.warning("%s: not used, since %s", whose, error)
        return sent
    if not bool(rows.isfinite().all()):
        log.warning("%s: not used, since not finite", whose)
        return sent
    return rows


def averaged(replies: Sequence[AppReply]) -> list[AppReply]:
    """Return the replies whose metrics can be averaged: those with a weight, and the metrics of the first of them."""
    weighed = [reply for reply in replies if reply.num_examples and len(reply.content.metric_records) == 1]
    return [reply for reply in weighed if reply.metrics.keys() == weighed[0].metrics.keys()]
