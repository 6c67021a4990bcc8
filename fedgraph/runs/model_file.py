"""``models.safetensors``: the models that a run ends with.

``clients/<tensor>`` has a leading client axis, ``global/<tensor>`` has none; the metadata ``clients`` lists the names.
Where architectures differ, ``clients/<number>/<tensor>`` holds the clients of one architecture, and the metadata
``architectures`` says which number each client has.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from fedgraph.models import Architectures, Layout
from fedgraph.support.files import write_atomically


def write_models(
    path: Path,
    layout: Layout,
    names: Sequence[str],
    models: Tensor,
    global_model: Tensor | None,
    architectures: Architectures | None = None,
) -> None:
    """Write every client's model of ``models`` ``[clients, parameters]``, and the global one ``[parameters]`` if any.

    ``architectures`` says which client has which model, where they differ.
    """
    stacked = layout.unflatten(models) if architectures is None else architectures.stacked(models)
    tensors = {f"clients/{name}": value.contiguous() for name, value in stacked.items()}
    if global_model is not None:
        tensors |= {f"global/{name}": value for name, value in layout.row_state(global_model).items()}
    metadata = {"clients": json.dumps(list(names))}
    if architectures is not None:
        metadata["architectures"] = json.dumps(architectures.numbers)
    write_atomically(path, save(tensors, metadata=metadata))


def load_models(path: str | Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tensor] | None]:
    """Read ``models.safetensors``: state dicts by client name, and the global one or None."""
    with safe_open(str(path), framework="pt") as stream:
        metadata = stream.metadata()
        names = json.loads(metadata["clients"])
        numbers = json.loads(metadata.get("architectures", "null"))
        tensors = {key: stream.get_tensor(key) for key in stream.keys()}  # noqa: SIM118
    stacked = {key.removeprefix("clients/"): value for key, value in tensors.items() if key.startswith("clients/")}
    shared = {key.removeprefix("global/"): value for key, value in tensors.items() if key.startswith("global/")}
    if numbers is None:
        clients = {name: {key: value[row] for key, value in stacked.items()} for row, name in enumerate(names)}
        return clients, shared or None
    clients, rows = {}, Counter[int]()
    for name, number in zip(names, numbers, strict=True):
        start = f"{number}/"
        own = {key.removeprefix(start): value for key, value in stacked.items() if key.startswith(start)}
        clients[name] = {key: value[rows[number]] for key, value in own.items()}
        rows[number] += 1
    return clients, shared or None
