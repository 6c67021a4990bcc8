"""Frozen models of owners: embeddings and predictions, fingerprints, and storage (F3, section 2).

Raw data must not leave its owner: an embedding equal to the sample is refused.

Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedgraph.data import SplitName
from fedgraph.data.owners import SAMPLE_SPLITS, OwnerData, Preparation
from fedgraph.models import TaskSpec
from fedgraph.support.errors import ExperimentError, RunError
from fedgraph.support.files import json_digest, read_tensors, write_atomically, write_tensors
from fedgraph.support.threads import pinned_threads

BATCH = 256
"""Default batch size."""


class Represented(NamedTuple):
    """Embeddings and predictions of samples by one owner's model; by several models with a leading owner axis.

    embeddings    : float32 ``[samples, embedding_size]``.
    probabilities : float32 ``[samples, classes]``, the owner's own prediction.
    """

    embeddings: Tensor
    probabilities: Tensor


class LocalModel(Protocol):
    """A frozen model of one owner."""

    def represent(self, inputs: Tensor) -> Represented:
        """Compute embeddings and predictions of inputs ``[samples, *input_shape]``.

        Raises ExperimentError when the model cannot be evaluated on them, or its outputs are invalid.
        """


def represented(embeddings: Tensor, outputs: Tensor, classes: int, where: str) -> Represented:
    """Check the outputs of a model for some samples; ``outputs`` are logits ``[samples, classes]``.

    Raises ExperimentError, which starts with ``where``, for outputs of another shape and for non-finite numbers.
    """
    check_shapes(embeddings, outputs, classes, where)
    return represented_by(embeddings, torch.softmax(outputs.float(), dim=1), where)


def check_shapes(embeddings: Tensor, outputs: Tensor, classes: int, where: str) -> None:
    """Raise ExperimentError unless ``outputs`` has one number per sample and class."""
    if outputs.shape != (len(embeddings), classes):
        raise ExperimentError(
            f"{where} returns {list(outputs.shape)} for {len(embeddings)} samples of {classes} classes; expected "
            f"{[len(embeddings), classes]}, one logit per class"
        )


def represented_by(embeddings: Tensor, probabilities: Tensor, where: str) -> Represented:
    """Check the outputs of a model with probabilities. Raises ExperimentError for non-finite values."""
    for name, values in (("embeddings", embeddings), ("outputs", probabilities)):
        if not bool(values.isfinite().all()):
            raise ExperimentError(
                f"{where}: {name} of some samples are NaN or infinite; check its weights, and that inputs are scaled "
                "as in its training"
            )
    return Represented(embeddings.flatten(1).float(), probabilities)


Run = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Inputs ``[batch, *input_shape]`` -> embeddings ``[batch, ...]`` and outputs ``[batch, classes]``."""

_TRIED = 3
"""Number of samples of a trial evaluation; not 1 or 2, the usual sizes of programs with a fixed batch size."""

_DRAWN = 64
"""Number of random samples by which outputs are recognised as probabilities."""

_ROUNDING, _SMALLEST = 1e-3, 1e-12
"""Largest error of a sum of probabilities, and the smallest one whose logarithm is taken."""


@dataclass(frozen=True)
class BatchedModel:
    """A model of one owner; see :class:`fedgraph.fusion.owner_models.local_model.LocalModel`.

    Its outputs are logits, or probabilities, which are recognised when it is loaded.

    run : evaluates one batch. task : the learning task. where : name of the model in messages. fingerprint : identifies
    the model. smallest, largest : limits of the batch size; smaller batches are padded with zeros. Raises
    ExperimentError when it cannot be evaluated on a few samples, or its outputs do not have the shape of the task.
    """

    run: Run
    task: TaskSpec
    where: str
    fingerprint: str
    smallest: int = 1
    largest: int = BATCH

    def __post_init__(self) -> None:
        embeddings, outputs = self._evaluate(torch.zeros(_TRIED, *self.task.input_shape))
        check_shapes(embeddings, outputs, self.task.output_shape[0], self.where)

    def represent(self, inputs: Tensor) -> Represented:
        """See :class:`fedgraph.fusion.owner_models.local_model.LocalModel`."""
        embeddings, outputs = self._evaluate(inputs)
        if self._gives_probabilities:
            outputs = outputs.clamp(min=_SMALLEST).log()
        return represented(embeddings, outputs, self.task.output_shape[0], self.where)

    @cached_property
    def _gives_probabilities(self) -> bool:
        """Whether the outputs are probabilities, by their sums over classes.

        Random samples are tried, since logits of single samples may add up to 1 by chance.
        """
        drawn = torch.randn(_DRAWN, *self.task.input_shape, generator=torch.Generator().manual_seed(0))
        try:
            _, outputs = self._evaluate(drawn)
        except ExperimentError:  # such as a model of integers
            _, outputs = self._evaluate(torch.zeros_like(drawn))
        return bool((outputs >= 0).all()) and bool(((outputs.sum(1) - 1).abs() < _ROUNDING).all())

    def _evaluate(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        parts = []
        with torch.no_grad(), pinned_threads(1):
            for some in inputs.float().split(max(self.smallest, min(BATCH, self.largest))):
                filled = torch.cat([some, some.new_zeros(max(0, self.smallest - len(some)), *some.shape[1:])])
                parts.append([self._checked(value, len(filled))[: len(some)] for value in self._run(filled)])
        embeddings, outputs = (torch.cat(part) for part in zip(*parts, strict=True))
        return embeddings, outputs

    def _run(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        try:
            return self.run(inputs)
        except ExperimentError:
            raise
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ExperimentError(
                f"{self.where} cannot be evaluated on {len(inputs)} samples of shape {tuple(inputs.shape[1:])}: "
                f"{reason}; it must take any number of samples of the data set's shape, in float32"
            ) from error

    def _checked(self, value: object, samples: int) -> Tensor:
        """Return the outputs as ``[samples, numbers]``."""
        if not isinstance(value, Tensor) or value.shape[:1] != (samples,):
            found = list(value.shape) if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise ExperimentError(
                f"{self.where}: embeddings and outputs of {samples} samples must be tensors [samples, ...]; got {found}"
            )
        return value.flatten(1).float()


_COMPARED = 256
"""Number of compared samples."""

_MANY_VALUES = 8
"""Features with more distinct values than this are also recognised after shifting and scaling. With fewer values, such
as those of a category, hidden units are often a linear function by chance."""


def check_not_raw(inputs: Tensor, embeddings: Tensor, owners: Sequence[str], remedy: str) -> None:
    """Raise ExperimentError where embeddings ``[samples, size]`` contain all of the inputs ``[samples, *input_shape]``.

    Order and further columns are ignored. Two or more features with many values also count as contained when all of
    them are shifted and scaled. Features that are constant over the samples are ignored.
    owners : owners of the samples and the model. remedy : advice for the message.
    """
    rows, found = inputs[:_COMPARED].flatten(1).float(), embeddings[:_COMPARED].flatten(1).float()
    features = _varying(rows)
    raw = bool(features <= _varying(found)) if features else rows.numel() > 0 and torch.equal(rows, found)
    if raw or _contains_scaled(rows, found):
        raise ExperimentError(
            f"owner {', '.join(owners)}: the embedding that the model returns is the sample itself, which must not "
            f"leave its owner; {remedy}"
        )


def _varying(values: Tensor) -> set[bytes]:
    """Return the columns of ``[samples, size]`` whose values differ."""
    columns = values[:, (values != values[:1]).any(0)] + 0.0  # 0 and -0 are one number
    return {column.tobytes() for column in columns.T.contiguous().cpu().numpy()}


def _contains_scaled(rows: Tensor, found: Tensor) -> bool:
    """Whether there are several features of many values, each a linear function of one column of ``found``."""
    many = [place for place, column in enumerate(rows.T) if len(column.unique()) > _MANY_VALUES]
    if len(many) < 2:
        return False
    correlations = _standardised(rows[:, many]).T @ _standardised(found)
    return bool((correlations.abs().amax(1) > 1 - 1e-7).all())


def _standardised(values: Tensor) -> Tensor:
    """Return columns with mean 0 and norm 1; constant columns become 0."""
    centred = values.double() - values.double().mean(0)
    return centred / centred.norm(dim=0).clamp(min=1e-300)


def fingerprint_of(*known: Any) -> str:
    """Return a digest of 32 hexadecimal digits of JSON values, or of the ``str`` of other values."""
    return json_digest(known, default=str)[:32]


def fingerprint_of_file(path: Path, embedding_layer: str | None, where: str) -> str:
    """Return the fingerprint of a file and of the layer whose input is the embedding.

    Raises ExperimentError when the file cannot be read.
    """
    try:
        digest = hashlib.sha256(path.read_bytes())
    except OSError as error:
        raise ExperimentError(f"{where} cannot be read: {error.strerror or error}") from error
    digest.update(f"\0{embedding_layer}".encode())
    return digest.hexdigest()[:32]


def content(data: OwnerData, row: int, split: SplitName) -> str:
    """Return a digest of an owner's samples of a split, part of a model's fingerprint."""
    own = data.present[row] & (data.split == SAMPLE_SPLITS.index(split))
    inputs, labels = data.inputs[row][own], data.labels[own]
    return hashlib.sha256(inputs.numpy().tobytes() + labels.numpy().tobytes()).hexdigest()


class ModelStore:
    """A folder of models and the preparation of their inputs, by fingerprint; they never leave the node.

    A model is trained once and then frozen.

    Parameters
    ----------
    folder : Path
        Folder on the owners' node.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, fingerprint: str) -> Tensor | None:
        """Return the parameters ``[parameters]`` of a model, or None if it is not stored.

        Raises RunError when the file is broken or ``fingerprint`` is invalid.
        """
        path = self._path(fingerprint)
        try:
            return read_tensors(path)[0]["parameters"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError) as error:
            raise RunError(f"cannot read the frozen model {path}: {error}; remove it to train it again") from None

    def save(self, fingerprint: str, parameters: Tensor) -> None:
        """Store the parameters ``[parameters]`` of a model."""
        write_tensors(self._path(fingerprint), {"parameters": parameters})

    def preparation(self, fingerprint: str) -> Preparation | None:
        """Return the preparation of the model's inputs at training, or None if it is not stored.

        Raises RunError when the file is broken or ``fingerprint`` is invalid.
        """
        path = self._path(fingerprint, "json")
        try:
            return Preparation.of(json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"cannot read the input preparation of a frozen model, {path}: {error}") from None

    def keep_preparation(self, fingerprint: str, preparation: Preparation) -> None:
        """Store the preparation of the model's inputs, unless it is stored already."""
        path = self._path(fingerprint, "json")
        if not path.is_file():
            write_atomically(path, json.dumps(preparation.table()).encode(), private=True)

    def _path(self, fingerprint: str, suffix: str = "safetensors") -> Path:
        if not fingerprint.isalnum():
            raise RunError(f"'{fingerprint}' is not the fingerprint of a model")
        return self.folder / f"{fingerprint}.{suffix}"
