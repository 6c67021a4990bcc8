"""Layers of many small perceptrons and their gradient, with each intermediate result written once.

PyTorch's autograd takes twice as long, as such layers are bound by memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


@dataclass(frozen=True)
class GroupedLayers:
    """Hidden layers with rectified outputs, and a last one without.

    weights : ``[clients, groups * width, inputs]``, then ``[clients * groups, width, width]`` of each further layer:
              from the second on, groups do not see each other.
    biases  : of the same layers, ``[clients * groups, width]``.
    head    : the last weights, ``[clients * groups, outputs, width]``.
    """

    weights: Sequence[Tensor]
    biases: Sequence[Tensor]
    head: Tensor

    def __call__(self, values: Tensor) -> Tensor:
        """Compute ``[clients, inputs, rows]`` -> ``[clients * groups, outputs, rows]``, differentiable once.

        The last inputs may be left out where they are 0.
        """
        result: Tensor = _Differentiable.apply(values, *self.weights, *self.biases, self.head)
        return result

    def forward(self, values: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Compute the output without gradients, and return the inputs of each layer too."""
        inputs = [values]
        for weight, bias in zip(self._weights_of(values), self.biases, strict=True):
            hidden = torch.bmm(weight, inputs[-1]).view(*bias.shape, -1).add_(bias[:, :, None])
            inputs.append(hidden.relu_())
        return torch.bmm(self.head, inputs[-1]), inputs

    def backward(self, inputs: Sequence[Tensor], gradient: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the gradients of weights, biases and head, and that before the first layer, from that of the output.

        ``inputs`` are those of :meth:`forward`; the last result is ``[clients, groups * width, rows]``.
        """
        of_head = torch.bmm(gradient, inputs[-1].transpose(1, 2))
        of_weights: list[Tensor] = []
        of_biases: list[Tensor] = []
        leaving = self.head
        for weight, before, after in reversed(list(zip(self.weights, inputs, inputs[1:], strict=False))):
            gradient = torch.bmm(leaving.transpose(1, 2), gradient)
            torch.ops.aten.threshold_backward.grad_input(gradient, after, 0, grad_input=gradient)
            of_biases.insert(0, gradient.sum(2))
            gradient = gradient.view(len(weight), weight.shape[1], -1)
            of_weights.insert(0, torch.bmm(gradient, before.transpose(1, 2)))
            leaving = weight
        left_out = self.weights[0].shape[2] - inputs[0].shape[1]
        of_weights[0] = functional.pad(of_weights[0], (0, left_out))
        return [*of_weights, *of_biases, of_head], gradient

    def of_values(self, values: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient of the values from that before the first layer."""
        return torch.bmm(self._weights_of(values)[0].transpose(1, 2), gradient)

    def _weights_of(self, values: Tensor) -> list[Tensor]:
        return [self.weights[0][:, :, : values.shape[1]], *self.weights[1:]]


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, *weights: Tensor) -> Tensor:
        ctx.count = len(weights)
        outputs, inputs = _layers(weights).forward(values)
        ctx.save_for_backward(*weights, *inputs)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors[ctx.count :]
        layers = _layers(ctx.saved_tensors[: ctx.count])
        of_weights, before = layers.backward(inputs, gradient)
        of_values = layers.of_values(inputs[0], before) if ctx.needs_input_grad[0] else None
        return of_values, *of_weights


def _layers(weights: Sequence[Tensor]) -> GroupedLayers:
    count = len(weights) // 2
    return GroupedLayers(weights[:count], weights[count:-1], weights[-1])
