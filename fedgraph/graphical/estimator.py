"""A neural graphical model of one data frame, without a federation, in scikit-learn's manner.

Shrivastava, Chajewska: Neural Graphical Models (ECSQARU 2023); Chajewska, Shrivastava: Federated Learning with Neural
Graphical Models, sections 2.1, 2.2 and 2.5.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from fedgraph.data.columns import MISSING, Floats, Table, as_category, from_frame, likely_marks, with_embeddings
from fedgraph.data.encoding import Encoding, Scaling, ScalingSettings, as_dicts, read_values, to_values
from fedgraph.data.schema import Schema, SchemaSettings, excluded_columns, infer_schema
from fedgraph.graph import FeatureGraph
from fedgraph.graphical.inference import SamplingSettings
from fedgraph.graphical.learning import EVERYBODY, NGMFit, fit_ngm, fit_ngr, r_squared
from fedgraph.graphical.model import GraphicalModel
from fedgraph.graphical.network import NGMSettings, NGRSettings
from fedgraph.graphical.recovery import RecoverySettings, UnitTable, recover
from fedgraph.support.errors import DataError, ExperimentError, GraphError, quoted, similar
from fedgraph.support.randomness import generator, seed_of
from fedgraph.support.settings import Settings, from_keywords

log = logging.getLogger("fedgraph")

_Table = TypeVar("_Table", bound=Settings)


@dataclass(kw_only=True, eq=False, repr=False)
class NeuralGraphicalModel(BaseEstimator):
    """A probabilistic model of all columns of a data frame, for queries about any of them.

    Parameters are those of ``[fedngm.ngm]`` in an experiment, and of ``[fedngm.ngr]`` where these differ, with the same
    defaults (``fedgraph keys fedngm.ngm`` explains them); other tables are mappings of their keys.

    Data frames of pandas, polars or pyarrow hold numbers and categories, possibly missing; unordered categories of
    pandas are such, also where they are numbers. Arrays of numbers are accepted too, with columns x0, x1 and so on.
    Rows of queries may also be a dict by column, a list of dicts, or a Series; absent columns are unknown. Names that
    are numbers are converted to text, and may be given as either.

    Parameters
    ----------
    graph : {"recover", "learn"} or FeatureGraph, default "recover"
        Direct dependencies between features: recovered from the rows before training; learned in training, by a neural
        graph revealer (NGR); or given.
    path_weight, path_norm, path_log : optional
        As in ``[fedngm.ngm]``, or with ``graph="learn"`` in ``[fedngm.ngr]``; None for their defaults.
    sparsity, threshold
        As in ``[fedngm.ngr]``, for ``graph="learn"``.
    targets : str or sequence of str
        Columns that ``score`` evaluates, and that get neighbours in the recovered graph (``target_neighbours`` of
        ``recovery``); by default all.
    recovery, scaling, sampling : mapping, optional
        Keys of ``[fedngm.recovery]``, ``[fedngm.scaling]`` and ``[fedngm.sampling]`` that apply to a single table, such
        as ``recovery={"method": "ges"}``.
    schema : Schema or mapping, optional
        A schema, or keys of ``[data.table-schema]``, such as ``{"kinds": {"pain": "ordinal"}, "drop": ("name",)}``; by
        default inferred, with all categories, however rare.
    validation_fraction : float, default 0.1
        Share of the rows of ``fit`` for choosing the best epoch; not used where ``fit`` is given such rows.
    random_state : int, RandomState or None
        Seed of validation rows, initial weights and the order of rows; an int is the seed of an experiment.

    Attributes
    ----------
    model_ : GraphicalModel
        The model, as in the file of a run.
    graph_ : FeatureGraph
        Direct dependencies between features.
    schema_ : Schema
        Names, kinds and categories of the features.
    r_squared_ : Series
        Share of each feature's variance in validation rows that its prediction from all others explains.
    n_features_in_, feature_names_in_ : int, ndarray
        Number of columns of the rows of ``fit``, and their names, unless these are an array.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from fedgraph import NeuralGraphicalModel
    >>> random = np.random.default_rng(0)
    >>> age = random.normal(60, 12, 500)
    >>> smoker = np.where(random.random(500) < 0.3, "yes", "no")
    >>> pressure = 120 + 0.8 * (age - 60) + 15 * (smoker == "yes") + random.normal(0, 5, 500)
    >>> patients = pd.DataFrame({"age": age, "smoker": smoker, "pressure": pressure})
    >>> model = NeuralGraphicalModel(epochs=100, random_state=0).fit(patients)
    >>> model.graph_.edges
    (('age', 'smoker'), ('age', 'pressure'), ('smoker', 'pressure'))
    >>> old, young = model.predict([{"age": 75}, {"age": 45}], "pressure")
    >>> bool(old - young > 15)
    True
    >>> model.sample(3, given={"smoker": "yes"}, random_state=0).shape
    (3, 3)
    """

    graph: str | FeatureGraph = "recover"
    architecture: str = "masked"
    hidden: int | None = None
    layers: int = 2
    loss: str = "cross-entropy"
    epochs: int = 500
    batch_size: int | None = 256
    learning_rate: float = 3e-3
    patience: int = 20
    compile: bool = True
    path_weight: float | None = None
    path_norm: str | None = None
    path_rows: str = "normalised"
    path_log: bool | None = None
    path_tolerance: float = 0.1
    sparsity: float | None = None
    threshold: float = 0.1
    targets: str | Sequence[str] = ()
    recovery: Mapping[str, Any] | None = None
    scaling: Mapping[str, Any] | None = None
    sampling: Mapping[str, Any] | None = None
    schema: Schema | Mapping[str, Any] | None = None
    validation_fraction: float = 0.1
    random_state: int | np.random.RandomState | None = None

    def fit(self, X: Any, y: Any = None, validation: Any = None) -> NeuralGraphicalModel:
        """Recover the graph and train the model.

        Returns itself. Raises TypeError or ValueError for parameters and rows that cannot be used. Raises RunError when
        a solver fails, or training diverges.

        Parameters
        ----------
        X : data frame
            The rows; empty cells are missing.
        y : None
            Not used.
        validation : data frame, optional
            Rows by which the best epoch is chosen; by default some of X are held out.
        """
        seed = seed_of(self.random_state)
        with _value_errors():
            settings, scaling, about = self._settings(), self._table(ScalingSettings, "scaling"), self._about
            _ = self._draws, self._table(RecoverySettings, "recovery")  # checked before the rows
            table = self._as_table(X, fitting=True)
            schema = self.schema if isinstance(self.schema, Schema) else infer_schema(table, about)
            self._check_targets(schema)
            _warn_of_empty(schema, table, about)
            _warn_of_marks(schema, table, about)
            training = read_values(table, schema, about)
            if validation is None:
                training, held_out = self._divided(training, seed)
            else:
                held_out = to_values(self._as_table(validation), schema, settings=about)
            own = Scaling.measured(training, schema, scaling.quantile, scaling.skewed)
            encoding = Encoding(schema, Scaling(dict(scaling.ranges)).completed(own), scaling.outside)
            found = self._fitted(schema, encoding.encode(training), encoding.encode(held_out), settings, seed)
            self._take(GraphicalModel.of_one(found.network, found.parameters, encoding))
        is_pandas = hasattr(X, "iloc") and hasattr(X, "columns")
        self._kinds = {str(name): kind for name, kind in X.dtypes.items()} if is_pandas else {}
        import pandas as pd

        self.r_squared_ = pd.Series(found.r_squared[0].numpy(), list(schema.names))
        return self

    def predict(self, X: Any, target: str | int | None = None) -> NDArray[Any]:
        """Predict a column from the others: the expectation of a number, or the most probable category.

        Returns ``[rows]``, or ``[rows, numbers]`` for an embedding. See
        :meth:`fedgraph.graphical.model.GraphicalModel.predict`.

        Parameters
        ----------
        X : data frame, dict or list of dicts
            Known values; those of the target are ignored, and so are unknown columns of a data frame, with a warning
            the first time.
        target : str, optional
            The column; by default the only one of ``targets``.
        """
        name = self._target(target)
        with _value_errors():
            found = self.model_.predict(self._rows(X, [name]), name, sampling=self._draws)
        return self._restored(name, found)

    def predict_proba(self, X: Any, target: str | int | None = None) -> Any:
        """Predict the probabilities of the categories of a column, from the others.

        Returns a data frame ``[rows, categories]``, with the categories as columns and the index of X, if it has one.

        Parameters
        ----------
        X : data frame, dict or list of dicts
            Known values; those of the target are ignored.
        target : str, optional
            The column; by default the only one of ``targets``.
        """
        name = self._target(target)
        with _value_errors():
            found = self.model_.predict_proba(self._rows(X, [name]), name, sampling=self._draws)
        import pandas as pd

        return pd.DataFrame(found, _index_of(X), self._restored(name, np.array(self.schema_[name].categories)))

    def conditional(
        self, X: Any, targets: str | int | Sequence[str | int], quantiles: float | Sequence[float] = (0.05, 0.5, 0.95)
    ) -> dict[Any, Any]:
        """Return the distribution of each target given all that is known.

        By target, ``mean`` and ``quantiles`` of numbers, or ``probabilities`` of ``categories``; see
        :meth:`fedgraph.graphical.model.GraphicalModel.conditional`.

        Parameters
        ----------
        X : data frame, dict or list of dicts
            Known values; those of the targets in a data frame are ignored.
        targets : str or sequence of str
            The columns to predict.
        quantiles : float or sequence of float
            Levels of the quantiles of numbers.
        """
        check_is_fitted(self)
        listed = _listed(targets)
        requested, known = list(map(str, listed)), _with_text(X)
        with _value_errors():
            rows = known if as_dicts(known) else self._rows(known, requested)
            found = self.model_.conditional(rows, requested, quantiles, settings=self._draws)
        return {name: found[str(name)] for name in listed}

    def sample(self, n_samples: int = 1, given: Any = None, random_state: Any = None) -> Any:
        """Draw rows from the model.

        Returns a DataFrame of pandas, with the columns of the rows of ``fit``, and the index of ``given`` if that has a
        row for each.

        Parameters
        ----------
        n_samples : int
            Number of rows.
        given : data frame, dict or list of dicts, optional
            Known values: one row for all, or ``n_samples`` rows. They are returned unchanged.
        random_state : int, RandomState or None
            Seed of the draws.
        """
        check_is_fitted(self)
        with _value_errors():
            known = None if given is None else self._rows(given, [])
            drawn = self.model_.sample(n_samples, known, seed_of(random_state), self._draws).to_pandas()
        for name in drawn.columns:
            drawn[name] = self._restored(name, drawn[name])
        index = _index_of(given)
        return drawn if index is None or len(index) != len(drawn) else drawn.set_axis(index, axis=0)

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean, over ``targets``, of the share of variance that predictions from all others explain (R²).

        Categories count as the indicators of each. Columns that do not vary are left out. Missing cells are marked
        as such for the network, as in training, where :meth:`predict` averages over what they may be. Raises ValueError
        for rows that cannot be used, and where a column is missing.

        Parameters
        ----------
        X : data frame
            Rows, with all columns that are features of the model.
        y : None
            Not used.
        """
        check_is_fitted(self)
        model = self.model_
        with _value_errors():
            units = model.encoding.encode(self._rows(X, [], whole=True))[None]
            found = r_squared(model.network, model.parameters[None], units)[0]
            self._check_targets(self.schema_)
        chosen = [
            place for place, name in enumerate(self.schema_.names) if name in (self._targets or self.schema_.names)
        ]
        return float(found[chosen].nanmean())

    def save(self, path: str | Path) -> None:
        """Write the model atomically, as ``graphical-model.safetensors`` of a run."""
        check_is_fitted(self)
        self.model_.save(Path(path))

    @classmethod
    def load(cls, path: str | Path) -> NeuralGraphicalModel:
        """Read a model that :meth:`save` or a run of FedNGM has written; its categories are text.

        Raises RunError when the file is missing, damaged or no such model.
        """
        model = GraphicalModel.load(Path(path))
        settings = model.network.settings
        made = cls(graph=model.graph, **{name: getattr(settings, name) for name in NGMSettings.model_fields})
        made._take(model)
        made._kinds = {}
        return made

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that values may be missing."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    # ---- fitting ---------------------------------------------------------------------------------------------------

    def _fitted(self, schema: Schema, training: Tensor, held_out: Tensor, settings: NGMSettings, seed: int) -> NGMFit:
        """Fit the model to units ``[rows, units]``, as a client of a federation does."""
        if isinstance(settings, NGRSettings):
            return fit_ngr(schema, [training], [held_out], [EVERYBODY], settings, seed).fit
        if isinstance(self.graph, FeatureGraph):
            graph = self.graph.subgraph(schema.names)
        else:
            chosen = self._table(RecoverySettings, "recovery")
            table = UnitTable.of(EVERYBODY, schema, training)
            graph = recover(chosen, [table], seed, targets=self._targets)[0].graph
        return fit_ngm(schema, graph.adjacency, [training], [held_out], [EVERYBODY], settings, seed)

    def _take(self, model: GraphicalModel) -> None:
        self.model_, self.graph_, self.schema_ = model, model.graph, model.encoding.schema
        self._ignored: set[str] = set()

    def _divided(self, values: Floats, seed: int) -> tuple[Floats, Floats]:
        """Split rows into training and held-out ones."""
        if not 0 < self.validation_fraction < 1:
            raise ValueError(f"validation_fraction is above 0 and below 1; got {self.validation_fraction}")
        rows = len(values)
        if rows < 2:
            raise ValueError(f"n_samples={rows}: at least 2 rows are needed, one of which is held out for validation")
        order = torch.randperm(rows, generator=generator(seed, "validation rows")).numpy()
        number = min(max(1, round(self.validation_fraction * rows)), rows - 1)
        return values[np.sort(order[number:])], values[np.sort(order[:number])]

    # ---- parameters ------------------------------------------------------------------------------------------------

    def _settings(self) -> NGMSettings:
        if not isinstance(self.graph, FeatureGraph) and self.graph not in ("recover", "learn"):
            raise ValueError(f"graph is 'recover', 'learn' or a FeatureGraph; got {self.graph!r}")
        kind = NGRSettings if isinstance(self.graph, str) and self.graph == "learn" else NGMSettings
        keywords = {name: getattr(self, name) for name in kind.model_fields}
        by_kind = ("path_weight", "path_norm", "path_log")
        chosen = {name: value for name, value in keywords.items() if value is not None or name not in by_kind}
        return from_keywords(kind, chosen, type(self).__name__)

    def _table(self, kind: type[_Table], name: str, **defaults: Any) -> _Table:
        """Return the settings of a table that is given as a mapping of its keys."""
        given = getattr(self, name)
        if isinstance(given, kind):
            return given
        keywords = {str(key).replace("-", "_"): value for key, value in (given or {}).items()}
        return from_keywords(kind, defaults | keywords, f"{type(self).__name__}({name}=...)")

    @property
    def _about(self) -> SchemaSettings:
        """Settings of the columns; rare categories count, as nothing leaves the process."""
        if isinstance(self.schema, Schema):
            return SchemaSettings(least_rows=1)
        return self._table(SchemaSettings, "schema", least_rows=1)

    @property
    def _draws(self) -> SamplingSettings:
        return self._table(SamplingSettings, "sampling")

    def _check_targets(self, schema: Schema) -> None:
        for name in self._targets:
            _ = schema[name]

    @property
    def _targets(self) -> tuple[str, ...]:
        return tuple(map(str, _listed(self.targets)))

    def _target(self, target: str | int | None) -> str:
        check_is_fitted(self)
        if target is not None:
            return str(target)
        if len(self._targets) != 1:
            raise ValueError("name the target to predict, or give the model a single one under targets")
        return self._targets[0]

    # ---- rows ------------------------------------------------------------------------------------------------------

    def _as_table(self, X: Any, fitting: bool = False) -> Table:
        """Return a data frame, or an array of numbers, as a table."""
        if isinstance(X, (list, np.ndarray)) or hasattr(X, "__array_interface__") or hasattr(X, "toarray"):
            if not fitting and not hasattr(self, "n_features_in_"):
                raise ValueError("the model was read from a file: give rows as a data frame")
            import pandas as pd

            values = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=fitting)
            return from_frame(pd.DataFrame(values, columns=[f"x{place}" for place in range(values.shape[1])]))
        table = from_frame(X)
        if fitting:
            self.n_features_in_, self.feature_names_in_ = len(table.names), np.array(table.names, dtype=object)
        return table

    def _rows(self, X: Any, ignored: Sequence[str], whole: bool = False) -> Floats:
        """Return rows as values ``[rows, features]``; with ``whole`` no feature may be missing."""
        X = _with_text(X)
        dicts = as_dicts(X)
        rows = X if dicts else self._as_table(X)
        if whole or not dicts:  # unknown names in a dict are errors
            self._check_columns(dict.fromkeys(name for row in dicts for name in row) if dicts else rows.names, whole)
        return to_values(rows, self.schema_, [name for name in ignored if name in self.schema_.names], self._about)

    def _check_columns(self, given: Iterable[str], whole: bool) -> None:
        """Warn once about each column unknown to the model; with ``whole``, raise for missing ones."""
        schema = self.schema_
        present = with_embeddings(list(given), {each.name for each in schema.features if each.kind == "embedding"})
        lacking = [name for name in schema.names if name not in present]
        known = {*schema.names, *getattr(self, "feature_names_in_", ())}
        unknown = [name for name in present if name not in known]
        if whole and lacking:
            raise ValueError(
                f"the rows lack the columns {quoted(lacking)}, from which others are "
                f"predicted{similar(unknown, lacking)}"
            )
        if new := [name for name in unknown if name not in self._ignored]:
            self._ignored.update(new)
            log.warning("columns that the model does not know are ignored: %s%s", quoted(new), similar(new, lacking))

    def _restored(self, name: str, values: Any) -> Any:
        """Return categories in the type of the data frame of ``fit``: booleans, numbers or categories."""
        kind = self._kinds.get(name)
        if kind is None or np.asarray(values).dtype.kind in "iuf":
            return values
        import pandas as pd

        if isinstance(kind, pd.CategoricalDtype):
            found = pd.Series(values, dtype=object).map({as_category(each): each for each in kind.categories})
            return found.astype(kind) if isinstance(values, pd.Series) else np.array(found.tolist())
        if pd.api.types.is_bool_dtype(kind):
            found = pd.Series(values, dtype=object).map({"True": True, "False": False})
            found = found.astype(kind) if not found.isna().any() else found
        elif pd.api.types.is_numeric_dtype(kind):
            found = pd.to_numeric(pd.Series(values))
        else:
            return values
        return found if isinstance(values, pd.Series) else np.asarray(found)


def _listed(names: Any) -> list[Any]:
    """Return names of columns as a list, also a single one."""
    return [names] if isinstance(names, str | int | np.integer) else list(names)


def _index_of(rows: Any) -> Any:
    """Return the index of a data frame of pandas, or the name of a row of one; None for others."""
    if not hasattr(rows, "iloc"):
        return None
    if hasattr(rows, "columns"):
        return rows.index
    return None if rows.name is None else [rows.name]


def _with_text(rows: Any) -> Any:
    """Convert a Series to a data frame, and numeric names in dicts to text."""
    if hasattr(rows, "iloc") and not hasattr(rows, "columns"):
        return rows.to_frame().T.infer_objects()
    if isinstance(rows, Mapping):
        return {str(name): value for name, value in rows.items()}
    if isinstance(rows, Sequence) and not isinstance(rows, str):
        return [_with_text(row) if isinstance(row, Mapping) else row for row in rows]
    return rows


@contextmanager
def _value_errors() -> Iterator[None]:
    """Turn errors of data and settings in a ``with`` block into ValueError, as scikit-learn expects."""
    try:
        yield
    except (DataError, ExperimentError, GraphError) as error:
        raise ValueError(str(error)) from error


def _warn_of_empty(schema: Schema, table: Table, about: SchemaSettings) -> None:
    """Warn of columns without any value, which a schema leaves out."""
    if empty := [name for name, why in excluded_columns(table, about, schema).items() if why == "empty"]:
        log.warning("columns without any value are left out: %s", quoted(empty))


def _warn_of_marks(schema: Schema, table: Table, about: SchemaSettings) -> None:
    """Warn of categories and numbers that mark missing values in files: in a data frame they are what they are."""
    for name in (each.name for each in schema.features if each.kind in ("real", "integer")):
        numbers = None if name in about.missing_codes else table.numbers(name)
        if numbers is not None and (marks := [f"{mark:g}" for mark in likely_marks(numbers)]):
            log.warning(
                "column '%s' holds %s, far from its other values: make it None where it means a missing value",
                name, " and ".join(marks),
            )  # fmt: skip
    marked = {each.name: [text for text in each.categories if text in MISSING] for each in schema.features}
    for name, texts in marked.items():
        if texts:
            log.warning(
                "%s is a category of column '%s', as in the data frame: make it None where it means a missing value",
                quoted(texts), name,
            )  # fmt: skip
