"""A multi-layer perceptron with ReLU on flattened inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from fedgraph.models import perceptron_kernel
from fedgraph.models.base import Batch, BatchRows, Differentiated, TaskSpec
from fedgraph.models.stacked import ModelFromTwin, linear
from fedgraph.support.settings import Settings


class MLPSettings(Settings):
    """``[model]`` with ``name = "mlp"``.

    Attributes
    ----------
    hidden : widths of the hidden layers; with ``[]`` the model is linear.
    """

    name: str
    hidden: tuple[Annotated[int, Field(ge=1)], ...] = (200, 200)


class MLPTwin(nn.Module):
    """One client's model: inputs ``[batch, *input_shape]``, outputs ``[batch, *output_shape]``."""

    def __init__(self, sizes: list[int], output_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.hidden = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes[:-1]))
        self.head = nn.Linear(sizes[-2], sizes[-1])
        self.output_shape = output_shape

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the outputs of one client's batch."""
        values = inputs.flatten(1)
        for layer in self.hidden:
            values = layer(values).relu()
        return self.head(values).reshape(-1, *self.output_shape)


class MLPModel(ModelFromTwin):
    """A multi-layer perceptron for inputs of any shape: a classifier, forecaster or regressor."""

    def __init__(self, settings: MLPSettings, task: TaskSpec) -> None:
        super().__init__(task)
        self.settings = settings

    @property
    def sizes(self) -> list[int]:
        """Number of inputs of the first layer, and of outputs of each layer."""
        return [math.prod(self.task.input_shape), *self.settings.hidden, self.num_outputs]

    def compiled(self) -> NativeMLPModel:
        """Return the same model trained by native code.

        Compilation on the first batch takes a second.
        """
        return NativeMLPModel(self.settings, self.task)

    def build_twin(self) -> nn.Module:
        """Return the same model of ``nn.Linear`` layers."""
        return MLPTwin(self.sizes, self.task.output_shape)

    def embed(self, state: Mapping[str, Tensor], inputs: Tensor, training: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Compute the embeddings of inputs ``[clients, batch, *input_shape]``."""
        values = inputs.flatten(2)
        for layer in range(len(self.settings.hidden)):
            values = linear(state, f"hidden.{layer}", values).relu()
        return values, {}


class NativeMLPModel(MLPModel, Differentiated):
    """The same model, trained by C++ where possible; see :mod:`fedgraph.models.perceptron_kernel`."""

    native = True

    @property
    def library(self) -> object | None:
        """See :class:`fedgraph.models.base.StackedModel`."""
        return perceptron_kernel.library()

    def loss_gradient(self, loss: str, matrix: Tensor, batch: Batch) -> tuple[Tensor, Tensor] | None:
        """See :class:`fedgraph.models.base.Differentiated`."""
        if torch.is_autocast_enabled(matrix.device.type):
            return None
        return perceptron_kernel.loss_gradient(self.sizes, loss, matrix, batch)

    def descend(
        self, loss: str, matrix: Tensor, steps: Batch | BatchRows, rates: Tensor, decay: float, workers: int = 1
    ) -> Tensor | None:
        """See :class:`fedgraph.models.base.Differentiated`."""
        if torch.is_autocast_enabled(matrix.device.type):
            return None
        return perceptron_kernel.descend(self.sizes, loss, matrix, steps, rates, decay, workers)
