"""What the nodes of a simulation are told beside the experiment, as a node config tells a real one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def told_nodes(given: Mapping[str, Any] | None, models: Mapping[str, str | Path] | None) -> dict[str, Any]:
    """Return what nodes are told: keys of the node config, and the models that clients have already."""
    if not models:
        return dict(given or {})
    entries = [f"{name}={_absolute(str(model))}" for name, model in models.items()]
    return {**(given or {}), "models": ",".join(f'"{entry}"' if "," in entry else entry for entry in entries)}


def _absolute(model: str) -> str:
    """Return a model with an absolute path, as nodes may run in other folders; ``package.module:Class`` stays as it is.

    That of a file that is not there says where it was looked for.
    """
    place, layer = model.partition("#")[::2]
    is_path = Path(place).is_file() or (place and ":" not in place)
    return f"{Path(place).absolute()}{'#' * bool(layer)}{layer}" if is_path else model
