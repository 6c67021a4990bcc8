"""F3 on secret shares: the messages of three exchanges.

F3 (Ma, Hoang, Chen; UAI 2023), section 5 and line 9 of algorithm 1. The first request is the one for embeddings, but
without any (``EmbedRequest``); owners are then asked for shares, and aggregators to compute on them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from fedgraph.messages import (
    EmbedReply,
    Request,
    checked_arrays,
    from_record,
    to_record,
    unpacking_reply,
    unpacking_request,
)
from fedgraph.privacy.secret import OVERHEAD, PRIME, PUBLIC_BYTES, ShareSettings, is_public_key
from fedgraph.support.errors import ReplyError
from fedgraph.support.files import json_digest
from fedgraph.support.untrusted import check_name

TAG_BYTES = 16
"""Length of the tag of a sample, by which an aggregator recognises it; the owner seals it behind the shares."""


def sealed_bytes(samples: int, size: int) -> int:
    """Return the length in bytes of a sealed share of ``samples`` embeddings of ``size`` numbers."""
    return (8 * size + TAG_BYTES) * samples + OVERHEAD


def binding(request: str, settings: ShareSettings, keys: Sequence[str], size: int, fingerprint: str) -> str:
    """Return the context that a sealed share is bound to, besides its sender and receiver.

    So the server cannot make an aggregator use other samples, models or settings than the owner did.
    """
    return json_digest([request, settings.as_table(), list(keys), size, fingerprint])


@dataclass(frozen=True)
class Introduction:
    """A node's first answer: which samples its owners have, without embeddings, and whether it aggregates.

    Attributes
    ----------
    aggregator : its name as an aggregator; None if it is not one.
    public : its public key, 32 bytes; empty when it is not an aggregator.
    """

    owners: EmbedReply
    aggregator: str | None = None
    public: bytes = b""

    @property
    def clients(self) -> tuple[str, ...]:
        """Owners of the node."""
        return self.owners.clients

    @property
    def partition(self) -> tuple[int, int] | None:
        """``(partition-id, num-partitions)`` of a node that owners are assigned to by number, else None."""
        return self.owners.partition

    @property
    def data(self) -> str:
        """Description of the data."""
        return self.owners.data

    @property
    def alike(self) -> Hashable:
        """The part of the answers that is the same for all nodes."""
        return self.owners.alike

    def pack(self) -> RecordDict:
        """Convert to Flower records."""
        content = self.owners.pack()
        content["aggregator"] = ConfigRecord({"name": self.aggregator or "", "public": self.public})
        return content

    @classmethod
    def unpack(cls, content: RecordDict) -> Introduction:
        """Check and unpack a node's answer. Raises ReplyError for anything else, and for embeddings in the clear."""
        owners = EmbedReply.unpack(content)
        if owners.embeddings.shape[2] or owners.predictions.shape[2]:
            raise ReplyError("the answer holds embeddings or predictions in the clear, which were not requested")
        with unpacking_reply("what the answer says of an aggregator"):
            config: Any = content.config_records["aggregator"]
            name, public = str(config["name"]), config["public"]
            usable = isinstance(public, bytes) and (is_public_key(public) if name else not public)
        if name:
            check_name(name, "an aggregator")
        if not usable:
            raise ReplyError(f"the public key of aggregator '{name}' does not have {PUBLIC_BYTES} bytes")
        return cls(owners, name or None, public)


@dataclass(frozen=True)
class ShareRequest(Request):
    """Request to nodes with owners: shares of embeddings, sealed for the aggregators.

    Attributes
    ----------
    request : identifier that no other request has.
    split : the samples, one of ``SAMPLE_SPLITS``.
    fingerprints : by owner asked the fingerprint of the frozen model that it must use.
    aggregators : public keys by name; the j-th aggregator, counted from 1, gets the share at point j.
    """

    request: str
    split: str
    fingerprints: Mapping[str, str]
    aggregators: Mapping[str, bytes]

    def pack(self) -> RecordDict:
        """Convert to Flower records."""
        config = {
            **self.header(),
            "step": "share",
            "request": self.request,
            "split": self.split,
            "owners": list(self.fingerprints),
            "fingerprints": list(self.fingerprints.values()),
            "aggregators": list(self.aggregators),
            "public": list(self.aggregators.values()),
        }
        return RecordDict({"config": ConfigRecord(config)})

    @classmethod
    def unpack(cls, content: RecordDict) -> ShareRequest:
        """Read the request that a node received. Raises ReplyError when a part is missing."""
        with unpacking_request():
            config: Any = content.config_records["config"]
            return cls(
                **cls.read_header(config),
                request=str(config["request"]),
                split=str(config["split"]),
                fingerprints=dict(zip(config["owners"], config["fingerprints"], strict=True)),
                aggregators=dict(zip(config["aggregators"], config["public"], strict=True)),
            )


@dataclass(frozen=True)
class ShareReply:
    """Sealed shares by owner, uint8 ``[aggregators, bytes]``, of the owner's samples in the order of their keys."""

    sealed: Mapping[str, Tensor]

    def pack(self) -> RecordDict:
        """Convert to Flower records."""
        config = ConfigRecord({"owners": list(self.sealed)})
        numbered = {str(row): sealed for row, sealed in enumerate(self.sealed.values())}
        return RecordDict({"config": config, "sealed": to_record(numbered)})

    @classmethod
    def unpack(cls, content: RecordDict, lengths: Mapping[str, int], aggregators: int) -> ShareReply:
        """Check the reply of the node that hosts the owners of ``lengths``, the bytes of a sealed share by owner.

        Raises ReplyError for other owners, other arrays or sizes.
        """
        with unpacking_reply("the reply with sealed shares"):
            config: Any = content.config_records["config"]
            named, record = list(config["owners"]), content.array_records["sealed"]
        if named != list(lengths):
            raise ReplyError(f"the reply is for {', '.join(map(str, named))}, but {', '.join(lengths)} were asked")
        shapes = {str(row): (aggregators, length) for row, length in enumerate(lengths.values())}
        arrays = checked_arrays(record, shapes, dict.fromkeys(shapes, "uint8"))
        return cls({owner: arrays[str(row)].clone() for row, owner in enumerate(lengths)})


@dataclass(frozen=True)
class ComputeRequest(Request):
    """Request to an aggregator: the first stage on its shares.

    Attributes
    ----------
    request : identifier that no other request has.
    owners, keys : owners and samples of the result.
    sizes : int64 ``[owners]``, length of each owner's embedding.
    fingerprints : fingerprints of the frozen models.
    present : bool ``[owners, samples]``, which samples owners have shared.
    patterns : int64 ``[samples]``, index of a sample's graphs in ``mixing``.
    mixing : int64 ``[patterns, draws, owners, owners]``, see ``FirstStage``.
    projections : int64 ``[owners, hidden, size]``.
    sealed : this aggregator's sealed shares, uint8 ``[bytes]`` by owner, of the owners that sent some.
    """

    request: str
    aggregator: str
    owners: tuple[str, ...]
    keys: tuple[str, ...]
    sizes: Tensor
    fingerprints: tuple[str, ...]
    present: Tensor
    patterns: Tensor
    mixing: Tensor
    projections: Tensor
    sealed: Mapping[str, Tensor]

    def pack(self) -> RecordDict:
        """Convert to Flower records."""
        config = {
            **self.header(),
            "step": "compute",
            "request": self.request,
            "aggregator": self.aggregator,
            "owners": list(self.owners),
            "keys": list(self.keys),
            "fingerprints": list(self.fingerprints),
            "sealed": list(self.sealed),
        }
        public = {
            "sizes": self.sizes,
            "present": self.present.to(torch.uint8),
            "patterns": self.patterns,
            "mixing": self.mixing,
            "projections": self.projections,
        }
        sealed = {str(row): sealed for row, sealed in enumerate(self.sealed.values())}
        return RecordDict({"config": ConfigRecord(config), "public": to_record(public), "sealed": to_record(sealed)})

    @classmethod
    def unpack(cls, content: RecordDict) -> ComputeRequest:
        """Read the request that an aggregator received. Raises ReplyError when parts are missing or do not fit."""
        with unpacking_request():
            config: Any = content.config_records["config"]
            public = from_record(content.array_records["public"])
            sealed = from_record(content.array_records["sealed"])
            request = cls(
                **cls.read_header(config),
                request=str(config["request"]),
                aggregator=str(config["aggregator"]),
                owners=tuple(config["owners"]),
                keys=tuple(config["keys"]),
                sizes=public["sizes"],
                fingerprints=tuple(config["fingerprints"]),
                present=public["present"] != 0,
                patterns=public["patterns"],
                mixing=public["mixing"],
                projections=public["projections"],
                sealed={name: sealed[str(row)] for row, name in enumerate(config["sealed"])},
            )
        if not request._fits():
            raise ReplyError("the parts of the request to compute on shares do not fit each other")
        return request

    def _fits(self) -> bool:
        """Check shapes, and that maps are integers, as others might reveal more."""
        owners, samples, sizes = len(self.owners), len(self.keys), self.sizes
        return (
            all(each.dtype == torch.int64 for each in (sizes, self.patterns, self.mixing, self.projections))
            and self.mixing.ndim == 4
            and self.projections.ndim == 3
            and self.present.shape == (owners, samples)
            and self.patterns.shape == (samples,)
            and self.mixing.shape[2:] == (owners, owners)
            and self.projections.shape[:1] == sizes.shape == (owners,)
            and len(self.fingerprints) == owners
            and set(self.sealed) <= set(self.owners)
            and bool(((sizes >= 0) & (sizes <= self.projections.shape[2])).all())
            and bool(((self.patterns >= 0) & (self.patterns < len(self.mixing))).all())
        )


@dataclass(frozen=True)
class ComputeReply:
    """The results of an aggregator.

    Attributes
    ----------
    shares : its share of the first stage, int64 ``[draws, owners, samples, hidden]``; None where it computed nothing.
    unopened : the owners whose sealed shares it could not open.
    """

    shares: Tensor | None
    unopened: tuple[str, ...] = ()

    def pack(self) -> RecordDict:
        """Convert to Flower records."""
        content = RecordDict({"config": ConfigRecord({"unopened": list(self.unopened)})})
        if self.shares is not None:
            content["shares"] = to_record({"shares": self.shares})
        return content

    @classmethod
    def unpack(cls, content: RecordDict, shape: tuple[int, ...], owners: Collection[str]) -> ComputeReply:
        """Check a reply to a request with sealed shares of ``owners``.

        Raises ReplyError for another array or shape, numbers outside the field, and strangers among the owners.
        """
        with unpacking_reply("the reply of an aggregator"):
            unopened = tuple(map(str, content.config_records["config"]["unopened"]))  # type: ignore[arg-type]
        if not set(unopened) <= set(owners):
            raise ReplyError("the reply names owners without shares in the request")
        if unopened:
            return cls(None, unopened)
        record = content.array_records.get("shares")
        if record is None:
            raise ReplyError("the reply holds no shares")
        shares = checked_arrays(record, {"shares": shape}, {"shares": "int64"})["shares"].clone()
        if bool(((shares < 0) | (shares >= PRIME)).any()):
            raise ReplyError("the shares are not elements of the field")
        return cls(shares)
