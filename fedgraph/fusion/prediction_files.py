"""``predictions.csv`` and ``entropies.csv``: predictions of samples, and the agreement of owners on them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fedgraph.data.owners import SAMPLE_SPLITS
from fedgraph.fusion.joined_samples import JoinedSamples
from fedgraph.fusion.scores import decided
from fedgraph.support.csv_text import as_csv
from fedgraph.support.files import write_atomically


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
    """Compute the entropy in bits, ``[samples]``, of the classes predicted by the owners that have the sample.

    Parameters
    ----------
    predictions : probabilities ``[samples, owners, classes]``.
    present : bool ``[samples, owners]``.
    """
    votes = torch.nn.functional.one_hot(decided(predictions), predictions.shape[2]) * present[..., None]
    shares = votes.sum(1).double() / present.sum(1, keepdim=True).clamp(min=1)
    return -torch.special.xlogy(shares, shares).sum(1) / torch.log(torch.tensor(2.0, dtype=torch.float64)) + 0.0


def _samples(joined: JoinedSamples) -> list[tuple[str, str, str]]:
    """Return key, split and label of every sample."""
    splits = [SAMPLE_SPLITS[place] for place in joined.split.tolist()]
    labels = [joined.classes[label] if label >= 0 else "" for label in joined.labels.tolist()]
    return list(zip(joined.keys, splits, labels, strict=True))
