"""The contract between a model and the cohort that trains many copies of it at once: task, minibatches and model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fedgraph.models.parameters import Layout


@dataclass(frozen=True)
class TaskSpec:
    """What is learned, equal for all clients of a run. Travels in the identity reply, so it is plain data.

    kind         : ``forecast`` (targets ``[steps]``), ``classification`` (class index) or ``regression`` (one number).
    input_shape  : shape of one input, e.g. ``(12, 1)`` steps x features, ``(1, 28, 28)``, ``(30,)``.
    output_shape : shape of one output of the model, e.g. ``(12,)`` steps or ``(10,)`` classes.
    step_minutes : minutes between two forecast steps; 0 when steps have no known length.
    unit         : unit of the targets for people, e.g. ``mph``; empty when there is none.
    """

    kind: Literal["forecast", "classification", "regression"]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    step_minutes: float = 0.0
    unit: str = ""
    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


class Batch(NamedTuple):
    """One minibatch of every client of a cohort.

    inputs  : ``[clients, batch, *input_shape]`` float32.
    targets : ``[clients, batch, *output_shape]`` float32, or ``[clients, batch]`` int64 class indices.
    weights : float32, shape of ``targets``: 1 where a target counts, 0 for padding and missing readings.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor


class StackedModel(Protocol):
    """One architecture evaluated for all clients of a block in single tensor operations."""

    @property
    def draws(self) -> bool:
        """Whether the forward pass in training draws random numbers."""

    @property
    def native(self) -> bool:
        """Whether native code of its own computes it on a CPU, where ``torch.compile`` has nothing to add."""

    def compiled(self) -> StackedModel:
        """The same model with ``native`` on, where it has such code; else itself."""

    @property
    def layout(self) -> Layout:
        """Names and shapes of one client's tensors; the names are those of ``twin().state_dict()``."""

    def initial(self, generator: torch.Generator) -> Tensor:
        """One freshly initialised model as a row ``[parameters]``, drawn from ``generator`` alone."""

    def forward(
        self, state: Mapping[str, Tensor], inputs: Tensor, training: bool
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Outputs ``[clients, batch, *output_shape]`` and the buffers that changed, ``{name: [clients, *shape]}``.

        ``state`` holds every tensor of the layout with a leading client axis; ``inputs`` is
        ``[clients, batch, *input_shape]``.
        """

    @property
    def embedding_size(self) -> int:
        """Numbers that stand for one example before the last linear layer."""

    @property
    def head_tensors(self) -> tuple[str, ...]:
        """Names of the tensors of the last linear layer."""

    def embed(self, state: Mapping[str, Tensor], inputs: Tensor, training: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Inputs of the last linear layer ``[clients, batch, embedding_size]`` and the buffers that changed.

        Arguments are those of :meth:`forward`.
        """

    def represent(self, state: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings and outputs of one pass in evaluation; see :meth:`embed` and :meth:`forward`."""

    def twin(self) -> nn.Module:
        """The same architecture as an ordinary module for one client, inputs ``[batch, *input_shape]``."""


@runtime_checkable
class Differentiated(StackedModel, Protocol):
    """A model without buffers and draws for which the gradient of its loss is written out."""

    def loss_gradient(self, loss: str, matrix: Tensor, batch: Batch) -> tuple[Tensor, Tensor] | None:
        """The sums of :func:`fedgraph.training.metrics.loss_sums`, ``[2, clients]``, and the gradient of their mean.

        ``loss`` is a key of :data:`fedgraph.training.metrics.LOSSES`; the gradient is for the models ``matrix``,
        ``[clients, parameters]``. None for tensors, or in a context, for which it is not written out.
        """
