"""Files of results: ``models.safetensors`` with the final models of a run, and predictions of samples (F3).

In ``models.safetensors``, ``clients/<tensor>`` has a leading client axis and ``global/<tensor>`` has none; all of these
models have ``frozen/<tensor>`` too. The metadata ``clients`` lists the names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from fedgraph.data.owners import SAMPLE_SPLITS
from fedgraph.federation import JoinedSamples
from fedgraph.fusion import decided
from fedgraph.methods.frozen_layers import FrozenLayers
from fedgraph.models import Layout
from fedgraph.support.files import as_csv, write_atomically


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
        Layers that all models have, and that ``layout`` does not.
    """
    stacked = layout.unflatten(models)
    tensors = {f"clients/{name}": value.contiguous() for name, value in stacked.items()}
    if global_model is not None:
        tensors |= {f"global/{name}": value for name, value in layout.row_state(global_model).items()}
    if frozen is not None:
        tensors |= {f"frozen/{name}": value for name, value in frozen.layout.row_state(frozen.row).items()}
    write_atomically(path, save(tensors, metadata={"clients": json.dumps(list(names))}))


def load_models(path: str | Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tensor] | None]:
    """Read ``models.safetensors``.

    Returns
    -------
    clients : dict of str to dict of str to Tensor
        State dict of each client's model, by name.
    global_model : dict of str to Tensor or None
        State dict of the global model, None without one.
    """
    with safe_open(str(path), framework="pt") as stream:
        names = json.loads(stream.metadata()["clients"])
        tensors = {key: stream.get_tensor(key) for key in stream.keys()}  # noqa: SIM118
    stacked = {key.removeprefix("clients/"): value for key, value in tensors.items() if key.startswith("clients/")}
    shared = {key.removeprefix("global/"): value for key, value in tensors.items() if key.startswith("global/")}
    frozen = {key.removeprefix("frozen/"): value for key, value in tensors.items() if key.startswith("frozen/")}
    clients = {
        name: {**{key: value[row] for key, value in stacked.items()}, **frozen} for row, name in enumerate(names)
    }
    return clients, {**shared, **frozen} if shared else None


def write_predictions(path: Path, joined: JoinedSamples, probabilities: Tensor, deviations: Tensor) -> None:
    """Write predictions of samples as CSV, a line per sample.

    The columns are key, split, label, predicted class, number of owners that have the sample, and the probability and
    the deviation of each class. Labels and predictions are names of classes; the label of a new sample is empty.

    Parameters
    ----------
    path : Path
        The file.
    joined : JoinedSamples
        The samples.
    probabilities, deviations : Tensor
        ``[samples, classes]``; deviations are over graph draws.
    """
    classes = joined.classes
    heads = ["key", "split", "label", "predicted", "owners"]
    heads += [f"probability {name}" for name in classes] + [f"deviation {name}" for name in classes]
    numbers = torch.cat([probabilities, deviations], dim=1).tolist()
    predicted, counts = decided(probabilities).tolist(), joined.present.sum(1).tolist()
    lines = (
        [key, split, label, classes[guess], count, *(f"{number:.6g}" for number in row)]
        for (key, split, label), guess, count, row in zip(_samples(joined), predicted, counts, numbers, strict=True)
    )
    write_atomically(path, as_csv([heads, *lines]).encode())


def write_entropies(path: Path, joined: JoinedSamples) -> None:
    """Write the entropy of each sample's predicted classes over owners as CSV, a line per sample.

    The columns are key, split, and the entropy in bits of the classes that the owners' own models predict; 0 where all
    owners agree (Ma, Hoang, Chen; UAI 2023, figure 3).

    Parameters
    ----------
    path : Path
        The file.
    joined : JoinedSamples
        The samples, with predictions of the owners' own models.
    """
    values = entropies(joined.predictions, joined.present).tolist()
    lines = ([key, split, f"{value:.6f}"] for (key, split, _), value in zip(_samples(joined), values, strict=True))
    write_atomically(path, as_csv([["key", "split", "entropy"], *lines]).encode())


def entropies(predictions: Tensor, present: Tensor) -> Tensor:
    """Compute the entropy in bits, ``[samples]``, of the predicted classes of the owners that have the sample.

    Parameters
    ----------
    predictions : Tensor
        Probabilities ``[samples, owners, classes]``.
    present : Tensor
        bool ``[samples, owners]``.
    """
    votes = torch.nn.functional.one_hot(decided(predictions), predictions.shape[2]) * present[..., None]
    shares = votes.sum(1).double() / present.sum(1, keepdim=True).clamp(min=1)
    return -torch.special.xlogy(shares, shares).sum(1) / torch.log(torch.tensor(2.0, dtype=torch.float64)) + 0.0


def _samples(joined: JoinedSamples) -> list[tuple[str, str, str]]:
    """Return key, split and label of every sample."""
    splits = [SAMPLE_SPLITS[place] for place in joined.split.tolist()]
    labels = [joined.classes[label] if label >= 0 else "" for label in joined.labels.tolist()]
    return list(zip(joined.keys, splits, labels, strict=True))
