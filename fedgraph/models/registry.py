"""Models by name: ``build({"name": "gru", "hidden": 64}, task)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import create_model

from fedgraph.models.base import StackedModel
from fedgraph.models.cnn import CNNModel, CNNSettings
from fedgraph.models.mlp import MLPModel, MLPSettings
from fedgraph.models.recurrent import RecurrentModel, RecurrentSettings
from fedgraph.models.resnet9 import ResNet9Model, ResNet9Settings
from fedgraph.models.scikit import ScikitSettings, refuse_stacking
from fedgraph.models.task import TaskSpec
from fedgraph.models.vectorised import ModuleModel, ModuleSettings
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import Settings, parse

MODELS: dict[str, tuple[type[Settings], Callable[[Any, TaskSpec], StackedModel]]] = {
    "gru": (RecurrentSettings, RecurrentModel),
    "lstm": (RecurrentSettings, RecurrentModel),
    "rnn": (RecurrentSettings, RecurrentModel),
    "mlp": (MLPSettings, MLPModel),
    "cnn": (CNNSettings, CNNModel),
    "resnet9": (ResNet9Settings, ResNet9Model),
    "scikit-learn": (ScikitSettings, refuse_stacking),
}


def parse_model(table: Mapping[str, Any], where: str = "[model]", beside: type[Settings] = Settings) -> Settings:
    """Validate a model table of an experiment, which messages call ``where``.

    ``beside`` has keys that the table may hold beside those of its model.

    Raises
    ------
    ExperimentError
        For an unknown name or key, with the known ones.
    """
    name = table.get("name")
    is_own = isinstance(name, str) and ":" in name
    if not is_own and (not isinstance(name, str) or name not in MODELS):
        raise ExperimentError(
            f"{where} name: there is no model {name!r}; known models: {', '.join(sorted(MODELS))}, "
            "or 'package.module:Class' for a torch.nn.Module of your own"
        )
    kind = ModuleSettings if is_own else MODELS[str(name)][0]
    if beside is not Settings:
        kind = create_model(kind.__name__, __base__=(kind, beside))
    return parse(kind, table, where)


def build(table: Mapping[str, Any], task: TaskSpec) -> StackedModel:
    """The model that the table ``[model]`` names, for inputs and outputs of ``task``.

    Raises
    ------
    ExperimentError
        As ``parse_model``, for a model that does not fit the shape of the inputs, and for ``scikit-learn``, which
        only methods that leave models at their owners can use.
    """
    settings = parse_model(table)
    if isinstance(settings, ModuleSettings):
        return ModuleModel(settings, task)
    return MODELS[table["name"]][1](settings, task)
