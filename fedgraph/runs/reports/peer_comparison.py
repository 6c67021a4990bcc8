"""Differences between the models of peers, pair by pair: in parameters, and in predictions for the same examples.

Gorbett, Shirazi, Ray: Cross-Silo Federated Learning Across Divergent Domains with Iterative Parameter Alignment (IEEE
Big Data 2023), section IV.C and figure 3.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph.graph import absolute_distances, squared_distances
from fedgraph.support.csv_text import as_csv
from fedgraph.support.errors import FedgraphError, RunError
from fedgraph.support.files import write_atomically

FILE = "peers.npz"
"""Name of the file in a run folder with ``[evaluation] compare-peers``."""

DISTANCES, COUNTS = ("l1", "l2"), ("hamming", "both-right", "both-wrong")
MEASURES = (*DISTANCES, *COUNTS)
"""Measures of every pair, as named in files and tables."""


@dataclass(frozen=True, eq=False)
class PeerComparison:
    """Comparison of all pairs of peers, as symmetric matrices ``[peers, peers]``.

    Attributes
    ----------
    names : tuple of str
        The peers, in the order of rows and columns.
    examples : int
        Number of examples that all peers have predicted.
    l1, l2 : Tensor
        Sum of absolute differences, and Euclidean distance, of the models' parameters; float64.
    hamming : Tensor
        Number of examples for which the two predict different classes, int64.
    both_right : Tensor
        Number of examples that both predict correctly, int64; on the diagonal, those of one peer.
    both_wrong : Tensor
        Number of examples that both predict wrongly, int64.

    Raises
    ------
    FedgraphError
        For fewer than two peers, duplicate names, no examples, and matrices that have another shape or type, are not
        symmetric, finite and nonnegative, or count more than ``examples``.
    """

    names: tuple[str, ...]
    examples: int
    l1: Tensor
    l2: Tensor
    hamming: Tensor
    both_right: Tensor
    both_wrong: Tensor

    def __post_init__(self) -> None:
        count = len(self.names)
        if count < 2 or len(set(self.names)) < count or self.examples < 1:
            raise FedgraphError(
                "a comparison needs at least two peers with distinct names, and at least one example; got "
                f"{list(self.names)} and {self.examples} examples"
            )
        for measure in MEASURES:
            matrix, dtype = self.matrix(measure), torch.float64 if measure in DISTANCES else torch.int64
            if matrix.shape != (count, count) or matrix.dtype != dtype:
                raise FedgraphError(
                    f"{measure} must have shape {[count, count]} and type {dtype}; got {list(matrix.shape)} and "
                    f"{matrix.dtype}"
                )
            if not bool((matrix.isfinite() & (matrix >= 0) & (matrix == matrix.T)).all()):
                raise FedgraphError(f"{measure} must be symmetric, finite and nonnegative")
            if measure in COUNTS and bool((matrix > self.examples).any()):
                raise FedgraphError(f"{measure} must not exceed the {self.examples} examples")

    @classmethod
    def of(cls, names: tuple[str, ...], models: Tensor, predicted: Tensor, targets: Tensor) -> PeerComparison:
        """Compare peers.

        Parameters
        ----------
        names : tuple of str
            The peers.
        models : Tensor
            The trained parameters, ``[peers, parameters]``.
        predicted : Tensor
            Predicted classes, integers ``[peers, examples]``.
        targets : Tensor
            True classes, ``[examples]``.

        Raises
        ------
        FedgraphError
            For inconsistent shapes.
        """
        if len(models) != len(names) or predicted.shape != (len(names), *targets.shape):
            raise FedgraphError(
                f"inconsistent shapes for {len(names)} peers: models {list(models.shape)}, predictions "
                f"{list(predicted.shape)}, targets {list(targets.shape)}"
            )
        # float64 keeps distances of diverged models finite, and counts by matrix products exact.
        parameters, classes = models.double(), predicted.double()
        right = (predicted == targets).double()
        wrong = 1 - right
        return cls(
            names=names,
            examples=len(targets),
            l1=absolute_distances(parameters),
            l2=squared_distances(parameters).sqrt(),
            hamming=torch.cdist(classes, classes, p=0).long(),
            both_right=(right @ right.T).long(),
            both_wrong=(wrong @ wrong.T).long(),
        )

    def matrix(self, measure: str) -> Tensor:
        """Return one of ``MEASURES``, ``[peers, peers]``."""
        matrix: Tensor = getattr(self, measure.replace("-", "_"))
        return matrix

    def of_pairs(self, measure: str) -> Tensor:
        """Return a measure of all pairs, ``[pairs]``, in the order of ``itertools.combinations``."""
        one, other = torch.triu_indices(len(self.names), len(self.names), offset=1)
        return self.matrix(measure)[one, other]

    def mean(self, measure: str) -> float:
        """Return the mean of one of ``MEASURES`` over all pairs."""
        return float(self.of_pairs(measure).double().mean())

    def summary(self) -> dict[str, float | int]:
        """Return the means of all measures, and the number of examples."""
        return {**{measure: self.mean(measure) for measure in MEASURES}, "examples": self.examples}

    def as_csv(self) -> str:
        """Return CSV text with a line per pair."""
        columns = [self.of_pairs(measure).tolist() for measure in MEASURES]
        lines = zip(combinations(self.names, 2), *columns, strict=True)
        return as_csv([("peer", "other", *MEASURES), *((*pair, *numbers) for pair, *numbers in lines)])

    def write(self, path: Path) -> None:
        """Write the matrices as ``.npz``, and the pairs as ``.csv`` under the same name."""
        packed = io.BytesIO()
        content: dict[str, Any] = {"names": np.array(self.names), "examples": np.array(self.examples)}
        content |= {measure: self.matrix(measure).numpy() for measure in MEASURES}
        np.savez_compressed(packed, **content)
        write_atomically(path, packed.getvalue())
        write_atomically(path.with_suffix(".csv"), self.as_csv().encode())

    @classmethod
    def read(cls, path: Path) -> PeerComparison:
        """Read a file of :meth:`write`. Raises RunError when it is missing or invalid."""
        if not path.is_file():
            raise RunError(f"no file {path}: run with [evaluation] compare-peers = true to compare peers")
        try:
            with np.load(path, allow_pickle=False) as content:
                matrices = {measure.replace("-", "_"): torch.from_numpy(content[measure]) for measure in MEASURES}
                return cls(tuple(map(str, content["names"].tolist())), int(content["examples"]), **matrices)
        except Exception as error:  # damaged archives raise almost anything
            raise RunError(f"{path} is not a comparison of peers ({error}): delete the run and run it again") from None
