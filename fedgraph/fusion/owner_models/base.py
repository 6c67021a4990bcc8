"""What a frozen model says of samples: an embedding of each, and its own prediction (F3, section 2).

Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedgraph.support.errors import ExperimentError

BATCH = 256
"""Samples that are computed together where nothing else is said."""


class Represented(NamedTuple):
    """Samples as one owner's model sees them, or with a leading owner axis as those of several owners do.

    embeddings    : float32 ``[samples, embedding_size]``.
    probabilities : float32 ``[samples, classes]``, the owner's own prediction.
    """

    embeddings: Tensor
    probabilities: Tensor


class LocalModel(Protocol):
    """A frozen model of one owner."""

    def represent(self, inputs: Tensor) -> Represented:
        """Inputs ``[samples, *input_shape]`` as the model sees them.

        Raises
        ------
        ExperimentError
            When the model cannot be evaluated on them, or what it puts out is of no use.
        """


def represented(embeddings: Tensor, outputs: Tensor, classes: int, where: str) -> Represented:
    """Check what a model ``where`` put out for some samples; ``outputs`` are logits ``[samples, classes]``.

    Raises
    ------
    ExperimentError
        For outputs of another shape than one number per class, and for numbers that are not finite.
    """
    check_shapes(embeddings, outputs, classes, where)
    return represented_by(embeddings, torch.softmax(outputs.float(), dim=1), where)


def check_shapes(embeddings: Tensor, outputs: Tensor, classes: int, where: str) -> None:
    """Raise ExperimentError unless ``outputs`` has one number per sample and class."""
    if outputs.shape != (len(embeddings), classes):
        raise ExperimentError(
            f"{where} puts out {list(outputs.shape)} for {len(embeddings)} samples of {classes} classes, but "
            f"{[len(embeddings), classes]} is needed: one number, before softmax, for every class"
        )


def represented_by(embeddings: Tensor, probabilities: Tensor, where: str) -> Represented:
    """The same for a model that puts out ``probabilities`` itself. Raises ExperimentError unless all are finite."""
    for name, values in (("embeddings", embeddings), ("outputs", probabilities)):
        if not bool(values.isfinite().all()):
            raise ExperimentError(
                f"{where}: its {name} of some samples are NaN or infinite; check its weights, and whether its inputs "
                "are scaled as they were when it was trained"
            )
    return Represented(embeddings.flatten(1).float(), probabilities)
