"""F3 in custom apps: the request for embeddings, and the answer of one owner.

Ma, Hoang, Chen (UAI 2023), algorithm 1. An answer has ids of samples, splits, labels and embeddings, but neither models
nor features.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from fedgraph.data.owners import NO_LABEL, SAMPLE_SPLITS
from fedgraph.messages.array_records import checked_arrays, to_record
from fedgraph.messages.embeddings import EmbedReply
from fedgraph.messages.envelope import unpacking_reply, unpacking_request
from fedgraph.support.errors import ReplyError
from fedgraph.support.untrusted import in_short

log = logging.getLogger("fedgraph")

UNDECIDED = -1
"""Split of samples that the server will divide."""

Kind = Literal["text", "int", "bool"]
"""Original types of ids or labels."""

_RECORD = "embeddings"
_LONGEST = 1_000
_LARGEST_SIZE = 1 << 20
_MOST_CLASSES = 100_000


@dataclass(frozen=True)
class WantedEmbeddings:
    """The samples that a strategy requests.

    Attributes
    ----------
    splits : tuple of str
        Requested splits, of ``SAMPLE_SPLITS``.
    ids : tuple of str or None
        Ids of the samples, of any split; None for all of ``splits``.
    """

    splits: tuple[str, ...] = ("train", "validation", "test")
    ids: tuple[str, ...] | None = None

    def pack(self) -> RecordDict:
        """Convert to Flower records."""
        entries: dict[str, Any] = {"splits": list(self.splits)}
        return RecordDict({_RECORD: ConfigRecord(entries if self.ids is None else entries | {"ids": list(self.ids)})})

    @classmethod
    def unpack(cls, content: RecordDict) -> WantedEmbeddings:
        """Read a request; by default it is for all samples of training and test. Raises ReplyError if it is invalid."""
        with unpacking_request():
            config: Any = content.config_records.get(_RECORD, {})
            splits = tuple(str(split) for split in config.get("splits", cls.splits))
            if not set(splits) <= set(SAMPLE_SPLITS):
                raise ReplyError("the request asks for unknown splits")
            ids = config.get("ids")
            return cls(splits, None if ids is None else tuple(str(each) for each in ids))


@dataclass(frozen=True)
class OwnEmbeddings:
    """The samples of one owner.

    Attributes
    ----------
    keys : tuple of str
        Ids of the samples as text, sorted and unique.
    split : Tensor
        int8 ``[samples]``, index into ``SAMPLE_SPLITS`` or ``UNDECIDED``.
    labels : Tensor
        int64 ``[samples]``, -1 for samples without one.
    classes : tuple of str
        Names of the classes of its labels; empty for an owner without labels.
    embeddings : Tensor
        float32 ``[samples, size]``.
    id_kind, class_kind : {"text", "int", "bool"}
        Original types of ids and labels.
    """

    keys: tuple[str, ...]
    split: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    embeddings: Tensor
    id_kind: Kind = "text"
    class_kind: Kind = "text"

    @classmethod
    def of(cls, ids: Any, values: Any, labels: Any = None, split: str | Sequence[str] | None = None) -> OwnEmbeddings:
        """Join the samples of an owner, in any order.

        Raises ValueError for invalid input.

        Parameters
        ----------
        ids : sequence of str or int
            Ids of the samples.
        values : Tensor or array
            Embeddings ``[samples, size]``.
        labels : sequence of str, int or bool, optional
            Classes; None, NaN or -1 for no label.
        split : str or sequence of str, optional
            The split of each sample, or of all.
        """
        plain = _plain(ids)
        found = torch.as_tensor(values if isinstance(values, Tensor) else np.asarray(values)).detach().cpu()
        if found.ndim != 2 or not found.shape[1] or found.shape[0] != len(plain):
            raise ValueError(
                f"embeddings of {len(plain)} samples are an array [samples, size]; got the shape {list(found.shape)}"
            )
        found = found.float()
        if not bool(found.isfinite().all()):
            raise ValueError("embeddings hold NaN or infinite values: leave samples out that this owner lacks")
        id_kind, keys = _texts(plain, "ids of samples")
        if len(set(keys)) < len(keys):
            raise ValueError(f"the sample '{Counter(keys).most_common(1)[0][0]}' is there twice")
        class_kind, classes, codes = _classes(labels, len(keys))
        order = sorted(range(len(keys)), key=keys.__getitem__)
        return cls(
            tuple(keys[place] for place in order), _splits(split, len(keys))[order], codes[order], classes,
            found[order], id_kind, class_kind,
        )  # fmt: skip

    def wanted(self, request: WantedEmbeddings) -> OwnEmbeddings:
        """Return the requested samples.

        Samples without a split are new if they have no label, and else training samples; those of an owner without
        labels are both, as another owner may have labels.
        """
        if request.ids is not None:
            ids = set(request.ids)
            return self._only(torch.tensor([key in ids for key in self.keys], dtype=torch.bool))
        requested = torch.isin(
            self.split.long(), torch.tensor([SAMPLE_SPLITS.index(split) for split in request.splits])
        )
        undecided, labelled = self.split == UNDECIDED, self.labels != NO_LABEL
        if "new" in request.splits:
            requested |= undecided & ~labelled
        if "train" in request.splits:
            requested |= undecided & (labelled | (not self.classes))
        return self._only(requested)

    def _only(self, asked: Tensor) -> OwnEmbeddings:
        keys = tuple(key for key, kept in zip(self.keys, asked.tolist(), strict=True) if kept)
        return replace(
            self, keys=keys, split=self.split[asked], labels=self.labels[asked], embeddings=self.embeddings[asked]
        )

    def pack(self) -> RecordDict:
        """Convert to Flower records."""
        config = ConfigRecord(
            {
                "keys": list(self.keys),
                "classes": list(self.classes),
                "id-kind": self.id_kind,
                "class-kind": self.class_kind,
                "size": self.embeddings.shape[1],
            }
        )
        known = {"split": self.split.to(torch.int8), "labels": self.labels.to(torch.int32)}
        return RecordDict({"config": config, "samples": to_record({**known, "embeddings": self.embeddings})})

    @classmethod
    def unpack(cls, content: RecordDict) -> OwnEmbeddings:
        """Check and unpack an owner's answer, except for the values of its embeddings.

        Raises ReplyError for an invalid answer.
        """
        with unpacking_reply("the answer to the request for embeddings"):
            config: Any = content.config_records["config"]
            keys = tuple(str(key) for key in config["keys"])
            classes = tuple(str(name) for name in config["classes"])
            kinds = config["id-kind"], config["class-kind"]
            size = int(config["size"])
            samples = content.array_records["samples"]
        if any(not text.isprintable() or len(text) > _LONGEST for text in (*keys, *classes)):
            raise ReplyError(
                f"the answer has ids of samples or classes longer than {_LONGEST:,} letters, or that cannot be shown"
            )
        if any(later <= earlier for earlier, later in pairwise(keys)):
            raise ReplyError("the ids of samples are not sorted, or one comes twice")
        if len(set(classes)) < len(classes) or len(classes) > _MOST_CLASSES:
            raise ReplyError(f"the answer names a class twice, or more than {_MOST_CLASSES:,} classes")
        if any(kind not in get_args(Kind) for kind in kinds) or not 0 < size <= _LARGEST_SIZE:
            raise ReplyError(f"the answer gives embeddings of a size outside 1 to {_LARGEST_SIZE:,}, or no kind of ids")
        if not _are_of(keys, kinds[0]) or not _are_of(classes, kinds[1]):
            raise ReplyError("ids of samples or classes are not of the kind that the answer says")
        arrays = checked_arrays(
            samples,
            {"split": (len(keys),), "labels": (len(keys),), "embeddings": (len(keys), size)},
            {"split": "int8", "labels": "int32"},
        )
        split, labels = arrays["split"].clone(), arrays["labels"].long()
        if bool(((split < UNDECIDED) | (split >= len(SAMPLE_SPLITS))).any()):
            raise ReplyError("the answer puts samples into unknown splits")
        if bool(((labels < NO_LABEL) | (labels >= len(classes))).any()):
            raise ReplyError(f"the answer has labels outside its {len(classes)} classes")
        return cls(keys, split, labels, classes, arrays["embeddings"].clone(), *kinds)

    def as_reply(self, owner: str, classes: Sequence[str]) -> EmbedReply:
        """Return the answer as that of a node of the engine, which hosts one owner; ``classes`` are those of all."""
        place_of = {name: place for place, name in enumerate(classes)}
        places = torch.tensor([place_of[name] for name in self.classes] + [NO_LABEL])
        number, size = self.embeddings.shape
        return EmbedReply(
            clients=(owner,),
            partition=None,
            data=f"{number} samples",
            classes=tuple(classes),
            keys=self.keys,
            split=self.split,
            labels=places[self.labels],
            present=torch.ones(1, number, dtype=torch.bool),
            sizes=torch.tensor([size]),
            embeddings=self.embeddings[None],
            predictions=torch.zeros(1, number, 0),
            fingerprints=("",),
        )


def common_classes(answers: Mapping[str, OwnEmbeddings]) -> tuple[Kind, tuple[str, ...]]:
    """Return the classes of all owners in their order, and their type: text where owners differ."""
    labelled = [answer for answer in answers.values() if answer.classes]
    every = {name for answer in labelled for name in answer.classes}
    kinds = {answer.class_kind for answer in labelled}
    kind: Kind = kinds.pop() if len(kinds) == 1 else "text"
    return kind, tuple(sorted(every, key=int) if kind == "int" else sorted(every))


def restored(texts: Sequence[str], kind: Kind) -> list[Any]:
    """Return ids or classes as they were before they became text."""
    if kind == "int":
        return [int(text) for text in texts]
    return [text == "True" for text in texts] if kind == "bool" else list(texts)


def _are_of(texts: Sequence[str], kind: Kind) -> bool:
    if kind == "bool":
        return set(texts) <= {"True", "False"}
    try:
        return kind == "text" or all(str(int(text)) == text for text in texts)
    except ValueError:
        return False


def _plain(values: Any) -> list[Any]:
    """Return plain Python values, of an array, a tensor, or a list of numbers of NumPy or PyTorch."""
    listed = values.tolist() if hasattr(values, "tolist") else values
    return [value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value for value in listed]


def _texts(values: Sequence[Any], what: str) -> tuple[Kind, list[str]]:
    """Return values as text, and their type."""
    kinds = {type(value) for value in values}
    if kinds <= {int} or kinds <= {bool}:
        return ("bool" if kinds == {bool} else "int"), [str(value) for value in values]
    if kinds <= {float} and all(value.is_integer() for value in values):
        return "int", [str(int(value)) for value in values]
    if wrong := [value for value in values if not isinstance(value, str)]:
        raise ValueError(
            f"{what} are text or whole numbers, all of one type; got {wrong[0]!r} ({type(wrong[0]).__name__})"
        )
    strange = next((value for value in values if not value.isprintable() or not 0 < len(value) <= _LONGEST), None)
    if strange is not None:
        raise ValueError(
            f"{what} are of 1 to {_LONGEST:,} letters that can be shown; got {in_short(repr(strange), 60)}"
        )
    return "text", list(values)


def _classes(labels: Any, number: int) -> tuple[Kind, tuple[str, ...], Tensor]:
    """Return what labels are, the classes, and the labels as positions among these."""
    codes = torch.full((number,), NO_LABEL, dtype=torch.int64)
    if labels is None:
        return "text", (), codes
    plain = _plain(labels)
    if len(plain) != number:
        raise ValueError(f"there are {number} samples and {len(plain)} labels")
    if any(isinstance(value, (list, tuple)) for value in plain):
        raise ValueError("labels are one class for each sample, [samples]; got several for a sample")
    present = [place for place, value in enumerate(plain) if not _is_none(value)]
    if count := sum(_is_number_for_none(value) for value in plain):
        log.warning(
            "%d of %d labels are %d, which means no label: if it is a class, pass classes as text",
            count,
            number,
            NO_LABEL,
        )
    kind, texts = _texts([plain[place] for place in present], "labels")
    classes = sorted(set(texts), key=int) if kind == "int" else sorted(set(texts))
    place_of = {text: place for place, text in enumerate(classes)}
    codes[present] = torch.tensor([place_of[text] for text in texts], dtype=torch.int64)
    return kind, tuple(classes), codes


def _is_none(value: Any) -> bool:
    return value is None or value != value or _is_number_for_none(value)


def _is_number_for_none(value: Any) -> bool:
    return type(value) in (int, float) and value == NO_LABEL


def _splits(split: str | Sequence[str] | None, number: int) -> Tensor:
    if split is None:
        return torch.full((number,), UNDECIDED, dtype=torch.int8)
    each = [split] * number if isinstance(split, str) else [str(name) for name in split]
    if len(each) != number:
        raise ValueError(f"there are {number} samples and {len(each)} splits: give one for each, or one for all")
    unknown = sorted(set(each) - set(SAMPLE_SPLITS))
    if unknown:
        raise ValueError(f"splits are {', '.join(SAMPLE_SPLITS)}; got {', '.join(unknown)}")
    return torch.tensor([SAMPLE_SPLITS.index(name) for name in each], dtype=torch.int8)
