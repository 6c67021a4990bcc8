"""Models by name, their parameters as rows of one matrix, and the architecture of each client.

>>> import torch
>>> from fedgraph.models import TaskSpec, build
>>> model = build({"name": "mlp", "hidden": [4]}, TaskSpec("classification", (2,), (3,)))
>>> model.initial(torch.Generator().manual_seed(0)).shape
torch.Size([27])
"""

from fedgraph.models.base import Batch, Differentiated, StackedModel, TaskSpec
from fedgraph.models.called_layers import last_linear, with_input_of
from fedgraph.models.choice import ModelChoice, ModelTable, VariantTable
from fedgraph.models.frozen import FrozenLayers
from fedgraph.models.hashed_draws import drawing_from
from fedgraph.models.parameters import Layout, finite_rows, flattened, usable_rows, weights_sha256
from fedgraph.models.personal_layers import PersonalLayers, PersonalLayersSettings
from fedgraph.models.registry import MODELS, ScikitSettings, build, initial_model, parse_model
from fedgraph.models.stacked import linear
from fedgraph.models.vectorised import ModuleSettings

__all__ = [
    "MODELS",
    "Batch",
    "Differentiated",
    "FrozenLayers",
    "Layout",
    "ModelChoice",
    "ModelTable",
    "ModuleSettings",
    "PersonalLayers",
    "PersonalLayersSettings",
    "ScikitSettings",
    "StackedModel",
    "TaskSpec",
    "VariantTable",
    "build",
    "drawing_from",
    "finite_rows",
    "flattened",
    "initial_model",
    "last_linear",
    "linear",
    "parse_model",
    "usable_rows",
    "weights_sha256",
    "with_input_of",
]
