"""Frozen models that owners already have: files, or modules built by a function with a given dotted name."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedgraph.fusion.owner_models.exported import load_exported
from fedgraph.fusion.owner_models.local_model import BatchedModel
from fedgraph.fusion.owner_models.onnx_file import load_onnx
from fedgraph.fusion.owner_models.scikit import ScikitModel
from fedgraph.fusion.owner_models.skops_file import load_skops
from fedgraph.models import TaskSpec, last_linear, with_input_of
from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import a_function, derived, load_object


def load_factory(text: str, task: TaskSpec, embedding_layer: str | None = None) -> BatchedModel:
    """Load the model ``package.module:factory@weights.safetensors``; without ``@`` the factory loads the weights.

    Raises ExperimentError when the factory or the file cannot be used, the weights do not fit the module, or there is
    no such layer.
    """
    path, _, weights = text.partition("@")
    where = f"local model '{text}'"
    factory = load_object(path, "local model", _a_factory)
    try:
        with torch.random.fork_rng(devices=[]):
            module = factory()
    except Exception as error:
        raise ExperimentError(f"{where}: {path}() failed: {error}") from error
    if not isinstance(module, nn.Module):
        raise ExperimentError(f"{where}: {path}() must return a torch.nn.Module; got {type(module).__name__}")
    if weights:
        _load_weights(module, Path(weights).expanduser(), where)
    module = module.cpu().float().eval()
    layer = _layer(module, task, embedding_layer, where)

    def run(inputs: Tensor) -> tuple[Tensor, Tensor]:
        embeddings, outputs = with_input_of(module, layer, lambda: module(inputs))
        if embeddings is None:
            raise ExperimentError(f"{where}: the input of layer '{layer}' is not a tensor; name another layer")
        return embeddings, outputs

    digest = hashlib.sha256(f"{path}\0{layer}".encode())
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode() + b"\0" + value.contiguous().numpy().tobytes())
    return BatchedModel(run, task, where, digest.hexdigest()[:32])


def _a_factory(found: object) -> str:
    """Demand a function, or a class of modules."""
    return derived(nn.Module)(found) and a_function(found)


def _load_weights(module: nn.Module, path: Path, where: str) -> None:
    if path.suffix != ".safetensors":
        raise ExperimentError(
            f"{where}: weights are read from .safetensors files only, as other formats can execute code; save them by "
            "safetensors.torch.save_file(module.state_dict(), path)"
        )
    try:
        module.load_state_dict(load_file(path))
    except Exception as error:
        raise ExperimentError(f"{where}: the weights in {path} cannot be used: {error}") from error


def _layer(module: nn.Module, task: TaskSpec, named: str | None, where: str) -> str:
    names = [name for name, _ in module.named_modules() if name]
    if named is not None:
        if named not in names:
            raise ExperimentError(f"{where} has no layer '{named}'; it has {', '.join(names)}")
        return named
    try:
        found = last_linear(module, torch.zeros(2, *task.input_shape))
    except Exception as error:
        raise ExperimentError(f"{where} fails on two inputs of shape {task.input_shape}: {error}") from error
    if found is None:
        raise ExperimentError(
            f"{where} calls no torch.nn.Linear whose input could be the embedding; name the layer whose input is the "
            f"embedding, one of {', '.join(names)}"
        )
    return found


_DOTTED = re.compile(r"[\w.]+:[\w.]+")
_PICKLED = (".pkl", ".pickle", ".joblib", ".pt", ".pth")
_KNOWN = (
    "a torch.export program (.pt2), an ONNX model (.onnx), a fitted scikit-learn pipeline (.skops) or "
    "package.module:factory@weights.safetensors"
)


def load_local_model(text: str, task: TaskSpec) -> BatchedModel | ScikitModel:
    """Load the frozen classifier given by ``text``, for inputs ``[samples, *task.input_shape]``.

    text : path of a ``torch.export`` program (``.pt2``), an ONNX model (``.onnx``) or a fitted scikit-learn pipeline
           (``.skops``); or ``package.module:factory@weights.safetensors``, where ``factory()`` returns a
           ``torch.nn.Module``; without ``@`` it loads its weights. Nothing is unpickled. The embedding is the input of
           the last linear layer, or of the layer named after a ``#`` at the end.

    It is evaluated on the CPU, in float32 and in evaluation mode. Raises ExperimentError when the file cannot be read
    or used.
    """
    place, _, layer = text.partition("#")
    embedding_layer = layer or None
    if _DOTTED.fullmatch(place.partition("@")[0]):
        return load_factory(place, task, embedding_layer)
    path = Path(place).expanduser()
    if path.suffix == ".pt2":
        return load_exported(path, task, embedding_layer)
    if path.suffix == ".onnx":
        return load_onnx(path, task, embedding_layer)
    if path.suffix == ".skops":
        return load_skops(path, task, embedding_layer)
    if path.suffix in _PICKLED:
        raise ExperimentError(
            f"local model '{text}' is a pickle, which can execute code when it is loaded: save a fitted scikit-learn "
            "pipeline by skops.io.dump(pipeline, path), and a network, a TorchScript program too, by torch.export.save "
            "(.pt2), or its weights by safetensors for package.module:factory@weights.safetensors"
        )
    raise ExperimentError(f"local model '{text}' is of an unknown kind: expected {_KNOWN}")
