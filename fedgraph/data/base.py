"""Interfaces of data sets: client names, splits that return stacked batches, and a description of the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from fedgraph.models import Batch, TaskSpec
from fedgraph.models.graphs import GraphTable
from fedgraph.support.errors import DataError, some

if TYPE_CHECKING:
    from fedgraph.data.preprocessing import Preprocessing
    from fedgraph.graph import ClientGraph

SplitName = Literal["train", "validation", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")


def _whole(shares: tuple[float, float, float]) -> tuple[float, float, float]:
    if abs(sum(shares) - 1.0) > 1e-6 or shares[0] == 0.0:
        raise ValueError("the shares of train, validation and test must add up to 1, and train must not be 0")
    return shares


_Share = Annotated[float, Field(ge=0.0, le=1.0)]
Shares = Annotated[tuple[_Share, _Share, _Share], AfterValidator(_whole)]
"""Fractions of a client's examples for training, validation and test."""


Augment = Callable[[Tensor, Tensor], Tensor]
"""Random change of training inputs: ``(inputs [clients, batch, *input_shape], numbers [clients, batch]) -> inputs``.

``numbers`` are random int64, one per example, from which its draws are made. Padding is zero and stays zero.
"""


class Split(Protocol):
    """One split (train, validation or test) of a cohort.

    Attributes
    ----------
    num_examples : Tensor
        Number of examples of each client, int64 ``[clients]``.
    """

    @property
    def num_examples(self) -> Tensor:
        """Number of examples of each client, int64 ``[clients]``."""

    def batch(self, indices: Tensor) -> Batch:
        """Gather a batch of examples of each client.

        Returns stacked inputs, targets and weights.

        Parameters
        ----------
        indices : Tensor
            int64 ``[clients, batch]`` into each client's own examples, -1 for padding, on the device of the split. With
            fewer rows than there are clients, the rows belong to the first clients.
        """

    def select(self, clients: slice | Tensor) -> Split:
        """Return the split of some clients, or of all in another order; a slice gives a view, not a copy."""

    def to(self, device: torch.device) -> Split:
        """Return the split with its tensors on ``device``; the split itself if they are there already."""


@dataclass(frozen=True)
class CohortData:
    """The data of the clients of one node, ready for stacked training.

    Attributes
    ----------
    names : tuple of str
        The clients, in order.
    task : TaskSpec
        Inputs and outputs that a model needs.
    splits : mapping of SplitName to Split
        The training, validation and test examples.
    mean, std : Tensor
        Scale of the targets, float32 ``[clients]``: a model output ``y`` is ``y * std + mean`` in the task's unit
        (0 and 1 if targets are not scaled).
    label_counts : Tensor or None
        Number of training examples per class, int64 ``[clients, classes]``; None unless the task is classification.
    augment : Augment or None
        Random change of the inputs of training minibatches, if any.
    groups : tuple of str or None
        Group of each client, such as the road on which a sensor lies; None if the data has no groups.
    untrained : tuple of str
        The clients among ``names`` that have no training examples on purpose.
    moments : Tensor or None
        float64 ``[clients, 5]`` in the task's unit, if the scale of some clients is inferred from others: mean and
        standard deviation of recent training readings, mean and standard deviation of all training readings, and the
        number of all. The first two are NaN if there are too few recent readings, the second two if they are to be
        inferred.
    preprocessing : Preprocessing or None
        Maps new data of these clients to inputs, and outputs to predictions; None if the data set defines none.
    graphs : GraphTable or None
        The graphs of these clients, where examples are nodes or graphs, to which inputs refer by number.
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
    preprocessing: Preprocessing | None = None
    graphs: GraphTable | None = None


def check_clients(where: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Raise DataError if one of ``names`` is not a ``known`` client of the data set that ``where`` names."""
    every = set(known)
    unknown = [name for name in names if name not in every]
    if unknown:
        raise DataError(f"{where} has no client '{unknown[0]}'; its clients: {some(known)}")


class DataSource(Protocol):
    """One configured data set. Constructing it is cheap or cached; ``load`` reads what the named clients need.

    A source may also have an attribute ``coordinates``, the path of a CSV file with name, latitude and longitude of its
    clients, or None.
    """

    def client_names(self) -> list[str]:
        """Return all clients of the data set, in a stable order."""

    def load(self, names: Sequence[str]) -> CohortData:
        """Load the data of the clients ``names``, in that order.

        Raises DataError for unknown clients, for clients without training examples that are not ``untrained``, and for
        clients whose readings are all missing. The message names the client.
        """

    def given_graph(self) -> ClientGraph | None:
        """Return the client graph published with the data; by default there is none."""
        return None

    def describe(self) -> str:
        """Return a phrase for reports: which data, and which part of it.

        For example ``METR-LA, 29 of 207 sensors, 34,272 five-minute steps``.
        """
