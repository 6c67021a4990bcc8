"""Interface between models and cohorts: task, minibatches and stacked model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from fedgraph.models.graphs.table import GraphTable, Level
from fedgraph.models.parameters import Layout


@dataclass(frozen=True)
class TaskSpec:
    """The learning task, equal for all clients of a run.

    Attributes
    ----------
    kind : {"forecast", "classification", "regression"}
        Targets are ``[steps]``, a class index, or one number.
    input_shape : tuple of int
        Shape of one input, e.g. ``(12, 1)`` steps x features, ``(1, 28, 28)``, ``(30,)``.
    output_shape : tuple of int
        Shape of one output of the model, e.g. ``(12,)`` steps or ``(10,)`` classes.
    step_minutes : float
        Minutes between two forecast steps; 0 if steps have no known length.
    unit : str
        Unit of the targets for people, e.g. ``mph``; empty if there is none.
    features, classes : tuple of str
        Names of the input features and of the classes, if they have any.
    positive : int or None
        Index of the positive class, such as a rare event, by whose probability examples are ranked; or None.
    level : {"", "node", "graph"}
        For graphs, whether an example is a node or a graph. Inputs are then ``(features,)`` of a node.
    clock : {"", "UTC", "local"}
        Of the times of series: UTC, where files give a zone or seconds from 1970, or local; empty if unknown. Tasks
        that differ in it alone are equal.
    """

    kind: Literal["forecast", "classification", "regression"]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    step_minutes: float = 0.0
    unit: str = ""
    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    positive: int | None = None
    level: Level = ""
    clock: Literal["", "UTC", "local"] = field(default="", compare=False)

    @property
    def example_shape(self) -> tuple[int, ...]:
        """Shape of an example in a minibatch, that of an input, or one number that refers to a :class:`GraphTable`."""
        return (1,) if self.level else self.input_shape


class Batch(NamedTuple):
    """One minibatch of every client of a cohort.

    Attributes
    ----------
    inputs : Tensor
        ``[clients, batch, *example_shape]`` float32.
    targets : Tensor
        ``[clients, batch, *output_shape]`` float32, or ``[clients, batch]`` int64 class indices.
    weights : Tensor
        float32, shape of ``targets``: 1 where a target counts, 0 for padding and missing readings.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor


class BatchRows(Protocol):
    """Minibatches by the positions of their examples, which are gathered lazily.

    Attributes
    ----------
    inputs : ``[examples, *input_shape]``, uint8 or float32.
    targets : ``[examples, *output_shape]`` float32, or ``[examples]`` int64 class indices.
    rows : examples of every minibatch, int64 ``[clients, steps, batch]``, -1 for padding.
    scale, shift : broadcast to one input: a minibatch contains ``inputs * scale + shift``.
    """

    @property
    def inputs(self) -> Tensor: ...  # noqa: D102

    @property
    def targets(self) -> Tensor: ...  # noqa: D102

    @property
    def rows(self) -> Tensor: ...  # noqa: D102

    @property
    def scale(self) -> Tensor | None: ...  # noqa: D102

    @property
    def shift(self) -> Tensor | None: ...  # noqa: D102


class StackedModel(ABC):
    """One architecture, evaluated for all clients of a block in stacked tensor operations.

    What is not abstract is that of a model without random draws, native code and graphs.
    """

    @property
    def draws(self) -> bool:
        """Whether the forward pass in training draws random numbers."""
        return False

    @property
    def draws_apart(self) -> bool:
        """Whether a thread's draws can come from its own generator, see :mod:`fedgraph.models.own_draws`."""
        return True

    @property
    def draws_hashed(self) -> bool:
        """Whether each client's draws can be hashes, see :mod:`fedgraph.models.hashed_draws`."""
        return True

    @property
    def draws_padded(self) -> bool:
        """Whether padding a minibatch changes no other example's output in training where draws are hashes."""
        return not self.mixes_examples(training=True)

    @property
    def sequential(self) -> bool:
        """Whether the model is computed client after client on a CPU, as with convolutions."""
        return False

    @property
    def native(self) -> bool:
        """Whether native code of its own computes the model on a CPU, where ``torch.compile`` has nothing to add."""
        return False

    @property
    def library(self) -> object | None:
        """The compiled native code of the model on this node; None if there is none, or it cannot be compiled."""
        return None

    @property
    def least_examples(self) -> int:
        """Fewest examples of a minibatch to train on, 2 where the layers of one example have no statistics, else 1."""
        return 1

    def mixes_examples(self, training: bool) -> bool:
        """Whether outputs depend on other examples of the minibatch, as with batch normalisation in training."""
        return training and bool(self.layout.buffers)

    def compiled(self) -> StackedModel:
        """Return the same model with ``native`` on, if it has native code; else itself."""
        return self

    def with_graphs(self, graphs: GraphTable) -> Self:
        """Return the model for examples that are nodes or graphs of a table; itself if it knows no graphs."""
        return self

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """Names and shapes of one client's tensors; the names are those of ``twin().state_dict()``."""

    @abstractmethod
    def initial(self, generator: torch.Generator) -> Tensor:
        """Draw an initial model ``[parameters]`` from ``generator``."""

    @abstractmethod
    def forward(
        self, state: Mapping[str, Tensor], inputs: Tensor, training: bool
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Compute the outputs of all clients' models.

        Parameters
        ----------
        state : mapping of str to Tensor
            Every tensor of the layout with a leading client axis.
        inputs : Tensor
            ``[clients, batch, *input_shape]``.
        training : bool
            Whether layers such as dropout and batch normalisation are in training mode.

        Returns
        -------
        outputs : Tensor
            ``[clients, batch, *output_shape]``.
        changed : mapping of str to Tensor
            The buffers that changed, ``[clients, *shape]``.
        """

    @property
    @abstractmethod
    def embedding_size(self) -> int:
        """Length of an example's embedding, the input of the last linear layer."""

    @property
    @abstractmethod
    def head_tensors(self) -> tuple[str, ...]:
        """Names of the tensors of the last linear layer."""

    @abstractmethod
    def embed(self, state: Mapping[str, Tensor], inputs: Tensor, training: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Compute the inputs of the last linear layer and the buffers that changed.

        The former are ``[clients, batch, embedding_size]``; parameters and buffers are those of :meth:`forward`.
        """

    @abstractmethod
    def represent(self, state: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Compute embeddings and outputs in one pass in evaluation mode; see :meth:`embed` and :meth:`forward`."""

    @abstractmethod
    def twin(self) -> nn.Module:
        """Return the same architecture as an ordinary module for one client, with inputs ``[batch, *input_shape]``."""


class Differentiated(StackedModel):
    """A model without buffers and random draws that computes the gradient of its loss without autograd."""

    @abstractmethod
    def loss_gradient(self, loss: str, matrix: Tensor, batch: Batch) -> tuple[Tensor, Tensor] | None:
        """Compute the loss of all clients and its gradient.

        Returns the sums of :func:`fedgraph.training.metrics.loss_sums`, ``[2, clients]``, and the gradient of their
        mean, ``[clients, parameters]``. None for tensors or contexts without such code.

        Parameters
        ----------
        loss : str
            A key of :data:`fedgraph.training.metrics.LOSSES`.
        matrix : Tensor
            The models, ``[clients, parameters]``.
        batch : Batch
            A minibatch of every client.
        """

    @abstractmethod
    def descend(
        self, loss: str, matrix: Tensor, steps: Batch | BatchRows, rates: Tensor, decay: float, workers: int = 1
    ) -> Tensor | None:
        """Take steps of gradient descent in place: w <- (1 - rate decay) w - rate dL/dw.

        Returns sums over all steps as of :func:`fedgraph.training.metrics.loss_sums`, float64 ``[2, clients]``. None,
        with the models unchanged, for tensors or contexts without such code.

        Parameters
        ----------
        loss : str
            A key of :data:`fedgraph.training.metrics.LOSSES`.
        matrix : Tensor
            The models, ``[clients, parameters]``.
        steps : Batch or BatchRows
            Minibatches ``[clients, steps, batch, ...]``; of those by rows, empty ones are skipped.
        rates : Tensor
            Learning rates, float32 ``[clients, steps]``.
        decay : float
            Weight decay.
        workers : int
            Threads that share the clients; the result does not depend on it.
        """
