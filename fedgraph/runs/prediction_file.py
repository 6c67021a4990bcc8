"""``predictions.csv`` and ``entropies.csv``: what was predicted of every sample, and how far owners disagree on it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fedgraph.data.owners import SAMPLE_SPLITS
from fedgraph.federation import JoinedSamples
from fedgraph.fusion import decided
from fedgraph.support.files import as_csv, write_atomically


def write_predictions(path: Path, joined: JoinedSamples, probabilities: Tensor, deviations: Tensor) -> None:
    """A line per sample: key, split, label, predicted class, owners that have it; probability and deviation per class.

    ``probabilities``, ``deviations``: ``[samples, classes]``, the latter over graph draws. Label and prediction are
    names of classes; the label of a new sample is empty.
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
    """A line per sample: key, split, and the entropy in bits of the classes that the owners' own models predict.

    Ma, Hoang, Chen (UAI 2023), figure 3: 0 where all owners agree.
    """
    values = entropies(joined.predictions, joined.present).tolist()
    lines = ([key, split, f"{value:.6f}"] for (key, split, _), value in zip(_samples(joined), values, strict=True))
    write_atomically(path, as_csv([["key", "split", "entropy"], *lines]).encode())


def entropies(predictions: Tensor, present: Tensor) -> Tensor:
    """Entropy in bits, ``[samples]``, of the distribution of predicted classes over the owners that have the sample.

    predictions : ``[samples, owners, classes]``. present : bool ``[samples, owners]``.
    """
    votes = torch.nn.functional.one_hot(decided(predictions), predictions.shape[2]) * present[..., None]
    shares = votes.sum(1).double() / present.sum(1, keepdim=True).clamp(min=1)
    return -torch.special.xlogy(shares, shares).sum(1) / torch.log(torch.tensor(2.0, dtype=torch.float64)) + 0.0


def _samples(joined: JoinedSamples) -> list[tuple[str, str, str]]:
    """Key, split and label of every sample."""
    splits = [SAMPLE_SPLITS[place] for place in joined.split.tolist()]
    labels = [joined.classes[label] if label >= 0 else "" for label in joined.labels.tolist()]
    return list(zip(joined.keys, splits, labels, strict=True))
