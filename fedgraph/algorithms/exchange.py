"""The data that an algorithm and its runner exchange: clients, requests, and answers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedgraph.algorithms.model_rows import Models, combined, matrix
from fedgraph.data import SplitName
from fedgraph.graph import ClientGraph, weighted_mean
from fedgraph.models import Layout, TaskSpec
from fedgraph.training import TrainSettings

State = dict[str, Any]
"""The state of an algorithm: tensors and JSON values, with all models under ``models``. It is the checkpoint."""


def own_splits(data: Mapping[str, Any], splits: Sequence[SplitName]) -> tuple[SplitName, ...]:
    """Return the splits whose metrics depend on a client's own data, given the values of ``[data]``.

    Those of shared rows do where every client scales them by its own data.
    """
    shared = data.get("test") == "shared" and data.get("scaling") != "client"
    return tuple(split for split in splits if not (shared and split == "test"))


@dataclass(frozen=True)
class RunFacts:
    """Facts about the run, with which an algorithm can check its settings.

    Attributes
    ----------
    rounds : int or None
        Number of rounds; None where it is not known.
    own_splits : tuple of str
        Evaluated splits of clients' own data, see :func:`own_splits`.
    averages : str
        ``mean``, or the robust average that replaces it.
    keeps_last : bool
        Whether earlier answers of absent clients stand in for those that are missing.
    train : TrainSettings or None
        How clients train; None if unknown.
    nodes : int or None
        Number of nodes that host the clients; None where it is not known.
    task : TaskSpec or None
        The task that all clients have in common.
    model : mapping
        The table ``[model]``.
    room : callable or None
        Returns the number of examples of a split that tensors over all clients must hold.
    """

    rounds: int | None = None
    own_splits: tuple[str, ...] = ()
    averages: str = "mean"
    keeps_last: bool = False
    train: TrainSettings | None = None
    nodes: int | None = None
    task: TaskSpec | None = None
    model: Mapping[str, Any] = field(default_factory=dict)
    room: Callable[[SplitName], int] | None = None


@dataclass(frozen=True)
class Clients:
    """The clients of a run; everything indexed by client follows ``names``.

    Attributes
    ----------
    names : tuple of str
        Their names, sorted.
    num_examples : Tensor
        Their training examples, ``[clients]``, bounded as ``[defence] most-examples`` says; 1 where not yet known. In
        Flower apps clients may send other weights.
    layout : Layout
        Names and shapes of the part of a model that is exchanged.
    graph : ClientGraph or None
        The given client graph over ``names``.
    seed : int
        Of the run.
    initial : callable or None
        Returns an initial model ``[parameters]`` that is drawn for a client, given its name; None if there is none.
    facts : RunFacts
        Further facts about the run.
    """

    names: tuple[str, ...]
    num_examples: Tensor
    layout: Layout
    graph: ClientGraph | None = None
    seed: int = 0
    initial: Callable[[str], Tensor] | None = None
    facts: RunFacts = field(default_factory=RunFacts)

    def __len__(self) -> int:
        return len(self.names)

    def drawn_models(self) -> Tensor:
        """Draw an initial model for each client, ``[clients, parameters]``; see ``initial``."""
        assert self.initial is not None
        return torch.stack([self.initial(name) for name in self.names])


@dataclass(frozen=True)
class Ask:
    """One exchange: sent to clients; they train, and answer with the tensors named in ``returns``.

    Attributes
    ----------
    stacked : mapping of str to Tensor
        ``[clients, ...]``; every client gets its row. Models are called ``parameters``.
    shared : mapping of str to Tensor
        Tensors for all clients. A common model is called ``parameters``.
    returns : mapping of str to tuple of int
        Shapes of a client's answers, by name; by default its trained model, ``parameters``.
    to : Tensor or None
        Positions of the addressed clients, int64; None for all.
    models : tuple of str
        Names of those shared tensors that are models, ``[parameters]`` or ``[models, parameters]``.
    further : callable or None
        Given positions of clients, and whether their models are evaluated before training, returns further shared
        tensors for these.
    types : mapping of str to str
        NumPy types of answers that are not float32, by name.
    evaluates : tuple of str
        Splits on which clients evaluate the models, instead of training; they only return metrics.
    means : bool
        Whether the mean of a node's models, weighted by their examples, suffices instead of each of them.
    number : int or None
        Number of the round that it belongs to; None for the one that is run.
    """

    stacked: Mapping[str, Models]
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    returns: Mapping[str, tuple[int, ...]] | None = None
    to: Tensor | None = None
    models: tuple[str, ...] = ()
    further: Callable[[Tensor, bool], Mapping[str, Tensor]] | None = None
    types: Mapping[str, str] = field(default_factory=dict)
    evaluates: tuple[SplitName, ...] = ()
    means: bool = False
    number: int | None = None

    @property
    def trains(self) -> bool:
        """Whether clients answer models that they have trained."""
        return not self.evaluates and (self.returns is None or "parameters" in self.returns)


@dataclass(frozen=True)
class Answers:
    """Usable answers of one exchange.

    Attributes
    ----------
    positions : Tensor
        Positions of the clients that answered, int64 ``[present]``, ascending.
    names : tuple of str
        Their names.
    tensors : mapping of str to Tensor
        What they sent, each ``[present, ...]``.
    num_examples : Tensor
        Their training examples, int64 ``[present]``, bounded as those of :class:`Clients`.
    graph : ClientGraph or None
        The given client graph among them.
    fresh : Tensor
        Answers of this exchange, bool ``[present]``; others replace those of absent clients.
    robust : callable or None
        Function of rows ``[present, columns]`` and weights ``[targets, present]`` that returns robust averages
        ``[targets, columns]`` in place of weighted means.
    metrics : mapping of str to Tensor
        Numbers that clients of the engine report, such as their loss, each float64 ``[present]``.
    means : mapping of tuple of int to Tensor
        If the exchange asked for means: that of several clients ``[parameters]``, by their positions.
    """

    positions: Tensor
    names: tuple[str, ...]
    tensors: Mapping[str, Models]
    num_examples: Tensor
    graph: ClientGraph | None
    fresh: Tensor
    robust: Callable[[Tensor, Tensor], Tensor] | None = None
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    means: Mapping[tuple[int, ...], Tensor] = field(default_factory=dict)

    @property
    def models(self) -> Models:
        """Trained models, as they came."""
        return self.tensors["parameters"]

    @property
    def parameters(self) -> Tensor:
        """Trained models as one matrix, ``[present, parameters]``."""
        return matrix(self.models)

    def average(self, weights: Tensor) -> Tensor:
        """Return the weighted mean of the models, weights ``[present]``, or the robust average."""
        if self.robust is None:
            return combined(self.models, lambda rows: weighted_mean(rows, weights))
        shares = weights.double() if bool((weights > 0).any()) else torch.ones(len(weights))
        return self.robust(self.parameters, shares[None])[0]


Round = Generator[Ask, Answers, State]
"""A round: yields exchanges, receives answers, and returns the next state."""

Evaluation = Generator[Ask, Answers, None]
"""An evaluation: yields exchanges, one of them with ``evaluates``."""
