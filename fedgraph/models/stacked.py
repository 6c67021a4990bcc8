"""Base of the stacked models, with layout and initial values from their twin, and their layers.

Convolutions of many clients are folded into channels, all of them in one grouped convolution, which suits a GPU. On a
CPU that is the slowest way: there clients are computed one after the other (:mod:`fedgraph.training.working_set`), with
channels last in memory, as PyTorch's kernels like it best.
"""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgraph.models.base import StackedModel, TaskSpec
from fedgraph.models.parameters import Layout


class ModelFromTwin(StackedModel):
    """A stacked model with the names, shapes and initial values of an ordinary module, its twin.

    A built-in model is an embedding and a linear layer called ``head``.
    """

    def __init__(self, task: TaskSpec) -> None:
        self.task = task

    @abstractmethod
    def build_twin(self) -> nn.Module:
        """Build the twin with fresh parameters; may draw from torch's global generator."""

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


def folded(images: Tensor) -> Tensor:
    """Fold clients into channels: ``[clients, batch, channels, ...]`` -> ``[batch, clients * channels, ...]``."""
    values = images.transpose(0, 1).flatten(1, 2)
    return values.to(memory_format=torch.channels_last) if _convolve_clients(images) else values


def unfolded(values: Tensor, clients: int) -> Tensor:
    """Return ``[batch, clients * channels, ...]`` as ``[clients, batch, channels, ...]``; undoes :func:`folded`."""
    return values.unflatten(1, (clients, -1)).transpose(0, 1)


def convolution(values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve each client's channels with its own kernels, with a margin that keeps the size of images.

    Returns ``[batch, clients * channels_out, height, width]``.

    Parameters
    ----------
    values : ``[batch, clients * channels_in, height, width]``, of :func:`folded`.
    weight : ``[clients, channels_out, channels_in, 3, 3]``.
    bias : ``[clients, channels_out]``.
    """
    kernels = weight.flatten(0, 1)
    if _convolve_clients(weight):
        kernels = kernels.to(memory_format=torch.channels_last)
    return functional.conv2d(values, kernels, None if bias is None else bias.flatten(), padding=1, groups=len(weight))


def _convolve_clients(tensor: Tensor) -> bool:
    return len(tensor) == 1 and tensor.device.type == "cpu"
