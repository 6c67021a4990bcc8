"""A client's model with its preprocessing, as a module to use and export."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedgraph.data.preprocessing.preprocessing import InputScale
from fedgraph.models import TaskSpec


class AnsweringOfGraphs(nn.Module):
    """A model of graphs that returns the probability of each class, of nodes or of whole graphs.

    It takes the arguments of its model: ``x``, ``edge_index``, and optionally ``edge_weight`` and ``batch``.

    Parameters
    ----------
    model : nn.Module
        The model.
    task : TaskSpec
        Names of classes, and shapes.
    """

    def __init__(self, model: nn.Module, task: TaskSpec) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, *given: Any, **named: Any) -> Tensor:
        """Return probabilities ``[nodes, classes]``, or ``[graphs, classes]``."""
        outputs: Tensor = self.model(*given, **named)
        return outputs.softmax(-1)


class Answering(nn.Module):
    """A model that takes and returns values in their own units.

    Missing values are NaN. Outputs are forecasts or numbers in their unit, or the probability of each class.

    Parameters
    ----------
    model : nn.Module
        Takes scaled inputs ``[batch, *input_shape]``.
    task : TaskSpec
        Names of features and classes, and shapes.
    scale : InputScale
        Of the inputs.
    mean, std : float
        An output ``y`` of the model is ``y * std + mean``.
    """

    def __init__(self, model: nn.Module, task: TaskSpec, scale: InputScale, mean: float, std: float) -> None:
        super().__init__()
        self.model, self.task = model, task
        for name in ("centre", "spread", "fill"):
            self.register_buffer(name, getattr(scale, name).float())
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32))

    def forward(self, values: Tensor) -> Tensor:
        """Return predictions ``[batch, *output_shape]`` for values ``[batch, *input_shape]``."""
        scale = InputScale(*(self.get_buffer(name) for name in ("centre", "spread", "fill")))
        outputs: Tensor = self.model(scale.inputs(values.float()))
        if self.task.kind == "classification":
            return outputs.softmax(-1)
        return outputs * self.get_buffer("std") + self.get_buffer("mean")
