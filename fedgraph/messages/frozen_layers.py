"""Frozen layers of a model, what both sides agree on: they are sent to a node once, and named in every request.

A request has their fingerprint in its record ``config``. A node that does not have them, because it is new, or has lost
its state folder, answers that it lacks them, and is sent the same request with them in a record of their own.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedgraph.messages import from_record, to_record
from fedgraph.models import Layout
from fedgraph.support.errors import ReplyError

RECORD = "frozen"
"""Name of the record with the layers, of its one array, and of the fingerprint in ``config``."""

_LACKING = "lacks-frozen"
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FrozenLayers:
    """The frozen layers of the model that all clients of a run have.

    Attributes
    ----------
    layout : Layout
        Their names and shapes.
    row : Tensor
        Their values, float32 ``[numbers]``.
    """

    layout: Layout
    row: Tensor

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the values."""
        return fingerprint_of(self.row)

    @cached_property
    def record(self) -> ArrayRecord:
        """The values as a record of a request."""
        return to_record({RECORD: self.row})

    def add_fingerprint(self, content: RecordDict) -> RecordDict:
        """Add the fingerprint to a request in place, and return it."""
        content.config_records["config"][RECORD] = self.fingerprint
        return content

    def add_layers(self, content: RecordDict) -> RecordDict:
        """Return a copy of the request with the layers themselves."""
        return RecordDict({**content, RECORD: self.record})


def fingerprint_of(row: Tensor) -> str:
    """Compute the SHA-256 of float32 numbers, as 64 hexadecimal digits."""
    return hashlib.sha256(row.detach().cpu().contiguous().numpy().astype("<f4", copy=False).tobytes()).hexdigest()


def named(content: RecordDict) -> str:
    """Return the fingerprint of the frozen layers that a request names; empty where it names none.

    Raises ReplyError when it is no fingerprint.
    """
    config: Any = content.config_records.get("config", {})
    found = config.get(RECORD, "")
    if found and not (isinstance(found, str) and _FINGERPRINT.fullmatch(found)):
        raise ReplyError("the request names frozen layers by something that is no fingerprint")
    return str(found)


def given(content: RecordDict, fingerprint: str) -> Tensor | None:
    """Return the frozen layers ``[numbers]`` that a request contains; None where it contains none.

    Raises ReplyError when they are not those of the fingerprint.
    """
    if RECORD not in content.array_records:
        return None
    row = from_record(content.array_records[RECORD]).get(RECORD, torch.zeros(0))
    if row.dtype != torch.float32 or row.dim() != 1 or fingerprint_of(row) != fingerprint:
        raise ReplyError("the request has other frozen layers than it names")
    return row.clone()


def lacking_reply() -> RecordDict:
    """Return the answer of a node that does not have the layers a request names."""
    return RecordDict({"config": ConfigRecord({_LACKING: True})})


def is_lacking(content: RecordDict) -> bool:
    """Return whether an answer says that the node does not have the layers."""
    config: Any = content.config_records.get("config", {})
    return config.get(_LACKING) is True
