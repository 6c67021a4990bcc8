"""A frozen model that an owner already has, by a path or a dotted name."""

from __future__ import annotations

import re
from pathlib import Path

from fedgraph.fusion.owner_models.batched import BatchedModel
from fedgraph.fusion.owner_models.exported import load_exported
from fedgraph.fusion.owner_models.factory import load_factory
from fedgraph.fusion.owner_models.scripted import load_scripted
from fedgraph.models import TaskSpec
from fedgraph.support.errors import ExperimentError

_DOTTED = re.compile(r"[\w.]+:[\w.]+")
_SCRIPTED = (".pt", ".pth", ".ts", ".torchscript")
_KNOWN = (
    "a torch.export program (.pt2), a TorchScript program (.pt or .ts) or package.module:factory@weights.safetensors"
)


def load_local_model(text: str, task: TaskSpec) -> BatchedModel:
    """The frozen classifier that ``text`` names, for inputs ``[samples, *task.input_shape]``.

    text : path of a ``torch.export`` program (``.pt2``) or a TorchScript program (``.pt``, ``.pth``, ``.ts``,
           ``.torchscript``), or ``package.module:factory@weights.safetensors``, where ``factory()`` returns a
           ``torch.nn.Module``; without ``@`` it has its weights already. Nothing is ever unpickled. The embedding is
           the input of the last linear layer, or of the one whose name follows a ``#`` at the end.

    It is evaluated on the CPU, in float32 and in evaluation mode.

    Raises
    ------
    ExperimentError
        Naming the file, when it cannot be read or used.
    """
    place, _, layer = text.partition("#")
    embedding_layer = layer or None
    if _DOTTED.fullmatch(place.partition("@")[0]):
        return load_factory(place, task, embedding_layer)
    path = Path(place).expanduser()
    if path.suffix == ".pt2":
        return load_exported(path, task, embedding_layer)
    if path.suffix in _SCRIPTED:
        return load_scripted(path, task, embedding_layer)
    raise ExperimentError(f"local model '{text}' is none of what can be loaded: {_KNOWN}")
