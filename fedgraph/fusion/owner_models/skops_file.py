"""A fitted scikit-learn model in a skops file, which unlike a pickle does not execute code when read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fedgraph.data.columns import as_category
from fedgraph.fusion.owner_models.local_model import fingerprint_of_file
from fedgraph.fusion.owner_models.scikit import ScikitModel
from fedgraph.models import TaskSpec
from fedgraph.support.errors import ExperimentError

_TRIED = 3

_PLAIN = frozenset(
    {
        "numpy.dtype",
        "sklearn.calibration._CalibratedClassifier",
        "sklearn.calibration._SigmoidCalibration",
        "sklearn.compose._column_transformer._RemainderColsList",
        "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
        "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
        "sklearn.utils._bunch.Bunch",
    }
)
"""Types of fitted models that skops does not know, and that hold nothing but parameters and other models.

Trees are not among them: scikit-learn follows the indices in their arrays without checks of bounds.
"""


def load_skops(path: Path, task: TaskSpec, embedding_layer: str | None = None) -> ScikitModel:
    """Load the scikit-learn pipeline in a ``.skops`` file.

    Its classes are the names or the numbers of the data's classes; named features are those of the owner, in the same
    order. Raises ExperimentError when the file is not such a model or contains types that skops does not trust, when
    the extra ``owner-models`` is not installed, and for other classes or features.

    Parameters
    ----------
    embedding_layer : name of the step whose input is the embedding; by default the last one.
    """
    where = f"local model {path}"
    digest = fingerprint_of_file(path, embedding_layer, where)
    try:
        from skops import io
    except ImportError as error:
        raise ExperimentError(
            f"{where}: fitted scikit-learn models need the package skops: pip install 'fedgraph-flower[owner-models]'"
        ) from error
    try:
        unknown = set(io.get_untrusted_types(file=path))
        if untrusted := sorted(unknown - _PLAIN):
            raise ExperimentError(
                f"{where} contains {', '.join(untrusted[:5])}, which skops does not trust: a forged file may execute "
                "code, or crash the process where scikit-learn follows the indices of trees. Save models of trees as "
                "ONNX, and write functions of your own as steps of scikit-learn"
            )
        pipeline = io.load(path, trusted=sorted(unknown))
    except ExperimentError:
        raise
    except Exception as error:
        raise ExperimentError(
            f"{where} cannot be read by skops ({type(error).__name__}); save the fitted scikit-learn pipeline by "
            "skops.io.dump(pipeline, path)"
        ) from error
    transformer, estimator = _parts(pipeline, embedding_layer, where)
    _check_features(pipeline, task, where)
    positions = _positions(estimator, task, where)
    names = tuple(map(str, getattr(pipeline, "feature_names_in_", ()))) if task.features else ()
    model = ScikitModel(transformer, estimator, task.output_shape[0], where, positions, digest, names)
    model.represent(torch.zeros(_TRIED, *task.input_shape))
    return model


def _parts(pipeline: Any, layer: str | None, where: str) -> tuple[Any, Any]:
    """Split a pipeline before the step whose input is the embedding."""
    if not hasattr(pipeline, "predict_proba") or not hasattr(pipeline, "classes_"):
        raise ExperimentError(
            f"{where} is a {type(pipeline).__name__}; expected a fitted classifier with predict_proba"
        )
    names = list(getattr(pipeline, "named_steps", {}))
    if len(names) < 2:
        raise ExperimentError(
            f"{where} is a {type(pipeline).__name__} without a previous step, so its embedding would be the sample: "
            "save a Pipeline of a transformer that does not merely scale, such as PCA, and a classifier"
        )
    if layer is not None and layer not in names[1:]:
        raise ExperimentError(f"{where} has no step '{layer}' after the first; it has {', '.join(names)}")
    at = len(names) - 1 if layer is None else names.index(layer)
    return pipeline[:at], pipeline[at:]


def _check_features(pipeline: Any, task: TaskSpec, where: str) -> None:
    expected, count = getattr(pipeline, "feature_names_in_", None), getattr(pipeline, "n_features_in_", None)
    size = int(torch.Size(task.input_shape).numel())
    if count is not None and count != size:
        raise ExperimentError(f"{where} was fitted to {count} features, but a sample of this owner has {size}")
    if expected is not None and task.features and list(expected) != list(task.features):
        raise ExperimentError(
            f"{where} was fitted to the features {', '.join(map(str, expected))}, but this owner has "
            f"{', '.join(task.features)}: they must be the same, in the same order"
        )


def _positions(estimator: Any, task: TaskSpec, where: str) -> list[int]:
    """Return the position of each of the estimator's classes among those of the data."""
    if isinstance(estimator.classes_, list):
        raise ExperimentError(f"{where} predicts several targets: save a pipeline that is fitted to one")
    classes = task.classes or tuple(map(str, range(task.output_shape[0])))
    found = [as_category(each) for each in estimator.classes_.tolist()]
    if set(found) <= set(classes):
        return [classes.index(each) for each in found]
    if all(each.isdecimal() and int(each) < len(classes) for each in found):
        return [int(each) for each in found]
    raise ExperimentError(
        f"{where} predicts the classes {', '.join(found)}, but the data has {', '.join(classes)}: fit it to these "
        "names, or to their numbers from 0"
    )
