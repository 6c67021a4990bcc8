"""What tells one frozen model from others: a digest of all that it was made from."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from fedgraph.data import SplitName
from fedgraph.data.owners import SAMPLE_SPLITS, OwnerData
from fedgraph.support.errors import ExperimentError
from fedgraph.support.files import json_digest


def fingerprint_of(*known: Any) -> str:
    """32 hexadecimal digits that stand for JSON values, and for others as they are written."""
    return json_digest(known, default=str)[:32]


def fingerprint_of_file(path: Path, embedding_layer: str | None, where: str) -> str:
    """The same for a file, and the layer whose input is the embedding.

    Raises
    ------
    ExperimentError
        When the file cannot be read.
    """
    try:
        digest = hashlib.sha256(path.read_bytes())
    except OSError as error:
        raise ExperimentError(f"{where} cannot be read: {error.strerror or error}") from error
    digest.update(f"\0{embedding_layer}".encode())
    return digest.hexdigest()[:32]


def content(data: OwnerData, row: int, split: SplitName) -> str:
    """A digest of an owner's samples of a split, so that no model is taken for one of other samples."""
    own = data.present[row] & (data.split == SAMPLE_SPLITS.index(split))
    inputs, labels = data.inputs[row][own], data.labels[own]
    return hashlib.sha256(inputs.numpy().tobytes() + labels.numpy().tobytes()).hexdigest()
