"""What a data set must offer a cohort: names, splits that hand out stacked batches, and a description of the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from fedgraph.models import Batch, TaskSpec

if TYPE_CHECKING:
    from fedgraph.graph import ClientGraph

SplitName = Literal["train", "validation", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")


def _whole(shares: tuple[float, float, float]) -> tuple[float, float, float]:
    if abs(sum(shares) - 1.0) > 1e-6 or shares[0] == 0.0:
        raise ValueError("the shares of train, validation and test must add up to 1, and train must not be 0")
    return shares


_Share = Annotated[float, Field(ge=0.0, le=1.0)]
Shares = Annotated[tuple[_Share, _Share, _Share], AfterValidator(_whole)]
"""Parts of a client's examples for training, validation and test."""


Augment = Callable[[Tensor, Tensor], Tensor]
"""``(inputs [clients, batch, *input_shape], numbers [clients, batch]) -> inputs``, changed at random, for training.

``numbers`` are random int64 that stand for the draws of one example; padding is zero and stays so.
"""


class Split(Protocol):
    """One split (train, validation or test) of a cohort."""

    @property
    def num_examples(self) -> Tensor:
        """Examples of each client, int64 ``[clients]``."""

    def batch(self, indices: Tensor) -> Batch:
        """Gather examples; ``indices`` is int64 ``[clients, batch]`` into each client's own examples, -1 = padding.

        ``indices`` may have fewer rows than there are clients: they are those of the first clients. It lies on the
        device of the split.
        """

    def select(self, clients: slice | Tensor) -> Split:
        """The same split for some of the clients, or all in another order; for a slice a view, not a copy."""

    def to(self, device: torch.device) -> Split:
        """The same split with its tensors on ``device``; itself where they are there already."""


@dataclass(frozen=True)
class CohortData:
    """The data of the clients of one node, ready for stacked training.

    mean, std     : ``[clients]`` float32; a model output ``y`` means ``y * std + mean`` in the task's unit
                    (0 and 1 when targets are not scaled).
    label_counts  : int64 ``[clients, classes]`` of the training split for classification, else None.
    augment       : how the inputs of training minibatches are changed at random; None: not at all.
    groups        : a word per client, such as the road it lies on; None where the data knows no groups.
    untrained     : those of ``names`` that are meant to have no training examples.
    moments       : float64 ``[clients, 5]`` in the task's unit, where the scale of some clients comes from others:
                    mean and standard deviation of recent training readings, then of all, and the number of all. The
                    first two are NaN where too few were read, the second two where they are what is to be inferred.
    """

    names: tuple[str, ...]
    task: TaskSpec
    splits: Mapping[SplitName, Split]
    mean: Tensor
    std: Tensor
    label_counts: Tensor | None = None
    augment: Augment | None = None
    groups: tuple[str, ...] | None = None
    untrained: tuple[str, ...] = ()
    moments: Tensor | None = None


class DataSource(Protocol):
    """One configured data set. Building one is cheap or cached; ``load`` reads what the named clients need."""

    def client_names(self) -> list[str]:
        """All clients of the data set, in a stable order."""

    def load(self, names: Sequence[str]) -> CohortData:
        """The data of ``names``, in that order. Raises DataError naming the client for unknown names,
        clients without training examples that are not ``untrained``, and clients whose readings are all missing."""

    def given_graph(self) -> ClientGraph | None:
        """The relation graph published with the data, over client names; None when there is none."""

    def describe(self) -> str:
        """One plain phrase for reports: what data this is and which part of it, e.g.
        ``METR-LA, 29 of 207 sensors, 34,272 five-minute steps``."""


@dataclass(frozen=True)
class DataFile:
    """A file a data set can be read from.

    path     : where it is looked for, relative to the data folder.
    url      : where it is published; ``download`` says whether that address serves the file itself.
    sha256   : of the published file, None when the publisher gives none and we have not seen the file.
    """

    path: Path
    url: str
    download: bool = False
    sha256: str | None = None
    size_bytes: int | None = None


@dataclass(frozen=True)
class CatalogueEntry:
    """What ``fedgraph data`` prints about one named data set.

    alternatives : each is a complete set of files the data can be read from, in the order they are looked for.
    """

    name: str
    title: str
    licence: str
    size: str
    alternatives: tuple[tuple[DataFile, ...], ...] = ()
    notes: str = ""
