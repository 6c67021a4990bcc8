"""The table ``[model]`` of a scikit-learn model, which stays at its owner."""

from __future__ import annotations

from typing import Any, NoReturn

from pydantic import Field

from fedgraph.models.task import TaskSpec
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import Settings


class ScikitSettings(Settings):
    """``[model]`` with ``name = "scikit-learn"``, for methods that leave models at their owners (f3).

    Fitted by each owner on its own training samples, whose features it sees as one row of numbers; ``[train]`` does not
    count.

    transformer         : class of features such as ``sklearn.preprocessing:SplineTransformer``, or one of yours as
                          ``package.module:Class``; what it puts out is the embedding. Without one the embedding would
                          be the sample itself, which must not leave its owner: f3 refuses that.
    estimator           : class of a classifier of these features that has ``predict_proba``.
    transformer_options : arguments of its constructor; so are ``estimator_options``. Where a constructor takes a
                          ``random_state`` that is not given, it follows from the seed of the run and the owner's name.
    """

    name: str
    transformer: str | None = None
    transformer_options: dict[str, Any] = Field(default_factory=dict)
    estimator: str = "sklearn.linear_model:LogisticRegression"
    estimator_options: dict[str, Any] = Field(default_factory=dict)


def refuse_stacking(settings: ScikitSettings, task: TaskSpec) -> NoReturn:
    """What ``fedgraph.models.build`` makes of such a table: it is no model with parameters ``[clients, ...]``."""
    raise ExperimentError(
        "[model] name: 'scikit-learn' models have no parameters that could be sent, averaged or trained together; only "
        "methods that leave models at their owners can use them, e.g. [experiment] method = 'f3'"
    )
