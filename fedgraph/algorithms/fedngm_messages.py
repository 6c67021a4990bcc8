"""Request and reply of each phase of FedNGM."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedgraph.data.encoding import Scaling
from fedgraph.data.schema import ExclusionReason, Schema, check_length, schema_as_json, schema_from_json
from fedgraph.graph import FeatureGraph
from fedgraph.messages import (
    Request,
    checked_arrays,
    from_record,
    read_hosts,
    to_record,
    unpacking_reply,
    unpacking_request,
)
from fedgraph.models import usable_rows
from fedgraph.privacy.secret import is_public_key
from fedgraph.support.errors import GraphError, ReplyError
from fedgraph.support.untrusted import LONGEST_DESCRIPTION, check_name, in_short, read_json

PhaseName = Literal["schema", "statistics", "graph", "keys", "sums", "fit", "finish"]
"""The phases, and what a node returns in each for every client.

``schema``: features and number of rows. ``statistics``: the statistics of common features that are asked for.
``graph``: its feature graph; or, where one graph is recovered for all, ``sums`` over its rows, and before them the
``keys`` of masks that hide them. ``fit``: a model of its rows. ``finish``: its own model, made from the global one, and
how well all of them predict.
"""

_PARAMETERS = "parameters"
_SUMS = "sums"
_EXCLUDED = "no-features"
_MOST_ROWS = 1 << 40
_MOST_SCORES = 50_000
_MOST_COLUMNS = 2_000


@dataclass(frozen=True)
class PhaseRequest(Request):
    """Request to all nodes in one phase; unknown or unused parts are None.

    Attributes
    ----------
    round : round of a phase that is repeated, from 1.
    scaling : their ranges, as far as these are common.
    graph : consensus graph over the common features.
    parameters : the global model, float32 ``[1, parameters]``.
    keys : public keys for masks by client, in hexadecimal digits.
    """

    phase: PhaseName
    round: int = 1
    common: Schema | None = None
    scaling: Scaling | None = None
    graph: FeatureGraph | None = None
    parameters: Tensor | None = None
    keys: Mapping[str, str] | None = None

    def pack(self) -> RecordDict:
        """Convert to Flower records."""
        known = {
            "common": None if self.common is None else schema_as_json(self.common),
            "scaling": None if self.scaling is None else self.scaling.as_json(),
            "graph": None if self.graph is None else json.dumps(self.graph.as_json()),
            "keys": None if self.keys is None else json.dumps(dict(self.keys)),
        }
        config = ConfigRecord({**self.header(), "phase": self.phase, "round": self.round})
        for name, text in known.items():
            if text is not None:
                config[name] = text
        arrays = {} if self.parameters is None else {_PARAMETERS: self.parameters}
        return RecordDict({"config": config, "shared": to_record(arrays)})

    @classmethod
    def unpack(cls, content: RecordDict) -> PhaseRequest:
        """Read the request that a node received. Raises ReplyError when a part is missing or the phase is unknown."""
        with unpacking_request():
            config: Any = content.config_records["config"]
            phase = str(config["phase"])
            if phase not in get_args(PhaseName):
                raise ReplyError(f"unknown phase '{phase}' in the request: another version of fedgraph?")
            shared = from_record(content.array_records["shared"])
            return cls(
                **cls.read_header(config),
                phase=phase,  # type: ignore[arg-type]
                round=int(config["round"]),
                common=schema_from_json(str(config["common"])) if "common" in config else None,
                scaling=Scaling.from_json(str(config["scaling"])) if "scaling" in config else None,
                graph=graph_from_text(str(config["graph"])) if "graph" in config else None,
                parameters=shared.get(_PARAMETERS),
                keys=keys_from_text(str(config["keys"])) if "keys" in config else None,
            )


@dataclass(frozen=True)
class PhaseReply:
    """A node's answer for its clients.

    Attributes
    ----------
    partition : ``(partition-id, num-partitions)`` of a node that clients are assigned to by number, else None.
    num_rows : training rows of each client.
    texts : the results of the phase, as JSON, for each client.
    parameters : parameters of the clients' models, float32 ``[clients, parameters]``; ``[clients, 0]`` where none are
        asked for.
    sums : sums over each client's rows (:class:`fedgraph.graphical.recovery.summed.UnitSums`), int64 ``[clients,
        numbers]``; None if not requested.
    excluded_columns : by client, its columns that are not features, and why; empty if the node does not tell.
    """

    clients: tuple[str, ...]
    partition: tuple[int, int] | None
    data: str
    num_rows: tuple[int, ...]
    texts: tuple[str, ...]
    parameters: Tensor
    sums: Tensor | None = None
    excluded_columns: tuple[Mapping[str, ExclusionReason], ...] = ()

    @classmethod
    def empty(cls, partition: tuple[int, int] | None) -> PhaseReply:
        """Return the answer of a node that hosts no client."""
        return cls((), partition, "", (), (), torch.zeros(0, 0))

    def pack(self) -> RecordDict:
        """Convert to Flower records."""
        config = ConfigRecord(
            {
                "clients": list(self.clients),
                "partition": list(self.partition or ()),
                "data": self.data,
                "num-rows": list(self.num_rows),
                "texts": list(self.texts),
                **({_EXCLUDED: [json.dumps(each) for each in self.excluded_columns]} if self.excluded_columns else {}),
            }
        )
        arrays = {_PARAMETERS: self.parameters} | ({} if self.sums is None else {_SUMS: self.sums})
        return RecordDict({"config": config, "stacked": to_record(arrays)})

    @classmethod
    def unpack(cls, content: RecordDict, width: int = 0, sums: int = 0) -> PhaseReply:
        """Check and unpack a node's answer, except for the content of ``texts`` and ``sums``.

        Raises ReplyError for anything that is not such an answer.

        Parameters
        ----------
        width : number of parameters of a model.
        sums : number of sums of a client.
        """
        with unpacking_reply("the answer"):
            config: Any = content.config_records["config"]
            texts = tuple(str(text) for text in config["texts"])
            num_rows = tuple(int(count) for count in config["num-rows"])
            data = in_short(str(config["data"]), LONGEST_DESCRIPTION)
            stacked: ArrayRecord = content.array_records["stacked"]
            excluded_columns = tuple(_columns(text) for text in config.get(_EXCLUDED, ()))
        clients, partition = read_hosts(config)
        if (
            len(texts) != len(clients)
            or len(num_rows) != len(clients)
            or len(excluded_columns) not in (0, len(clients))
        ):
            raise ReplyError("the answer lacks entries for some of its clients")
        if not all(0 < count <= _MOST_ROWS for count in num_rows):
            raise ReplyError(f"the answer gives a client rows outside 1 to {_MOST_ROWS:,}")
        expected = {_PARAMETERS: (len(clients), width)} | ({_SUMS: (len(clients), sums)} if sums and clients else {})
        arrays = checked_arrays(stacked, expected, {_SUMS: "int64"})
        parameters = arrays[_PARAMETERS]
        if not bool(usable_rows(parameters).all()):
            raise ReplyError("the parameters of a model hold NaN, infinite or huge values")
        masked_sums = arrays[_SUMS].clone() if _SUMS in arrays else None
        return cls(clients, partition, data, num_rows, texts, parameters.clone(), masked_sums, excluded_columns)

    @property
    def alike(self) -> Hashable:
        """The part of the answer that must be the same for all nodes: none."""
        return None


Answer = TypeVar("Answer")


def read_answers(
    names: tuple[str, ...],
    content: RecordDict,
    read: Callable[[str, str, Tensor], Answer],
    width: int = 0,
    sums: int = 0,
) -> tuple[dict[str, Answer], dict[str, str]]:
    """Read a node's answer for each of its clients.

    Parameters
    ----------
    names : the requested clients.
    read : checks and decodes a client's answer: its name, its text, and its ``width`` parameters or its ``sums``.
        Raises ReplyError for one that cannot be used.
    width, sums : number of parameters, or of sums, in each client's answer.

    Returns
    -------
    found : dict of str to Answer
        Decoded answers by client.
    lost : dict of str to str
        Problems with other answers, by client.
    """
    reply = PhaseReply.unpack(content, width, sums)
    if not set(names) <= set(reply.clients):
        raise ReplyError("the answer lacks some of the node's clients")
    rows = reply.parameters if reply.sums is None else reply.sums
    place_of = {name: place for place, name in enumerate(reply.clients)}
    found: dict[str, Answer] = {}
    lost: dict[str, str] = {}
    for name in names:
        try:
            found[name] = read(name, reply.texts[place_of[name]], rows[place_of[name]])
        except ReplyError as error:
            lost[name] = str(error)
    return found, lost


def _columns(text: Any) -> dict[str, ExclusionReason]:
    """Read the excluded columns of a client, and why. Raises ReplyError for anything else."""
    found = read_json(text, "the excluded columns of the answer")
    if (
        not isinstance(found, dict)
        or len(found) > _MOST_COLUMNS
        or not set(found.values()) <= set(get_args(ExclusionReason))
    ):
        raise ReplyError("the answer does not give columns by name with a reason")
    for name in found:
        check_name(name, "a column")
    return found


def graph_from_text(text: str, common: Schema | None = None) -> FeatureGraph:
    """Read a feature graph from a message. Raises ReplyError unless it is over the ``common`` features."""
    try:
        graph = FeatureGraph.from_json(_read(text, "the feature graph"))
    except GraphError as error:
        raise ReplyError(f"the feature graph cannot be used: {ascii(str(error)[:300])[1:-1]}") from None
    if common is not None and set(graph.names) != set(common.names):
        raise ReplyError("the feature graph is not over the common features")
    return graph


def keys_from_text(text: str) -> dict[str, str]:
    """Read public keys by client. Raises ReplyError for anything else."""
    keys = _read(text, "the keys of clients")
    if not isinstance(keys, dict) or not all(isinstance(key, str) for key in keys.values()):
        raise ReplyError("the keys of clients are not text by name")
    return keys


def key_from_text(text: str) -> str:
    """Return the public key of a client, in hexadecimal digits. Raises ReplyError for an unusable key."""
    try:
        usable = is_public_key(bytes.fromhex(text)) and text == text.lower()
    except ValueError:
        usable = False
    if not usable:
        raise ReplyError("the public key of a client cannot be used")
    return text


def scores_from_text(text: str) -> dict[str, float]:
    """Read scores, ``<split>/<metric>`` -> value, NaN where undefined. Raises ReplyError for anything else."""
    table = _read(text, "the scores of a client")
    if (
        not isinstance(table, dict)
        or len(table) > _MOST_SCORES
        or not all(_is_score(name, value) for name, value in table.items())
    ):
        raise ReplyError("the scores of a client are not numbers by name")
    return {name: math.nan if value is None else float(value) for name, value in table.items()}


def _read(text: str, what: str) -> Any:
    """Parse JSON of limited length."""
    check_length(text, what)
    return read_json(text, what)


def scores_as_text(scores: Mapping[str, float]) -> str:
    """Return scores as one line of JSON, read by :func:`scores_from_text`."""
    return json.dumps({name: value if math.isfinite(value) else None for name, value in scores.items()})


def _is_score(name: Any, value: Any) -> bool:
    named = isinstance(name, str) and len(name) <= 500 and name.isprintable() and "/" in name
    return named and (value is None or (type(value) in (int, float) and abs(value) <= 1e30))
