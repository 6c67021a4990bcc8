"""A scikit-learn model of one owner: what a feature transformer makes of a sample is its embedding."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph.fusion.owner_models.base import Represented, represented_by
from fedgraph.models import ScikitSettings
from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import load_object
from fedgraph.support.randomness import derive_seed

_LARGEST_SEED = 2**32


class ScikitModel:
    """A fitted transformer, or None, and a fitted classifier of what it puts out; see :func:`fitted`."""

    def __init__(self, transformer: Any, estimator: Any, classes: int, where: str) -> None:
        self.transformer = transformer
        self.estimator = estimator
        self.classes = classes
        self.where = where

    def represent(self, inputs: Tensor) -> Represented:
        """Inputs ``[samples, *input_shape]``; see :class:`fedgraph.fusion.owner_models.base.LocalModel`.

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
    """Fit the model that the settings describe to an owner's training samples.

    inputs : ``[samples, *input_shape]``. labels : int64 ``[samples]``, from 0 to ``classes - 1``.

    Raises
    ------
    ExperimentError
        When a class cannot be imported, built or fitted, or lacks a method that is needed, with the owner's name.
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
    """What a transformer put out as ``[samples, features]``; some put out sparse matrices."""
    return np.asarray(features.toarray() if hasattr(features, "toarray") else features)
