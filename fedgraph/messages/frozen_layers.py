"""Protocol of frozen layers of a model, which are sent to a node once, and named in every request.

A request has their fingerprint in its record ``config``. A node that does not have them, because it is new or has lost
its state folder, answers so, and receives the request again with a record of the layers.
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
    """The frozen layers of the common model of a run.

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
    """Return the fingerprint of the frozen layers of a request, or an empty string.

    Raises ReplyError if it is invalid.
    """
    config: Any = content.config_records.get("config", {})
    found = config.get(RECORD, "")
    if found and not (isinstance(found, str) and _FINGERPRINT.fullmatch(found)):
        raise ReplyError("invalid fingerprint of frozen layers in the request")
    return str(found)


def given(content: RecordDict, fingerprint: str) -> Tensor | None:
    """Return the frozen layers ``[numbers]`` in a request, or None. Raises ReplyError if the fingerprint differs."""
    if RECORD not in content.array_records:
        return None
    row = from_record(content.array_records[RECORD]).get(RECORD, torch.zeros(0))
    if row.dtype != torch.float32 or row.dim() != 1 or fingerprint_of(row) != fingerprint:
        raise ReplyError("the frozen layers of the request do not match their fingerprint")
    return row.clone()


def lacking_reply() -> RecordDict:
    """Return the answer of a node that lacks the layers of a request."""
    return RecordDict({"config": ConfigRecord({_LACKING: True})})


def is_lacking(content: RecordDict) -> bool:
    """Return whether an answer says that the node lacks the layers."""
    config: Any = content.config_records.get("config", {})
    return config.get(_LACKING) is True
