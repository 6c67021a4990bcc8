"""Layers of fusion networks: linear ones with initial weights drawn by a generator, and the scaling of embeddings.

Scaling is not part of the paper (F3: Ma, Hoang, Chen; UAI 2023): it affects initialisation and convergence, not the
expressiveness of a fusion network, as a free P_i (section 4) and the first bias include it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

Scaling = Literal["none", "owner"]

_SMALLEST = 1e-6


class Linear(nn.Module):
    """A linear layer with weights drawn by ``generator`` and a bias initialised to 0."""

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(glorot(inputs, outputs, generator))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, values: Tensor) -> Tensor:
        """Map ``[..., inputs]`` to ``[..., outputs]``."""
        return values @ self.weight + self.bias


class Perceptron(nn.ModuleList):
    """Linear layers of these ``widths`` with ReLU between them; no layer for a single width."""

    def __init__(self, widths: Sequence[int], generator: torch.Generator) -> None:
        super().__init__(Linear(*shape, generator) for shape in pairwise(widths))

    @property
    def output(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the last layer."""
        last = self[-1]
        assert isinstance(last, Linear)
        return last.weight, last.bias

    def forward(self, values: Tensor) -> Tensor:
        """Map ``[..., first width]`` to ``[..., last width]``."""
        for place, layer in enumerate(self):
            values = layer(values if place == 0 else values.relu())
        return values


def glorot(inputs: int, outputs: int, generator: torch.Generator) -> Tensor:
    """Draw a weight ``[inputs, outputs]`` from Glorot's (Xavier's) uniform distribution."""
    bound = (6 / (inputs + outputs)) ** 0.5
    return bound * (2 * torch.rand(inputs, outputs, generator=generator) - 1)


class EmbeddingScaling(nn.Module):
    """``f_i (h_i - c_i)`` for every owner i, with mean 0 and an average variance of 1 on training samples.

    sizes : int64 ``[owners]``, the length of each owner's embedding; ``size`` is the longest.
    """

    sizes: Tensor
    centre: Tensor
    factor: Tensor

    def __init__(self, sizes: Tensor, size: int) -> None:
        super().__init__()
        self.register_buffer("sizes", sizes, persistent=False)
        self.register_buffer("centre", torch.zeros(len(sizes), size))
        self.register_buffer("factor", torch.ones(len(sizes)))

    def forward(self, embeddings: Tensor, present: Tensor) -> Tensor:
        """Scale ``[batch, owners, size]``; 0 where an owner is absent."""
        return (embeddings - self.centre) * (self.factor * present)[..., None]

    @torch.no_grad()
    def fit(self, embeddings: Tensor, present: Tensor) -> None:
        """Compute c and f from training samples ``[samples, owners, size]``; f is 0 for nearly constant embeddings."""
        there = present[..., None].double()
        number = there.sum(0).clamp(min=1)
        centre = (embeddings * there).sum(0) / number
        squares = ((embeddings - centre) * there).square().sum((0, 2))
        deviation = (squares / (number[:, 0] * self.sizes)).sqrt()
        self.centre.copy_(centre)
        self.factor.copy_(torch.where(deviation > _SMALLEST, 1 / deviation, 0.0))
