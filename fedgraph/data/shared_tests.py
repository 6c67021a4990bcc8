"""Test sets: own examples, or a test set that all clients share."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import model_validator

from fedgraph.data.base import Shares
from fedgraph.data.own import OwnData
from fedgraph.data.partition import Indices, PartitionSettings
from fedgraph.support.errors import DataError
from fedgraph.support.randomness import generator


class SplitSettings(PartitionSettings):
    """The keys of ``[data]`` that split each client's part of a user's file or of a table of scikit-learn.

    Attributes
    ----------
    shares : fractions of each client's examples for training, validation and test, drawn at random.
    test   : ``own`` = a client is tested on its own examples; ``shared`` = all clients are tested on the same: the
             third share of the examples of each class, held out before the others are divided among clients. Where
             clients have different classes, their own test examples cannot show what they learn from each other.
    """

    shares: Shares = (0.7, 0.1, 0.2)
    test: Literal["own", "shared"] = "own"

    @model_validator(mode="after")
    def _test_examples_from_somewhere(self) -> SplitSettings:
        file = getattr(self, "test_path", None)
        if self.test == "own" and file is not None:
            raise ValueError('test-path needs test = "shared"')
        if self.test == "shared" and file is None and self.shares[2] == 0:
            raise ValueError('test = "shared" needs a third of shares above 0')
        return self

    @property
    def own_shares(self) -> tuple[float, float, float]:
        """Fractions of a client's own examples for training, validation and test."""
        train, validation, test = self.shares
        return self.shares if self.test == "own" else (train / (1 - test), validation / (1 - test), 0.0)


def draw_shared_test(labels: Indices, share: float, seed: int) -> Indices:
    """Draw a test set that all clients share, stratified by class.

    Returns sorted positions of the test examples.

    Parameters
    ----------
    labels : class of each example, ``[examples]``.
    share : of the examples of each class; at least one example, and no class's only example.
    """
    draws = generator(seed, "shared test set")
    chosen = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        order = torch.randperm(len(rows), generator=draws).numpy()
        chosen.append(rows[order[: min(len(rows) - 1, max(1, round(share * len(rows))))]])
    return np.sort(np.concatenate(chosen))


def shared_test_file(test: str, path: str | None, data_dir: Path, own: OwnData | None) -> Path | None:
    """Return the file or folder of the shared test set; None if there is none.

    Raises DataError for a node's own data without such a file, as nodes would have different test sets.
    """
    if path is not None:
        return data_dir / Path(path).expanduser()
    if test == "shared" and own is not None:
        raise DataError(
            'with own data at the nodes, [data] test = "shared" needs test-path, a file in the data folder of every '
            "node"
        )
    return None
