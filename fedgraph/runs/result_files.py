"""``models.safetensors``: the final models of a run.

``clients/<tensor>`` has a leading client axis, ``global/<tensor>`` does not, and ``frozen/<tensor>`` belongs to all
models. The metadata ``clients`` lists the names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from fedgraph.messages.frozen_layers import FrozenLayers
from fedgraph.models import Layout
from fedgraph.runs.reading import how_to_write_again
from fedgraph.support.errors import RunError
from fedgraph.support.files import read_tensors, write_tensors


def write_models(
    path: Path,
    layout: Layout,
    names: Sequence[str],
    models: Tensor,
    global_model: Tensor | None,
    frozen: FrozenLayers | None = None,
) -> None:
    """Write the models of all clients as ``models.safetensors``.

    Parameters
    ----------
    path : Path
        The file.
    layout : Layout
        Names and shapes of a model.
    names : sequence of str
        Clients, in the order of the rows of ``models``.
    models : Tensor
        ``[clients, parameters]``.
    global_model : Tensor or None
        ``[parameters]``, if the method has a global model.
    frozen : FrozenLayers, optional
        Layers of all models that are not in ``layout``.
    """
    stacked = layout.unflatten(models)
    tensors = {f"clients/{name}": value for name, value in stacked.items()}
    if global_model is not None:
        tensors |= {f"global/{name}": value for name, value in layout.row_state(global_model).items()}
    if frozen is not None:
        tensors |= {f"frozen/{name}": value for name, value in frozen.layout.row_state(frozen.row).items()}
    write_tensors(path, tensors, {"clients": json.dumps(list(names))})


def load_models(path: str | Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tensor] | None]:
    """Read ``models.safetensors``.

    Returns
    -------
    clients : dict of str to dict of str to Tensor
        State dict of each client's model, by name.
    global_model : dict of str to Tensor or None
        State dict of the global model, if any.

    Raises
    ------
    RunError
        When the file is missing or broken.
    """
    try:
        tensors, metadata = read_tensors(Path(path))
        names = json.loads(metadata["clients"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"cannot read {path} ({error}): {how_to_write_again(Path(path).parent)}") from None
    stacked = {key.removeprefix("clients/"): value for key, value in tensors.items() if key.startswith("clients/")}
    shared = {key.removeprefix("global/"): value for key, value in tensors.items() if key.startswith("global/")}
    frozen = {key.removeprefix("frozen/"): value for key, value in tensors.items() if key.startswith("frozen/")}
    clients = {
        name: {**{key: value[row] for key, value in stacked.items()}, **frozen} for row, name in enumerate(names)
    }
    return clients, {**shared, **frozen} if shared else None
