"""Owners whose models are computed one by one: those that they brought along, and those of scikit-learn."""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph.data.owners import SAMPLE_SPLITS, OwnerData
from fedgraph.fusion.owner_models.base import (
    LocalModel,
    Represented,
    check_not_raw,
    content,
    fingerprint_of,
    represented_by,
)
from fedgraph.fusion.owner_models.brought import load_local_model
from fedgraph.models import ScikitSettings
from fedgraph.support.errors import ExperimentError, RunError
from fedgraph.support.plugins import load_object
from fedgraph.support.randomness import derive_seed

_LARGEST_SEED = 2**32


class ScikitModel:
    """A fitted transformer, or None, and a fitted classifier of its outputs; see :func:`fitted`."""

    def __init__(self, transformer: Any, estimator: Any, classes: int, where: str) -> None:
        self.transformer = transformer
        self.estimator = estimator
        self.classes = classes
        self.where = where

    def represent(self, inputs: Tensor) -> Represented:
        """Compute embeddings and predictions; see :class:`fedgraph.fusion.owner_models.base.LocalModel`.

        A class that did not occur in training has the probability 0.
        """
        rows = _rows(inputs)
        try:
            features = rows if self.transformer is None else _dense(self.transformer.transform(rows))
            known = np.asarray(self.estimator.predict_proba(features))
        except Exception as error:
            raise ExperimentError(f"{self.where} cannot be evaluated: {error}") from error
        probabilities = np.zeros((len(rows), self.classes), dtype=np.float32)
        probabilities[:, np.asarray(self.estimator.classes_, dtype=np.int64)] = known
        embeddings = torch.from_numpy(features.astype(np.float32))
        return represented_by(embeddings, torch.from_numpy(probabilities), self.where)


def fitted(
    settings: ScikitSettings, inputs: Tensor, labels: Tensor, classes: int, seed: int, owner: str
) -> ScikitModel:
    """Fit the model of the settings to an owner's training samples.

    inputs : ``[samples, *input_shape]``. labels : int64 ``[samples]``, from 0 to ``classes - 1``.

    Raises
    ------
    ExperimentError
        When a class cannot be imported, built or fitted, or lacks a required method; the message names the owner.
    """
    where = f"[model] scikit-learn of client '{owner}'"

    def make(key: str, path: str, options: dict[str, Any], method: str) -> Any:
        kind = load_object(path, f"[model] {key}")
        try:
            takes_seed = "random_state" in inspect.signature(kind).parameters
            random = {"random_state": derive_seed(seed, key, owner) % _LARGEST_SEED} if takes_seed else {}
            made = kind(**(random | options))
        except Exception as error:
            raise ExperimentError(
                f"[model] {key}: '{path}' cannot be built from the options {options}: {error}"
            ) from error
        if not (hasattr(made, "fit") and hasattr(made, method)):
            raise ExperimentError(f"[model] {key}: '{path}' needs the methods fit and {method}; choose another class")
        return made

    estimator = make("estimator", settings.estimator, settings.estimator_options, "predict_proba")
    transformer = None
    if settings.transformer is not None:
        transformer = make("transformer", settings.transformer, settings.transformer_options, "transform")
    rows, targets = _rows(inputs), labels.cpu().numpy()
    try:
        if transformer is not None:
            rows = _dense(transformer.fit(rows, targets).transform(rows))
        estimator.fit(rows, targets)
    except Exception as error:
        raise ExperimentError(f"{where} cannot be fitted to its {len(labels)} training samples: {error}") from error
    return ScikitModel(transformer, estimator, classes, where)


def _rows(inputs: Tensor) -> NDArray[np.float32]:
    rows: NDArray[np.float32] = inputs.flatten(1).float().cpu().numpy()
    return rows


def _dense(features: Any) -> NDArray[Any]:
    """Return the output of a transformer as a dense array ``[samples, features]``; some return sparse matrices."""
    return np.asarray(features.toarray() if hasattr(features, "toarray") else features)


log = logging.getLogger("fedgraph")


@dataclass(frozen=True)
class SingleOwner:
    """One owner of a node; its methods return embeddings and predictions of its samples, and the model's fingerprint.

    row    : its position in ``data``.
    wanted : the fingerprint of the model that it must use; None for any.
    """

    data: OwnerData
    row: int
    wanted: str | None

    @property
    def name(self) -> str:
        """Name of the owner."""
        return self.data.owners[self.row]

    def brought(self, given: str) -> tuple[Represented, str]:
        """Use a model that the owner already has, loaded by ``load_local_model``; the fingerprint is of its files.

        Raises
        ------
        FedgraphError
            When it cannot be read, does not fit the data, is not the wanted one, or returns samples as embeddings.
        """
        model = load_local_model(given, self.data.tasks[self.row])
        self._check_same_model(model.fingerprint, f"the model '{given}' is not")
        found = self._represented(model)
        if self.name in self.data.unscaled:
            log.warning(
                "owner '%s' has no training samples here to scale its features by: its model '%s' sees them as they "
                "are", self.name, given,
            )  # fmt: skip
        self._check_not_raw(found, "bring a model with a hidden layer before its last linear one")
        return found, model.fingerprint

    def fitted(self, settings: ScikitSettings, seed: int) -> tuple[Represented, str]:
        """Use a scikit-learn model, fitted anew each time; the fingerprint is of its settings and training samples.

        Raises
        ------
        FedgraphError
            When it cannot be fitted, is not the wanted one, or returns samples as embeddings.
        """
        training = self.data.present[self.row] & (self.data.split == SAMPLE_SPLITS.index("train"))
        inputs, labels = self.data.inputs[self.row][training], self.data.labels[training]
        fingerprint = fingerprint_of(settings.as_table(), seed, self.name, content(self.data, self.row, "train"))
        self._check_same_model(fingerprint, "its settings or training samples are no longer those of")
        model = fitted(settings, inputs, labels, self.data.tasks[self.row].output_shape[0], seed, self.name)
        found = self._represented(model)
        self._check_not_raw(found, "name a feature transformer for it by [model] transformer")
        return found, fingerprint

    def _represented(self, model: LocalModel) -> Represented:
        """Compute embeddings and predictions of the samples that the owner has."""
        there = self.data.present[self.row]
        found = model.represent(self.data.inputs[self.row][there])
        return Represented(
            *(values.new_zeros(len(there), *values.shape[1:]).index_put_((there,), values) for values in found)
        )

    def _check_not_raw(self, found: Represented, remedy: str) -> None:
        there = self.data.present[self.row]
        check_not_raw(self.data.inputs[self.row][there], found.embeddings[there], [self.name], remedy)

    def _check_same_model(self, fingerprint: str, reason: str) -> None:
        if self.wanted not in (None, fingerprint):
            raise RunError(f"owner '{self.name}': {reason} the model whose embeddings the fusion model was trained on")
