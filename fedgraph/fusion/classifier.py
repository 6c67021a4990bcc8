"""F3 without a federation: a scikit-learn classifier on the embeddings of several owners.

Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from fedgraph.data.owners import SAMPLE_SPLITS, held_out
from fedgraph.fusion.build import build_network
from fedgraph.fusion.fusion_settings import FusionSettings
from fedgraph.fusion.joined_samples import check_shared
from fedgraph.fusion.model_file import FittedFusion, class_dtype, fit_joined
from fedgraph.fusion.owner_samples import OwnerSamples, from_columns, from_mapping, owner_columns
from fedgraph.fusion.prediction import Prediction
from fedgraph.fusion.scores import decided
from fedgraph.fusion.training import FusionData, FusionEpoch, FusionFit
from fedgraph.graph import ClientGraph
from fedgraph.support.errors import DataError, ExperimentError, GraphError, quoted
from fedgraph.support.randomness import seed_of
from fedgraph.support.settings import from_keywords

_OWN = ("owners", "validation_fraction", "random_state")
"""Parameters that are not settings of the fusion."""

_TRAIN, _VALIDATION = SAMPLE_SPLITS.index("train"), SAMPLE_SPLITS.index("validation")


@dataclass(kw_only=True, eq=False, repr=False)
class FusionClassifier(ClassifierMixin, BaseEstimator):
    """Fusion of several owners' embeddings of the same samples, with a learned consensus graph over the owners.

    Parameters are those of ``[f3]`` in an experiment, with the same defaults (see ``fedgraph keys f3``), and the
    additional ones below. On a CPU, the same embeddings and seed give bit for bit the network of a run of F3.

    X maps owners to their embeddings ``[samples, size]``, whose sizes may differ:

    - NumPy arrays, tensors or lists, whose rows are the same samples; or
    - data frames of pandas, whose index has the ids of samples, or pairs ``(ids, embeddings)``: samples are joined by
      id, an owner may lack some, and y is a Series with ids as index, a mapping of ids to labels, or a pair ``(ids,
      labels)``. Predictions are then a Series or a data frame with the ids as index.

    An owner's data frame must have the same columns as in ``fit``, in the same order.

    A row of NaN only marks a sample that the owner lacks. For tools of scikit-learn X may be one array or data frame
    ``[samples, features]``, whose columns are assigned by ``owners``; its index is ignored.

    Parameters
    ----------
    owners : mapping or int, optional
        Columns of each owner when X is a single array: by owner a slice, a list of positions or of names, or a mask;
        or a number of equal parts.
    graph : str or ClientGraph, default "icdf"
        As in ``[f3]``; a ClientGraph over the owners corresponds to ``graph = "given"``.
    members, reference_options : mapping, optional
        As in ``[f3]``; None for its default.
    validation_fraction : float, default 0.1
        Share of the samples of ``fit``, stratified by class, for choosing the best epoch and learning rate; ignored
        if ``fit`` is given validation samples.
    random_state : int, RandomState or None
        Seed of the initial weights, the order of samples, the graphs and the validation samples; an int is the seed of
        an experiment.

    Attributes
    ----------
    classes_ : ndarray
        The classes, sorted.
    owners_ : tuple of str
        The owners, sorted by name.
    graph_ : ClientGraph or None
        The graph over the owners: learned edge probabilities, nearest neighbours, or the given graph; None for a
        fusion without a graph and for an ensemble.
    history_ : DataFrame
        Losses by ``learning_rate`` and ``epoch``, grouped by ``owner_dropout``.
    n_iter_ : int
        The chosen epoch.
    validation_loss_ : float
        Validation loss at that epoch.
    fusion_ : FittedFusion
        The model, as written by a run.

    Examples
    --------
    Two owners with different features of the same flowers; the second lacks some flowers:

    >>> from sklearn.datasets import load_iris
    >>> from fedgraph import FusionClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> petals = X[:, 2:].copy()
    >>> petals[::10] = float("nan")
    >>> fusion = FusionClassifier(scaling="owner", epochs=100, learning_rates=(0.01,), random_state=0)
    >>> fusion.fit({"sepals": X[:, :2], "petals": petals}, y).score({"sepals": X[:, :2], "petals": petals}, y) > 0.9
    True
    >>> fusion.graph_
    ClientGraph(2 clients, 1 edges, undirected)
    """

    owners: Mapping[str, Any] | int | None = None
    fusion: str = "graph"
    members: Mapping[str, int] | None = None
    member_weights: str = "equal"
    scaling: str = "none"
    alignment: str = "soft"
    alignment_trained: bool = True
    alignment_affine: bool = False
    sinkhorn: str = "square"
    sinkhorn_entropy: float = 0.0
    aligned_size: int | None = None
    graph: str | ClientGraph = "icdf"
    reference: str = "Normal"
    reference_options: Mapping[str, float] | None = None
    temperature: float = 0.1
    draw_per: str = "sample"
    draws: int = 10
    average: str = "probabilities"
    neighbours: int = 10
    absent: str = "left-out"
    hidden: int = 8
    head: Sequence[int] = ()
    concatenation_hidden: Sequence[int] = (64,)
    epochs: int = 500
    patience: int = 50
    monitor: str = "loss"
    calibrated: bool = False
    learning_rates: Sequence[float] = (0.01, 0.001)
    batch_size: int = 100
    owner_dropout: float | Sequence[float] = 0.0
    weight_decay: float = 0.0
    workers: int | None = None
    compile: bool = True
    device: str = "auto"
    validation_fraction: float = 0.1
    random_state: int | np.random.RandomState | None = None

    def fit(self, X: Any, y: Any, validation: tuple[Any, Any] | None = None) -> FusionClassifier:
        """Train the fusion model.

        Returns self. Raises TypeError or ValueError for invalid parameters or samples, such as when no two owners have
        the same id, and RunError when training diverges at every learning rate. Warns about an owner that shares no
        sample with another.

        Parameters
        ----------
        X : mapping or array
            Embeddings by owner, or one array; see the class.
        y : array or labels by id
            The labels.
        validation : pair, optional
            ``(X, y)`` of samples for choosing the best epoch and learning rate; held out of X by default.
        """
        _ = self.settings  # checked before the samples
        samples = self._samples(X, fitting=True)
        _warn_unshared(samples)
        labels = _checked_labels(samples, y)
        classes = np.unique(labels)
        if len(classes) < 2:
            raise ValueError(f"y contains only one class, {str(classes[0])!r}: a classifier needs at least two")
        seed, order = seed_of(self.random_state), samples.order
        embeddings, present = samples.embeddings[order], samples.present[order]
        codes = _codes(labels, classes)[order]
        if validation is None:
            split = held_out(codes, self.validation_fraction, seed)
        else:
            other = self._samples(validation[0], fitting=False).over(samples.owners, samples.sizes, samples.columns)
            rows = other.order
            validation_codes = _codes(_checked_labels(other, validation[1]), classes)[rows]
            split = torch.tensor([_TRAIN] * len(codes) + [_VALIDATION] * len(validation_codes))
            embeddings = torch.cat([embeddings, other.embeddings[rows]])
            present, codes = torch.cat([present, other.present[rows]]), torch.cat([codes, validation_codes])
        data = FusionData(embeddings, present, codes, split, samples.sizes, len(classes))
        return self.fit_joined(data, samples.owners, classes, seed, columns=samples.columns)

    def predict_proba(self, X: Any) -> Any:
        """Predict the probability of each class, averaged over draws of the graph.

        Computed in double precision, so that those of a sample are the same among any others. Returns float32
        ``[samples, classes]``; a data frame where owners give ids of samples.

        Parameters
        ----------
        X : mapping or array
            Embeddings by owner; an owner may be left out. Or one array.
        """
        check_is_fitted(self)
        samples = self._samples(X, fitting=False)
        found = self._predicted(samples).probabilities.numpy()
        return found if samples.ids is None else _frame(found, samples.ids, self.classes_)

    def predict(self, X: Any) -> Any:
        """Predict the most probable class.

        Returns ``[samples]``; a Series where owners give ids of samples.

        Parameters
        ----------
        X : mapping or array
            As :meth:`predict_proba`.
        """
        check_is_fitted(self)
        samples = self._samples(X, fitting=False)
        found = self._decided(samples)
        if samples.ids is None:
            return found
        import pandas as pd

        return pd.Series(found, pd.Index(samples.ids))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy of predictions of X; the labels y take any form that ``fit`` accepts.

        Weights of samples go by id, as labels do, or are in the order of y.
        """
        check_is_fitted(self)
        samples = self._samples(X, fitting=False)
        weights = samples.weights(sample_weight, y)
        return float(accuracy_score(samples.labels(y), self._decided(samples), sample_weight=weights))

    def save(self, path: str | Path) -> None:
        """Write the model atomically, in the format of a run's ``fusion.safetensors``, with classes and columns."""
        check_is_fitted(self)
        self.fusion_.write(Path(path))

    @classmethod
    def load(cls, path: str | Path) -> FusionClassifier:
        """Read a model written by :meth:`save` or by a run of F3.

        Classes keep their type (int, float, bool or str); those of a run are str. Raises RunError when the file is
        missing, broken or not such a model.
        """
        fusion = FittedFusion.read(Path(path))
        chosen = {name: getattr(fusion.settings, name) for name in FusionSettings.model_fields}
        made = cls(**chosen, random_state=fusion.seed)
        made._take(fusion, fusion.typed_classes)
        return made

    # ---- also used by a federation ---------------------------------------------------------------------------------

    @property
    def settings(self) -> FusionSettings:
        """The parameters as settings of F3. Raises ValueError for invalid ones."""
        keywords = {name: value for name, value in self.get_params(deep=False).items() if name not in _OWN}
        if isinstance(self.graph, ClientGraph):
            keywords["graph"] = "given"
        chosen = {name: value for name, value in keywords.items() if value is not None}
        return from_keywords(FusionSettings, chosen, type(self).__name__)

    def fit_joined(
        self,
        data: FusionData,
        owners: Sequence[str],
        classes: NDArray[Any],
        seed: int,
        on_epoch: Callable[[FusionEpoch], None] | None = None,
        columns: Mapping[str, Sequence[str]] | None = None,
    ) -> FusionClassifier:
        """Train on joined and split samples, as on the server of a federation.

        Returns self.

        Parameters
        ----------
        data : FusionData
            Samples, sorted by the text of their ids; a given graph is taken from the parameters.
        owners : sequence of str
            The owners, sorted.
        classes : array
            The classes, in the order of the labels.
        seed : int
            Seed of the training.
        on_epoch : callable, optional
            Called after every epoch.
        columns : mapping of str to sequence of str, optional
            Names of the columns of owners whose embeddings were data frames.
        """
        settings, data = self.settings, replace(data, given_graph=self._given(owners))
        try:
            build_network(settings, data.sizes, data.classes, data.given_graph, seed)
            fusion, found = fit_joined(
                settings, data, owners, tuple(map(str, classes)), seed, on_epoch=on_epoch,
                columns=columns or {}, class_type=class_dtype(classes),
            )  # fmt: skip
        except (DataError, ExperimentError) as error:
            raise ValueError(str(error)) from error
        self._take(fusion, classes)
        self._take_history(found)
        return self

    def _take(self, fusion: FittedFusion, classes: NDArray[Any]) -> None:
        self.fusion_, self.classes_ = fusion, classes
        self.owners_, self.graph_ = fusion.owners, fusion.graph

    def _take_history(self, found: FusionFit) -> None:
        import pandas as pd

        self.history_ = pd.DataFrame([vars(epoch) for epoch in found.history])
        self.n_iter_, self.validation_loss_ = found.epoch, found.validation_loss

    # ---- parameters and inputs -------------------------------------------------------------------------------------

    def _given(self, owners: Sequence[str]) -> Tensor | None:
        """Return the given graph over the owners as weights ``[owners, owners]``."""
        if not isinstance(self.graph, ClientGraph):
            return None
        try:
            return self.graph.subgraph(owners).dense().float()
        except GraphError as error:
            raise ValueError(str(error)) from error

    def _samples(self, X: Any, fitting: bool) -> OwnerSamples:
        """Read X in any accepted form."""
        # Some sparse matrices of SciPy are dicts.
        if isinstance(X, Mapping) and not hasattr(X, "toarray"):
            samples = from_mapping(X)
            if fitting:
                for name in ("n_features_in_", "feature_names_in_"):
                    self.__dict__.pop(name, None)
        else:
            if not fitting and self.owners is None:
                raise ValueError(
                    "the model was fitted on embeddings by owner, and X is one array: give a mapping by owner"
                )
            values = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=fitting)
            names = getattr(self, "feature_names_in_", None)
            samples = from_columns(values, owner_columns(self.owners, values.shape[1], names), names)
        if not len(samples):
            raise ValueError("found 0 samples while a minimum of 1 is required")
        return samples

    def _predicted(self, samples: OwnerSamples) -> Prediction:
        samples = samples.over(self.owners_, self.fusion_.sizes, self.fusion_.columns)
        # In single precision the last digit depends on the other samples: in which order they come, and how many.
        precise = replace(self.fusion_, network=deepcopy(self.fusion_.network).double())
        found = precise.predict(samples.embeddings.double(), samples.present)
        return Prediction(found.probabilities.float(), found.deviation.float())

    def _decided(self, samples: OwnerSamples) -> NDArray[Any]:
        found: NDArray[Any] = self.classes_[decided(self._predicted(samples).probabilities).numpy()]
        return found


def _warn_unshared(samples: OwnerSamples) -> None:
    """Warn about owners that share no sample. Raises ValueError if no two owners do."""
    if samples.ids is None:
        return
    try:
        notes = check_shared(samples.owners, samples.present, samples.ids)
    except DataError as error:
        raise ValueError(str(error)) from None
    for note in notes:
        warnings.warn(note, stacklevel=3)


def _checked_labels(samples: OwnerSamples, y: Any) -> NDArray[Any]:
    """Return the labels of samples, as classes."""
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None")
    labels: NDArray[Any] = column_or_1d(samples.labels(y), warn=True)
    check_classification_targets(labels)
    return labels


def _codes(labels: NDArray[Any], classes: NDArray[Any]) -> Tensor:
    """Return the positions of labels among the classes, int64 ``[samples]``."""
    unknown = {*labels.tolist()} - {*classes.tolist()}
    if unknown:
        raise ValueError(f"classes of validation samples without training samples: {quoted(list(map(str, unknown)))}")
    return torch.from_numpy(np.searchsorted(classes, labels))


def _frame(values: NDArray[Any], ids: Sequence[Any], columns: NDArray[Any]) -> Any:
    import pandas as pd

    return pd.DataFrame(values, pd.Index(ids), columns)
