"""Base of the stacked models: layout and initial values from their twin, and the linear layers."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from fedgraph.models.base import TaskSpec
from fedgraph.models.graphs.table import GraphTable
from fedgraph.models.parameters import Layout


class ModelFromTwin(ABC):
    """A stacked model with the names, shapes and initial values of an ordinary module, its twin.

    A built-in model is an embedding and a linear layer called ``head``.
    """

    def __init__(self, task: TaskSpec) -> None:
        self.task = task

    @property
    def draws(self) -> bool:
        """Whether the forward pass in training draws random numbers; False for all built-in models."""
        return False

    @property
    def draws_apart(self) -> bool:
        """Whether a thread's draws can come from its own generator; nothing is drawn by built-in models."""
        return True

    @property
    def draws_hashed(self) -> bool:
        """Whether each client's draws can be hashes; nothing is drawn by built-in models."""
        return True

    @property
    def draws_padded(self) -> bool:
        """Whether padding changes no other example's output in training; nothing is drawn by built-in models."""
        return not self.mixes_examples(training=True)

    @property
    def sequential(self) -> bool:
        """Whether clients are computed sequentially on a CPU; True for models of convolutions."""
        return False

    @property
    def native(self) -> bool:
        """Whether the model has native code; False for models of single operations, which ``torch.compile`` fuses."""
        return False

    @property
    def library(self) -> object | None:
        """The compiled native code of the model on this node; None if there is none, or it cannot be compiled."""
        return None

    def mixes_examples(self, training: bool) -> bool:
        """Whether examples of a minibatch influence each other's outputs, as by batch normalisation in training."""
        return training and bool(self.layout.buffers)

    @property
    def least_examples(self) -> int:
        """Fewest examples of a minibatch to train on; 1 for all built-in models."""
        return 1

    def compiled(self) -> Self:
        """Return the model itself."""
        return self

    def with_graphs(self, graphs: GraphTable) -> Self:
        """Return the model itself: what knows no graphs is not built for them."""
        return self

    @abstractmethod
    def build_twin(self) -> nn.Module:
        """Build the twin with fresh parameters; may draw from torch's global generator."""

    @abstractmethod
    def embed(self, state: Mapping[str, Tensor], inputs: Tensor, training: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """See :class:`fedgraph.models.base.StackedModel`."""

    def head(self, state: Mapping[str, Tensor], embeddings: Tensor) -> Tensor:
        """Apply the last layer: ``[clients, batch, embedding_size]`` -> ``[clients, batch, num_outputs]``."""
        return linear(state, "head", embeddings)

    def forward(
        self, state: Mapping[str, Tensor], inputs: Tensor, training: bool
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """See :class:`fedgraph.models.base.StackedModel`."""
        embeddings, changed = self.embed(state, inputs, training)
        return self.shaped(self.head(state, embeddings)), changed

    def represent(self, state: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`fedgraph.models.base.StackedModel`."""
        embeddings, _ = self.embed(state, inputs, training=False)
        return embeddings, self.shaped(self.head(state, embeddings))

    @property
    def head_tensors(self) -> tuple[str, ...]:
        """Names of the tensors of the last linear layer."""
        return tuple(name for name in self.layout.names if name.startswith("head."))

    @cached_property
    def embedding_size(self) -> int:
        """Number of columns of the last layer's weight."""
        return self.layout.shapes[self.layout.names.index("head.weight")][1]

    @cached_property
    def layout(self) -> Layout:
        """Names and shapes of one client's tensors."""
        return Layout.of(self.twin().state_dict())

    def twin(self) -> nn.Module:
        """Return the same architecture as an ordinary module for one client; does not change the global generator."""
        return without_global_draws(self.build_twin)

    def initial(self, generator: torch.Generator) -> Tensor:
        """Draw one model as PyTorch initialises the twin, from ``generator`` alone: ``[parameters]``."""
        seed = int(torch.randint(2**63 - 1, (), generator=generator))
        state = without_global_draws(self.build_twin, seed).state_dict()
        return self.layout.flatten({name: state[name].unsqueeze(0) for name in self.layout.names})[0]

    @property
    def num_outputs(self) -> int:
        """Number of outputs of the model per example."""
        return math.prod(self.task.output_shape)

    def shaped(self, outputs: Tensor) -> Tensor:
        """Reshape ``[clients, batch, num_outputs]`` to ``[clients, batch, *output_shape]``."""
        return outputs.reshape(*outputs.shape[:2], *self.task.output_shape)


def without_global_draws(build: Callable[[], nn.Module], seed: int | None = None) -> nn.Module:
    """Build a module whose initialisation starts from ``seed``, and restore the global generators.

    These are torch's and, where there is a seed, those of NumPy and Python.
    """
    if seed is None:
        with torch.random.fork_rng(devices=[]):
            return build()
    before = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            return build()
        finally:
            np.random.set_state(before[0])
            random.setstate(before[1])


def linear(state: Mapping[str, Tensor], name: str, inputs: Tensor) -> Tensor:
    """Apply the layer ``name`` of every client: ``[clients, batch, in]`` -> ``[clients, batch, out]``."""
    return torch.baddbmm(state[f"{name}.bias"].unsqueeze(1), inputs, state[f"{name}.weight"].transpose(1, 2))
