"""Models of scikit-learn: a transformer, whose output is the embedding, and a classifier of the embedding."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph.fusion.owner_models.local_model import Represented, represented_by
from fedgraph.models import ScikitSettings
from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import check_options, derived, load_object
from fedgraph.support.randomness import derive_seed

_LARGEST_SEED = 2**32


class ScikitModel:
    """A fitted transformer, or None, and a fitted classifier of its outputs; see :func:`fitted`.

    ``positions`` are those of the classifier's classes among all classes, by default their numbers. ``features`` are
    the names by which the transformer selects columns, as one that was fitted to a data frame does.
    """

    def __init__(
        self,
        transformer: Any,
        estimator: Any,
        classes: int,
        where: str,
        positions: Sequence[int] | None = None,
        fingerprint: str = "",
        features: Sequence[str] = (),
    ) -> None:
        self.fingerprint = fingerprint
        self.features = features
        known = estimator.classes_ if positions is None else positions
        self.positions = np.asarray(known, dtype=np.int64)
        self.transformer = transformer
        self.estimator = estimator
        self.classes = classes
        self.where = where

    def represent(self, inputs: Tensor) -> Represented:
        """Compute embeddings and predictions; see :class:`fedgraph.fusion.owner_models.local_model.LocalModel`.

        A class without training samples has probability 0.
        """
        rows = _rows(inputs)
        try:
            with warnings.catch_warnings():
                # The order of columns of a model fitted to a data frame is checked when it is read.
                warnings.filterwarnings("ignore", message="X does not have valid feature names")
                found = rows if self.transformer is None else self.transformer.transform(self._named(rows))
                features = _dense(found)
                known = np.asarray(self.estimator.predict_proba(found if hasattr(found, "columns") else features))
        except Exception as error:
            raise ExperimentError(f"{self.where} cannot be evaluated: {error}", quoted=str(error)) from error
        probabilities = np.zeros((len(rows), self.classes), dtype=np.float32)
        probabilities[:, self.positions] = known
        embeddings = torch.from_numpy(features.astype(np.float32))
        return represented_by(embeddings, torch.from_numpy(probabilities), self.where)

    def _named(self, rows: NDArray[np.float32]) -> Any:
        """Return rows as a data frame, if features have names."""
        if not self.features:
            return rows
        import pandas as pd

        return pd.DataFrame(rows, columns=list(self.features))


def fitted(
    settings: ScikitSettings, inputs: Tensor, labels: Tensor, classes: int, seed: int, owner: str
) -> ScikitModel:
    """Fit the model of the settings to an owner's training samples.

    inputs : ``[samples, *input_shape]``. labels : int64 ``[samples]``, from 0 to ``classes - 1``. Raises
    ExperimentError, which names the owner, when a class cannot be imported, built or fitted, or lacks a method.
    """
    where = f"[model] scikit-learn of client '{owner}'"

    def make(key: str, path: str, options: dict[str, Any], method: str) -> Any:
        kind = load_object(path, f"[model] {key}", _an_estimator)
        check_options(options, f"[model] {key}-options")
        try:
            takes_seed = "random_state" in inspect.signature(kind).parameters
            random = {"random_state": derive_seed(seed, key, owner) % _LARGEST_SEED} if takes_seed else {}
            made = kind(**(random | options))
        except Exception as error:
            raise ExperimentError(
                f"[model] {key}: '{path}' cannot be created with the options {options}: {error}"
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
        raise ExperimentError(
            f"{where} cannot be fitted to its {len(labels)} training samples: {error}", quoted=str(error)
        ) from error
    return ScikitModel(transformer, estimator, classes, where)


def _an_estimator(found: Any) -> str:
    """Demand one of scikit-learn's classes, or one that is derived from their base class."""
    from sklearn.base import BaseEstimator

    return derived(BaseEstimator)(found)


def _rows(inputs: Tensor) -> NDArray[np.float32]:
    rows: NDArray[np.float32] = inputs.flatten(1).float().cpu().numpy()
    return rows


def _dense(features: Any) -> NDArray[Any]:
    """Return the possibly sparse output of a transformer as a dense array ``[samples, features]``."""
    return np.asarray(features.toarray() if hasattr(features, "toarray") else features)
