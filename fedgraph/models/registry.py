"""Models by name: ``build({"name": "gru", "hidden": 64}, task)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NoReturn

from pydantic import Field, create_model
from torch import Tensor

from fedgraph.models.base import StackedModel, TaskSpec
from fedgraph.models.cnn import CNNModel, CNNSettings
from fedgraph.models.graphs.model import GraphModel, GraphNetworkSettings, graph_network
from fedgraph.models.mlp import MLPModel, MLPSettings
from fedgraph.models.recurrent import RecurrentModel, RecurrentSettings
from fedgraph.models.resnet9 import ResNet9Model, ResNet9Settings
from fedgraph.models.vectorised import ModuleModel, ModuleSettings
from fedgraph.support.errors import ExperimentError
from fedgraph.support.randomness import generator
from fedgraph.support.settings import Settings, parse


class ScikitSettings(Settings):
    """``[model]`` with ``name = "scikit-learn"``, for methods that leave models at their owners (f3).

    Each owner fits the model on its own training samples, given as one row of numbers per sample; ``[train]`` has no
    effect.

    Attributes
    ----------
    transformer         : transformer class such as ``sklearn.preprocessing:SplineTransformer``, or your own as
                          ``package.module:Class``, derived from ``BaseEstimator``; its output is the embedding. Without
                          a transformer the embedding would be the sample itself, which must not leave its owner: f3
                          refuses that.
    estimator           : class of a classifier of these features that has ``predict_proba``.
    transformer_options : arguments of its constructor; estimator_options likewise. Where a constructor has a
                          ``random_state`` that is not given, it follows from the seed of the run and the owner's name.
    """

    name: str
    transformer: str | None = None
    transformer_options: dict[str, Any] = Field(default_factory=dict)
    estimator: str = "sklearn.linear_model:LogisticRegression"
    estimator_options: dict[str, Any] = Field(default_factory=dict)


def raise_not_stackable(settings: ScikitSettings, task: TaskSpec) -> NoReturn:
    """Raise ExperimentError: such a table is not a model with parameters ``[clients, ...]``."""
    raise ExperimentError(
        "[model] name: 'scikit-learn' models have no parameters that could be sent, averaged or trained together; only "
        "methods that leave models at their owners can use them, e.g. [experiment] method = 'f3'"
    )


MODELS: dict[str, tuple[type[Settings], Callable[[Any, TaskSpec], StackedModel]]] = {
    "gru": (RecurrentSettings, RecurrentModel),
    "lstm": (RecurrentSettings, RecurrentModel),
    "rnn": (RecurrentSettings, RecurrentModel),
    "mlp": (MLPSettings, MLPModel),
    "cnn": (CNNSettings, CNNModel),
    "resnet9": (ResNet9Settings, ResNet9Model),
    **dict.fromkeys(("gcn", "graphsage", "gin"), (GraphNetworkSettings, graph_network)),
    "scikit-learn": (ScikitSettings, raise_not_stackable),
}


def parse_model(table: Mapping[str, Any], where: str = "[model]", extra: type[Settings] = Settings) -> Settings:
    """Validate a model table of an experiment.

    Raises ExperimentError for an unknown name or key;
    the message lists the known ones.

    Parameters
    ----------
    table : mapping
        Its key ``name`` chooses the settings class.
    where : str
        Names the table in messages.
    extra : type
        Settings class of further keys that the table may contain.
    """
    name = table.get("name")
    is_own = isinstance(name, str) and ":" in name
    if not is_own and (not isinstance(name, str) or name not in MODELS):
        raise ExperimentError(
            f"{where} name: there is no model {name!r}; known models: {', '.join(sorted(MODELS))}, "
            "or 'package.module:Class' for a torch.nn.Module of your own"
        )
    kind = ModuleSettings if is_own else MODELS[str(name)][0]
    return parse(kind if extra is Settings else _together(kind, extra), table, where)


@cache
def _together(kind: type[Settings], extra: type[Settings]) -> type[Settings]:
    """Return the settings class with the fields of both; to make one takes longer than to validate an experiment."""
    return create_model(kind.__name__, __base__=(kind, extra))


def build(table: Mapping[str, Any], task: TaskSpec) -> StackedModel:
    """Build the model that a table ``[model]`` names.

    Returns a StackedModel without parameters; see :meth:`StackedModel.initial`. Raises ExperimentError as
    :func:`parse_model`; for a model that does not fit the shape of the inputs; and for ``scikit-learn``, which only
    methods that leave models at their owners can use.

    Parameters
    ----------
    table : mapping
        Validated as by :func:`parse_model`.
    task : TaskSpec
        Inputs and outputs of the model.
    """
    settings = parse_model(table)
    if isinstance(settings, ModuleSettings):
        return GraphModel(settings, task) if task.level else ModuleModel(settings, task)
    if task.level and not isinstance(settings, GraphNetworkSettings):
        raise ExperimentError(
            f"[model] name: '{table['name']}' is no model of graphs, as which the data are given: gcn, graphsage and "
            "gin are, or 'package.module:Class' for a torch.nn.Module of your own with forward(x, edge_index)"
        )
    return MODELS[table["name"]][1](settings, task)


def initial_model(model: StackedModel, seed: int) -> Tensor:
    """Draw the initial model of a run, the same for every client.

    Returns ``[parameters]``, determined by ``model`` and ``seed``.
    """
    return model.initial(generator(seed, "initial model"))
