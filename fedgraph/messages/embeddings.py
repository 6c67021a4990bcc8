"""The single exchange of F3: the request for embeddings, and a node's answer for its owners.

Ma, Hoang, Chen (UAI 2023), algorithm 1. An answer contains sample keys, splits, labels, embeddings, the presence of
samples and the predictions of local models, but neither models nor features.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from fedgraph.data.owners import NO_LABEL, SAMPLE_SPLITS
from fedgraph.messages.array_records import checked_arrays, to_record
from fedgraph.messages.envelope import Request, read_hosts, unpacking_reply, unpacking_request
from fedgraph.support.errors import ReplyError
from fedgraph.support.untrusted import LARGEST, LONGEST_DESCRIPTION, in_short

_LARGEST_EMBEDDING = 1 << 20
_LARGEST_PROBABILITY = 1 + 1e-4
"""1, up to rounding."""

_LONGEST_KEY = 1_000


@dataclass(frozen=True)
class EmbedRequest(Request):
    """Request to all nodes for embeddings of their owners' samples.

    Attributes
    ----------
    splits : tuple of str
        Requested splits, of ``SAMPLE_SPLITS``.
    embeddings : bool
        Whether embeddings are requested, or only the presence of samples.
    fingerprints : mapping of str to str
        Fingerprint of the required frozen model by owner; other owners use any model.
    message_type : str
        Flower's message type of the request.
    """

    message_type: ClassVar[str] = "query.embed"

    splits: tuple[str, ...] = ("train", "validation", "test")
    embeddings: bool = True
    fingerprints: Mapping[str, str] = field(default_factory=dict)

    def pack(self) -> RecordDict:
        """Convert to Flower records."""
        return RecordDict(
            {
                "config": ConfigRecord(
                    {
                        **self.header(),
                        "splits": list(self.splits),
                        "embeddings": self.embeddings,
                        "owners": list(self.fingerprints),
                        "fingerprints": list(self.fingerprints.values()),
                    }
                )
            }
        )

    @classmethod
    def unpack(cls, content: RecordDict) -> EmbedRequest:
        """Read the request that a node received. Raises ReplyError when a part is missing."""
        with unpacking_request():
            config: Any = content.config_records["config"]
            if not set(config["splits"]) <= set(SAMPLE_SPLITS):
                raise ReplyError("the request asks for unknown splits")
            return cls(
                **cls.read_header(config),
                splits=tuple(config["splits"]),
                embeddings=bool(config["embeddings"]),
                fingerprints=dict(zip(config["owners"], config["fingerprints"], strict=True)),
            )


@dataclass(frozen=True)
class EmbedReply:
    """A node's answer for its owners.

    Attributes
    ----------
    clients : tuple of str
        The owners.
    partition : tuple of (int, int) or None
        ``(partition-id, num-partitions)`` of a node that owners are assigned to by number, else None.
    data : str
        Description of the data.
    classes : tuple of str
        Names of the classes.
    keys : tuple of str
        Keys of all samples of the owners, sorted and unique.
    split : Tensor
        int8 ``[samples]``, index into ``SAMPLE_SPLITS``.
    labels : Tensor
        int64 ``[samples]``, -1 for samples without one.
    present : Tensor
        bool ``[owners, samples]``; where it is False, embeddings and predictions are 0.
    sizes : Tensor
        int64 ``[owners]``, length of each owner's embedding.
    embeddings : Tensor
        float32 ``[owners, samples, size]``, 0 beyond an owner's own size.
    predictions : Tensor
        float32 ``[owners, samples, classes]``, probabilities by the owners' local models; ``[owners, samples, 0]`` with
        noise on embeddings, and without embeddings.
    fingerprints : tuple of str
        Fingerprint of each owner's frozen model.
    """

    clients: tuple[str, ...]
    partition: tuple[int, int] | None
    data: str
    classes: tuple[str, ...]
    keys: tuple[str, ...]
    split: Tensor
    labels: Tensor
    present: Tensor
    sizes: Tensor
    embeddings: Tensor
    predictions: Tensor
    fingerprints: tuple[str, ...]

    @classmethod
    def empty(cls, partition: tuple[int, int] | None) -> EmbedReply:
        """Return the answer of a node that hosts no owner."""
        none = torch.zeros(0, dtype=torch.int64)
        return cls(
            (), partition, "", (), (), none.to(torch.int8), none, torch.zeros(0, 0, dtype=torch.bool), none,
            torch.zeros(0, 0, 0), torch.zeros(0, 0, 0), (),
        )  # fmt: skip

    def pack(self) -> RecordDict:
        """Convert to Flower records."""
        config = ConfigRecord(
            {
                "clients": list(self.clients),
                "partition": list(self.partition or ()),
                "data": self.data,
                "classes": list(self.classes),
                "keys": list(self.keys),
                "sizes": self.sizes.tolist(),
                "fingerprints": list(self.fingerprints),
                "predicts": bool(self.predictions.shape[2]),
            }
        )
        samples = {"split": self.split.to(torch.int8), "labels": self.labels.to(torch.int32)}
        owned = {"present": self.present.to(torch.uint8)}
        floats = {"embeddings": self.embeddings, "predictions": self.predictions}
        return RecordDict({"config": config, "samples": to_record(samples | owned), "stacked": to_record(floats)})

    @classmethod
    def unpack(cls, content: RecordDict) -> EmbedReply:
        """Check and unpack a node's answer.

        Values are checked by :meth:`unusable`, as invalid numbers of one owner must not exclude the others. Raises
        ReplyError for an invalid answer.
        """
        with unpacking_reply("the answer to the request for embeddings"):
            config: Any = content.config_records["config"]
            classes = tuple(str(name) for name in config["classes"])
            keys = tuple(str(key) for key in config["keys"])
            fingerprints = tuple(str(text) for text in config["fingerprints"])
            sizes = torch.tensor([int(size) for size in config["sizes"]], dtype=torch.int64)
            data = in_short(str(config["data"]), LONGEST_DESCRIPTION)
            predicted = len(classes) if config["predicts"] else 0
            records = content.array_records
            samples, stacked = records["samples"], records["stacked"]
        clients, partition = read_hosts(config, "owner")
        if clients and not classes:
            raise ReplyError("the answer names no classes")
        if any(not key.isprintable() or len(key) > _LONGEST_KEY for key in (*keys, *classes, *fingerprints)):
            raise ReplyError(
                f"the answer has keys of samples, classes or fingerprints that are longer than {_LONGEST_KEY:,} "
                "letters, or that cannot be shown"
            )
        if len(sizes) != len(clients) or len(fingerprints) != len(clients):
            raise ReplyError("the answer does not give a size and a fingerprint for each of its owners")
        if any(later <= earlier for earlier, later in pairwise(keys)):
            raise ReplyError("the sample keys of the answer are not sorted, or one comes twice")
        if clients and not bool(((sizes >= 0) & (sizes <= _LARGEST_EMBEDDING)).all()):
            raise ReplyError(f"the answer gives embedding sizes outside 0 to {_LARGEST_EMBEDDING}")
        width = int(sizes.max()) if clients else 0
        owners, count = len(clients), len(keys)
        known = checked_arrays(
            samples,
            {"split": (count,), "labels": (count,), "present": (owners, count)},
            {"split": "int8", "labels": "int32", "present": "uint8"},
        )
        floats = checked_arrays(
            stacked, {"embeddings": (owners, count, width), "predictions": (owners, count, predicted)}
        )
        split, labels = known["split"].clone(), known["labels"].long()
        if bool(((split < 0) | (split >= len(SAMPLE_SPLITS))).any()):
            raise ReplyError("the answer puts samples into unknown splits")
        if bool(((labels < NO_LABEL) | (labels >= max(len(classes), 1))).any()):
            raise ReplyError(f"the answer has labels outside 0 to {len(classes) - 1}")
        unlabelled = (labels == NO_LABEL) & (split < SAMPLE_SPLITS.index("new"))
        if bool(unlabelled.any()):
            raise ReplyError(
                f"sample '{keys[int(unlabelled.nonzero()[0])]}' is for training or testing without a label"
            )
        return cls(
            clients=clients,
            partition=partition,
            data=data,
            classes=classes,
            keys=keys,
            split=split,
            labels=labels,
            present=known["present"] != 0,
            sizes=sizes,
            embeddings=floats["embeddings"],
            predictions=floats["predictions"],
            fingerprints=fingerprints,
        )

    @property
    def alike(self) -> Hashable:
        """The part of the answers that must be equal for all nodes, the classes and whether there are predictions."""
        return self.classes, self.predictions.shape[2] > 0

    def unusable(self, embedded: bool = True) -> dict[str, str]:
        """Return the owners with invalid numbers, with the reason.

        ``embedded`` : whether embeddings were requested, and owners without any are invalid.
        """
        problems: dict[str, str] = {}
        for name, values in (("embeddings", self.embeddings), ("predictions", self.predictions)):
            if not values.numel():
                continue
            low, high = values.flatten(1).aminmax(dim=1)
            # aminmax propagates NaN and infinity, which lie outside the range.
            fine = (low >= -LARGEST) & (high <= LARGEST)
            for position in (~fine).nonzero().flatten().tolist():
                problems.setdefault(self.clients[position], f"its {name} hold NaN, infinite or huge values")
        if self.predictions.numel():
            strange = ((self.predictions < 0) | (self.predictions > _LARGEST_PROBABILITY)).any(2)
            outside = (strange & self.present).any(1)
            for position in outside.nonzero().flatten().tolist():
                problems.setdefault(self.clients[position], "its predictions are no probabilities")
        if embedded:
            for position in (self.sizes == 0).nonzero().flatten().tolist():
                problems.setdefault(self.clients[position], "it sent no embeddings")
        return problems
