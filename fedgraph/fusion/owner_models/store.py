"""Frozen models that a node has trained, kept as files under what tells them from others."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedgraph.support.errors import RunError
from fedgraph.support.files import write_atomically


class ModelStore:
    """A folder of models, each called by its fingerprint; they never leave the node.

    A model is trained once and then frozen: whoever asks for the same fingerprint gets the same model.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, fingerprint: str) -> Tensor | None:
        """The parameters ``[parameters]`` of a model; None where there is none. Raises RunError for a broken file."""
        path = self._path(fingerprint)
        try:
            return load_file(path)["parameters"].clone()
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, KeyError) as error:
            raise RunError(f"cannot read the frozen model {path}: {error}; remove it to train it anew") from None

    def save(self, fingerprint: str, parameters: Tensor) -> None:
        """Keep the parameters ``[parameters]`` of a model."""
        write_atomically(self._path(fingerprint), save({"parameters": parameters.detach().contiguous()}))

    def _path(self, fingerprint: str) -> Path:
        if not fingerprint.isalnum():
            raise RunError(f"'{fingerprint}' is no fingerprint of a model")
        return self.folder / f"{fingerprint}.safetensors"
