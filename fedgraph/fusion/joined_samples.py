"""Samples whose features are divided among several owners, as tensors ``[samples, owners, ...]``."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedgraph.data.owners import SAMPLE_SPLITS
from fedgraph.models import TaskSpec
from fedgraph.support.errors import DataError, counted
from fedgraph.support.files import State

_NAMED = 5


@dataclass(frozen=True)
class JoinedSamples:
    """Samples of several owners; owners are sorted by name, samples by key.

    Attributes
    ----------
    owners : tuple of str
        Names of the owners.
    keys : tuple of str
        Keys of the samples.
    classes : tuple of str
        Names of the classes.
    split : Tensor
        int8 ``[samples]``, index into ``SAMPLE_SPLITS``.
    labels : Tensor
        int64 ``[samples]``, -1 if unknown.
    embeddings : Tensor
        float32 ``[samples, owners, size]``; 0 where an owner lacks the sample, and beyond the owner's own size.
    present : Tensor
        bool ``[samples, owners]``, whether an owner has the sample.
    predictions : Tensor
        float32 ``[samples, owners, classes]``, probabilities by the owners' own models; 0 where an owner lacks the
        sample; ``[samples, owners, 0]`` unless all nodes sent predictions.
    sizes : Tensor
        int64 ``[owners]``, length of each owner's embedding.
    fingerprints : tuple of str
        Fingerprint of each owner's frozen model.
    """

    owners: tuple[str, ...]
    keys: tuple[str, ...]
    classes: tuple[str, ...]
    split: Tensor
    labels: Tensor
    embeddings: Tensor
    present: Tensor
    predictions: Tensor
    sizes: Tensor
    fingerprints: tuple[str, ...]

    def of_split(self, name: str) -> Tensor:
        """Return the positions of the samples of a split, int64."""
        return (self.split == SAMPLE_SPLITS.index(name)).nonzero().flatten()

    def only(self, rows: Tensor) -> JoinedSamples:
        """Return some of the samples, selected by position or by a bool mask ``[samples]``."""
        places = torch.arange(len(self.keys))[rows].tolist()
        kept: dict[str, Any] = {name: getattr(self, name)[rows] for name in _OF_SAMPLES}
        return replace(self, keys=tuple(self.keys[place] for place in places), **kept)

    def without(self, lost: Container[str]) -> JoinedSamples:
        """Return the samples of the other owners; the columns of lost owners are empty."""
        stay = torch.tensor([owner not in lost for owner in self.owners])
        present = self.present & stay
        embeddings, predictions = self.embeddings * stay[:, None], self.predictions * stay[:, None]
        left = replace(self, present=present, embeddings=embeddings, predictions=predictions)
        return left.only(present.any(1))

    @property
    def names(self) -> tuple[str, ...]:
        """The owners, by the name that cohorts use."""
        return self.owners

    @property
    def label_counts(self) -> Tensor:
        """Training samples of each owner and class, int64 ``[owners, classes]``."""
        training = self.of_split("train")
        one_hot = torch.nn.functional.one_hot(self.labels[training], len(self.classes))
        return self.present[training].long().T @ one_hot

    @property
    def task(self) -> TaskSpec:
        """The learning task."""
        return TaskSpec("classification", (), (len(self.classes),), classes=self.classes)

    def state(self) -> State:
        """Return the samples as a state, for saving."""
        named = {name: getattr(self, name) for name in _TENSORS}
        texts = {name: list(getattr(self, name)) for name in _TEXTS}
        return {**named, **texts}

    @classmethod
    def of_state(cls, state: State) -> JoinedSamples:
        """Restore samples from :meth:`state`."""
        texts: dict[str, Any] = {name: tuple(state[name]) for name in _TEXTS}
        tensors: dict[str, Any] = {name: state[name] for name in _TENSORS}
        return cls(**texts, **tensors)


_OF_SAMPLES = ("split", "labels", "embeddings", "present", "predictions")
_TENSORS = (*_OF_SAMPLES, "sizes")
_TEXTS = ("owners", "keys", "classes", "fingerprints")


def check_shared(
    owners: Sequence[str],
    present: Tensor,
    keys: Sequence[object],
    word: str = "owner",
    ids: Mapping[str, Sequence[str]] | None = None,
) -> list[str]:
    """Return a sentence for each owner that shares no sample with another, as where ids are written differently.

    Raises DataError if no two owners share a sample.

    Parameters
    ----------
    present : bool ``[samples, owners]``.
    keys : of the samples.
    word : what an owner is called.
    ids : by owner the ids of its samples, where it has others than these as well.
    """
    shares = present[present.sum(1) > 1].any(0).tolist()
    isolated: dict[str, Sequence[str]] = {}
    for place, name in enumerate(owners):
        if shares[place]:
            continue
        rows = present[:, place].nonzero().flatten().tolist()
        own = [str(keys[row]) for row in rows] if ids is None else ids[name]
        if own:
            isolated[name] = own
    advice = f"the same sample needs the same id at every {word}, and a label at one of them"
    has = {name: f"{counted(len(own), 'sample')}, such as '{own[0]}'" for name, own in isolated.items()}
    if any(shares):
        return [
            f"{word} '{name}' shares no labelled sample with other {word}s; it has {what}: {advice}"
            for name, what in has.items()
        ]
    if len(has) > 1:
        listed = "; ".join(f"'{name}' has {what}" for name, what in list(has.items())[:_NAMED])
        raise DataError(f"no two {word}s share a labelled sample, which fusion needs ({listed}): {advice}")
    return []
