"""A convolutional network: blocks of 3x3 convolutions with ReLU and 2x2 max pooling, then linear layers.

Pooling comes before ReLU, which gives the same result at a quarter of the cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, pairwise
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from fedgraph.models.base import TaskSpec
from fedgraph.models.stacked import ModelFromTwin, convolution, folded, linear, unfolded
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import Settings

_Width = Annotated[int, Field(ge=1)]
_Block = Annotated[tuple[_Width, ...], Field(min_length=1)]


class CNNSettings(Settings):
    """``[model]`` with ``name = "cnn"``.

    Attributes
    ----------
    channels : of the convolutions, block by block; a block is one convolution or a list of several, followed by max
               pooling that halves the sides of its images. ``[[64, 64], [128, 128]]`` with ``hidden = [256, 256]`` has
               2.4 million parameters on images of 32 x 32 pixels.
    hidden   : widths of the linear layers before the last.
    """

    name: str
    channels: tuple[_Width | _Block, ...] = Field(default=(16, 32), min_length=1)
    hidden: tuple[_Width, ...] = ()

    @property
    def blocks(self) -> list[tuple[int, ...]]:
        """Channels of the convolutions of every block."""
        return [(block,) if isinstance(block, int) else block for block in self.channels]


class CNNTwin(nn.Module):
    """One client's model: inputs ``[batch, channels, height, width]``, outputs ``[batch, *output_shape]``."""

    def __init__(self, task: TaskSpec, settings: CNNSettings, num_outputs: int) -> None:
        super().__init__()
        colours, height, width = task.input_shape
        blocks, shrunk = settings.blocks, 2 ** len(settings.channels)
        for number, pair in enumerate(pairwise([colours, *chain(*blocks)]), start=1):
            self.add_module(f"conv{number}", nn.Conv2d(*pair, kernel_size=3, padding=1))
        sizes = [blocks[-1][-1] * (height // shrunk) * (width // shrunk), *settings.hidden]
        self.hidden = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        self.head = nn.Linear(sizes[-1], num_outputs)
        self.blocks, self.output_shape = blocks, task.output_shape

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the outputs of one client's batch."""
        values, number = inputs, 0
        for block in self.blocks:
            for _ in block:
                number += 1
                values = self.get_submodule(f"conv{number}")(values).relu()
            values = functional.max_pool2d(values, 2)
        values = values.flatten(1)
        for layer in self.hidden:
            values = layer(values).relu()
        return self.head(values).reshape(-1, *self.output_shape)


class CNNModel(ModelFromTwin):
    """A model of images ``[channels, height, width]``, whose sides every block halves.

    Raises ExperimentError for inputs that are not images, or images too small for that.
    """

    sequential = True

    def __init__(self, settings: CNNSettings, task: TaskSpec) -> None:
        super().__init__(task)
        least = 2 ** len(settings.channels)
        if len(task.input_shape) != 3 or min(task.input_shape[1:]) < least:
            raise ExperimentError(
                f"[model] name: 'cnn' reads images of shape (channels, height, width), at least {least} x {least} "
                f"pixels, but one input of this data set has the shape {task.input_shape}; choose another model, "
                "e.g. mlp"
            )
        self.settings = settings

    def build_twin(self) -> nn.Module:
        """Return the same model of ``nn.Conv2d`` layers."""
        return CNNTwin(self.task, self.settings, self.num_outputs)

    def embed(self, state: Mapping[str, Tensor], inputs: Tensor, training: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Compute the embeddings of images ``[clients, batch, channels, height, width]``."""
        clients, number = inputs.shape[0], 0
        values = folded(inputs)
        for block in self.settings.blocks:
            for place in range(len(block)):
                number += 1
                weight, bias = state[f"conv{number}.weight"], state[f"conv{number}.bias"]
                values = convolution(values, weight, bias)
                last = place == len(block) - 1
                values = (functional.max_pool2d(values, 2) if last else values).relu()
        values = unfolded(values, clients).flatten(2)
        for layer in range(len(self.settings.hidden)):
            values = linear(state, f"hidden.{layer}", values).relu()
        return values, {}
