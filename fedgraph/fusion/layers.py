"""Linear layers with initial weights drawn by a given generator."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


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
