"""Frozen models of owners: their embeddings and predictions, their fingerprints, and their storage (F3, section 2).

Raw data must not leave its owner: an embedding that is the sample itself is refused.

Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedgraph.data import SplitName
from fedgraph.data.owners import SAMPLE_SPLITS, OwnerData, Preparation
from fedgraph.models import TaskSpec
from fedgraph.support.errors import ExperimentError, RunError
from fedgraph.support.files import json_digest, write_atomically
from fedgraph.support.threads import pinned_threads

BATCH = 256
"""Default number of samples that are computed together."""


class Represented(NamedTuple):
    """Embeddings and predictions of samples by one owner's model, or with a leading owner axis by those of several.

    embeddings    : float32 ``[samples, embedding_size]``.
    probabilities : float32 ``[samples, classes]``, the owner's own prediction.
    """

    embeddings: Tensor
    probabilities: Tensor


class LocalModel(Protocol):
    """A frozen model of one owner."""

    def represent(self, inputs: Tensor) -> Represented:
        """Compute embeddings and predictions of inputs ``[samples, *input_shape]``.

        Raises ExperimentError when the model cannot be evaluated on them, or its outputs cannot be used.
        """


def represented(embeddings: Tensor, outputs: Tensor, classes: int, where: str) -> Represented:
    """Check the outputs of a model ``where`` for some samples; ``outputs`` are logits ``[samples, classes]``.

    Raises ExperimentError for outputs of another shape than one number per class, and for numbers that are not finite.
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
    """Check a model with ``probabilities`` as outputs. Raises ExperimentError unless all values are finite."""
    for name, values in (("embeddings", embeddings), ("outputs", probabilities)):
        if not bool(values.isfinite().all()):
            raise ExperimentError(
                f"{where}: its {name} of some samples are NaN or infinite; check its weights, and whether its inputs "
                "are scaled as they were when it was trained"
            )
    return Represented(embeddings.flatten(1).float(), probabilities)


Run = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Inputs ``[batch, *input_shape]`` -> embeddings ``[batch, ...]`` and outputs ``[batch, classes]``."""

_TRIED = 3
"""Number of samples for trying a model: not 1 or 2, the usual sizes of programs with a fixed batch size."""


@dataclass(frozen=True)
class BatchedModel:
    """A model of one owner; see :class:`fedgraph.fusion.owner_models.local_model.LocalModel`.

    run         : one batch through the model. task        : of the model. where       : its name in messages.
    fingerprint : identifies the model. smallest, largest : number of samples that it can take at once; smaller batches
    are padded with zeros. Raises ExperimentError when it cannot be evaluated on a few samples, or its outputs have
    another shape than the task requires.
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
        return represented(embeddings, outputs, self.task.output_shape[0], self.where)

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
                f"{self.where} cannot be evaluated on {len(inputs)} samples of the shape {tuple(inputs.shape[1:])}: "
                f"{reason}; it has to take any number of samples of the shape that this data set has"
            ) from error

    def _checked(self, value: object, samples: int) -> Tensor:
        """Return the outputs as ``[samples, numbers]``."""
        if not isinstance(value, Tensor) or value.shape[:1] != (samples,):
            found = list(value.shape) if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise ExperimentError(
                f"{self.where}: embeddings and outputs for {samples} samples have to be tensors [samples, ...], but "
                f"one of them is {found}"
            )
        return value.flatten(1).float()


_COMPARED = 256
"""Number of samples that are compared."""

_MANY_VALUES = 8
"""A feature with more values than these among the compared samples is found again when it is shifted and scaled, too.
Of fewer values, such as those of a category, hidden units often are a linear function by chance."""


def check_not_raw(inputs: Tensor, embeddings: Tensor, owners: Sequence[str], remedy: str) -> None:
    """Raise ExperimentError where embeddings ``[samples, size]`` contain all of the inputs ``[samples, *input_shape]``.

    Neither their order nor further columns matter. Where two features or more have many values, they also count as
    contained when they are all shifted and scaled, as by a scaler. Features that are constant over the samples carry no
    information about a sample.

    owners : whose samples and model these are. remedy : advice for the message.
    """
    rows, found = inputs[:_COMPARED].flatten(1).float(), embeddings[:_COMPARED].flatten(1).float()
    features = _varying(rows)
    raw = bool(features <= _varying(found)) if features else rows.numel() > 0 and torch.equal(rows, found)
    if raw or _contains_scaled(rows, found):
        raise ExperimentError(
            f"owner {', '.join(owners)}: what the model puts out as the embedding of a sample is the sample itself, "
            f"which must not leave its owner; {remedy}"
        )


def _varying(values: Tensor) -> set[bytes]:
    """Return the columns of ``[samples, size]`` whose values differ."""
    columns = values[:, (values != values[:1]).any(0)] + 0.0  # 0 and -0 are one number
    return {column.tobytes() for column in columns.T.contiguous().cpu().numpy()}


def _contains_scaled(rows: Tensor, found: Tensor) -> bool:
    """Whether every feature of many values is a linear function of one column of ``found``, and there are several."""
    many = [place for place, column in enumerate(rows.T) if len(column.unique()) > _MANY_VALUES]
    if len(many) < 2:
        return False
    correlations = _standardised(rows[:, many]).T @ _standardised(found)
    return bool((correlations.abs().amax(1) > 1 - 1e-7).all())


def _standardised(values: Tensor) -> Tensor:
    """Return columns of mean 0 and length 1, those of constant ones 0."""
    centred = values.double() - values.double().mean(0)
    return centred / centred.norm(dim=0).clamp(min=1e-300)


def fingerprint_of(*known: Any) -> str:
    """Return 32 hexadecimal digits that identify JSON values, and others by their ``str``."""
    return json_digest(known, default=str)[:32]


def fingerprint_of_file(path: Path, embedding_layer: str | None, where: str) -> str:
    """Return the fingerprint of a file, together with the layer whose input is the embedding.

    Raises ExperimentError when the file cannot be read.
    """
    try:
        digest = hashlib.sha256(path.read_bytes())
    except OSError as error:
        raise ExperimentError(f"{where} cannot be read: {error.strerror or error}") from error
    digest.update(f"\0{embedding_layer}".encode())
    return digest.hexdigest()[:32]


def content(data: OwnerData, row: int, split: SplitName) -> str:
    """Return a digest of an owner's samples of a split, so that models of other samples get other fingerprints."""
    own = data.present[row] & (data.split == SAMPLE_SPLITS.index(split))
    inputs, labels = data.inputs[row][own], data.labels[own]
    return hashlib.sha256(inputs.numpy().tobytes() + labels.numpy().tobytes()).hexdigest()


class ModelStore:
    """A folder of models, and of how their inputs are made, by their fingerprints; they never leave the node.

    A model is trained once and then frozen: all requests for the same fingerprint get the same model.

    Parameters
    ----------
    folder : Path
        Folder on the owners' node.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, fingerprint: str) -> Tensor | None:
        """Return the parameters ``[parameters]`` of a model; None if there is none.

        Raises RunError when the file is broken, or ``fingerprint`` is no fingerprint.
        """
        path = self._path(fingerprint)
        try:
            return load_file(path)["parameters"].clone()
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, KeyError) as error:
            raise RunError(f"cannot read the frozen model {path}: {error}; remove it to train it anew") from None

    def save(self, fingerprint: str, parameters: Tensor) -> None:
        """Store the parameters ``[parameters]`` of a model."""
        write_atomically(self._path(fingerprint), save({"parameters": parameters.detach().contiguous()}))

    def preparation(self, fingerprint: str) -> Preparation | None:
        """Return how the inputs of a model were made when it was trained; None where that is not kept.

        Raises RunError when the file is broken, or ``fingerprint`` is no fingerprint.
        """
        path = self._path(fingerprint, "json")
        try:
            return Preparation.of(json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"cannot read how inputs of a frozen model were made, {path}: {error}") from None

    def keep_preparation(self, fingerprint: str, preparation: Preparation) -> None:
        """Store how the inputs of a model are made, unless it is there."""
        path = self._path(fingerprint, "json")
        if not path.is_file():
            write_atomically(path, json.dumps(preparation.table()).encode())

    def _path(self, fingerprint: str, suffix: str = "safetensors") -> Path:
        if not fingerprint.isalnum():
            raise RunError(f"'{fingerprint}' is no fingerprint of a model")
        return self.folder / f"{fingerprint}.{suffix}"
