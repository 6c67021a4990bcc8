"""Plain state on disk: a nested dict of tensors and JSON values in one safetensors file, written atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedgraph.support.atomic import write_atomically
from fedgraph.support.errors import RunError

State = dict[str, Any]
"""Values are tensors, JSON values, or dicts of the same."""

_SEPARATOR = "\x1f"
_TENSOR = {"__tensor__": True}


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state."""
    tensors: dict[str, Tensor] = {}
    values = _take_tensors(state, (), tensors)
    data = save(tensors, metadata={"state": json.dumps(values)})
    write_atomically(path, data)


def load_state(path: Path) -> State:
    """Read a state. Raises RunError for a file that is missing, broken or not one of ours."""
    try:
        with safe_open(str(path), framework="pt") as stream:
            values = json.loads(stream.metadata()["state"])
            # A clone lies in memory that PyTorch allocated, aligned as in a run that was never stopped.
            tensors = {name: stream.get_tensor(name).clone() for name in stream.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"cannot read the saved state {path}: {error}") from None
    restored = _put_tensors(values, (), tensors)
    assert isinstance(restored, dict)
    return restored


def _take_tensors(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensor = value.detach().cpu().contiguous()
        # The file format refuses tensors that share memory.
        stored = {other.untyped_storage().data_ptr() for other in tensors.values()}
        tensors[_SEPARATOR.join(path)] = tensor.clone() if tensor.untyped_storage().data_ptr() in stored else tensor
        return _TENSOR
    if isinstance(value, Mapping):
        return {key: _take_tensors(item, (*path, key), tensors) for key, item in value.items()}
    return value


def _put_tensors(value: Any, path: tuple[str, ...], tensors: Mapping[str, Tensor]) -> Any:
    if value == _TENSOR:
        return tensors[_SEPARATOR.join(path)]
    if isinstance(value, dict):
        return {key: _put_tensors(item, (*path, key), tensors) for key, item in value.items()}
    return value
