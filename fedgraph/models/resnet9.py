"""ResNet9, the image model of Chen et al. (IJCAI 2022, section 5.2; the layers are those of their program).

Clients are folded into channels: one convolution and one batch normalisation compute all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from fedgraph.models.base import TaskSpec
from fedgraph.models.parameters import Layout
from fedgraph.models.stacked import ModelFromTwin, convolution, folded, unfolded
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import Settings

LOGIT_SCALE = 0.2
MOMENTUM = 0.1
"""Weight of a minibatch in the running statistics."""

SMALLEST = 8
"""Smallest side of an image in pixels, as it is halved three times."""


class ResNet9Settings(Settings):
    """``[model]`` with ``name = "resnet9"``.

    Attributes
    ----------
    width : number of channels of the first convolution.
    """

    name: str
    width: int = Field(default=64, ge=1)


class ConvolutionNorm(nn.Module):
    """A 3x3 convolution without bias, then batch normalisation."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels_out, momentum=MOMENTUM)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute values before ReLU, ``[batch, channels_out, height, width]``."""
        return self.norm(self.conv(inputs))


class ResNet9Twin(nn.Module):
    """One client's model: inputs ``[batch, channels, height, width]``, outputs ``[batch, *output_shape]``."""

    def __init__(self, task: TaskSpec, width: int, num_outputs: int) -> None:
        super().__init__()
        self.prep = ConvolutionNorm(task.input_shape[0], width)
        self.layer1 = ConvolutionNorm(width, 2 * width)
        self.residual1 = nn.ModuleList(ConvolutionNorm(2 * width, 2 * width) for _ in range(2))
        self.layer2 = ConvolutionNorm(2 * width, 4 * width)
        self.residual2 = nn.ModuleList(ConvolutionNorm(4 * width, 4 * width) for _ in range(2))
        self.layer3 = ConvolutionNorm(4 * width, 4 * width)
        self.head = nn.Linear(4 * width, num_outputs, bias=False)
        self.output_shape = task.output_shape

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the outputs of one client's batch."""
        values = self.prep(inputs).relu()
        for layer, residual in ((self.layer1, self.residual1), (self.layer2, self.residual2)):
            values = functional.max_pool2d(layer(values).relu(), 2)
            branch = values
            for each in residual:
                branch = each(branch).relu()
            values = values + branch
        values = functional.max_pool2d(self.layer3(values).relu(), 2)
        values = functional.max_pool2d(values, values.shape[-2:]).flatten(1)
        return LOGIT_SCALE * self.head(values).reshape(-1, *self.output_shape)


class ResNet9Model(ModelFromTwin):
    """ResNet9 for images ``[channels, height, width]`` of at least 8 x 8 pixels.

    3x3 convolutions with batch normalisation and ReLU, with the default width: 64 channels; 128, pooled, a residual
    block of two; 256, pooled, a residual block of two; 256, pooled; the maximum of every channel; a linear layer
    without bias; times 0.2. For three colours and ten classes it has 2,440,256 trained parameters, and 2,944 running
    statistics as buffers. Raises ExperimentError for inputs that are not such images.
    """

    sequential = True

    def __init__(self, settings: ResNet9Settings, task: TaskSpec) -> None:
        super().__init__(task)
        if len(task.input_shape) != 3 or min(task.input_shape[1:]) < SMALLEST:
            raise ExperimentError(
                "[model] name: 'resnet9' reads images of shape (channels, height, width), at least 8 x 8 pixels, but "
                f"one input of this data set has the shape {task.input_shape}; choose another model, e.g. cnn or mlp"
            )
        self.settings = settings

    def build_twin(self) -> nn.Module:
        """Return the same model of ``nn.Conv2d`` and ``nn.BatchNorm2d`` layers."""
        return ResNet9Twin(self.task, self.settings.width, self.num_outputs)

    @cached_property
    def layout(self) -> Layout:
        """Names and shapes of one client's tensors, without the unused counters of minibatches."""
        twin = self.twin()
        statistics = {name: value for name, value in twin.named_buffers() if value.is_floating_point()}
        return Layout.of(dict(twin.named_parameters()) | statistics, buffers=statistics)

    def embed(self, state: Mapping[str, Tensor], inputs: Tensor, training: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Compute embeddings of images ``[clients, batch, channels, height, width]``, and running statistics."""
        clients = inputs.shape[0]
        changed: dict[str, Tensor] = {}

        def layer(name: str, values: Tensor) -> Tensor:
            values = convolution(values, state[f"{name}.conv.weight"])
            # Copies, because batch normalisation changes the running statistics in place.
            mean, variance = (
                state[f"{name}.norm.running_{kind}"].detach().flatten().clone() for kind in ("mean", "var")
            )
            scale, shift = (state[f"{name}.norm.{kind}"].flatten() for kind in ("weight", "bias"))
            values = functional.batch_norm(values, mean, variance, scale, shift, training, MOMENTUM)
            if training:
                changed[f"{name}.norm.running_mean"] = mean.unflatten(0, (clients, -1))
                changed[f"{name}.norm.running_var"] = variance.unflatten(0, (clients, -1))
            return values

        values = layer("prep", folded(inputs)).relu_()
        for number in (1, 2):
            # Pooling before ReLU gives the same at a quarter of the cost.
            values = functional.max_pool2d(layer(f"layer{number}", values), 2).relu_()
            branch = values
            for position in (0, 1):
                branch = layer(f"residual{number}.{position}", branch).relu_()
            values = values + branch
        values = functional.max_pool2d(layer("layer3", values), 2).relu_()
        # An adaptive pooling has no deterministic gradient on a GPU.
        values = functional.max_pool2d(values, values.shape[-2:]).flatten(1)
        return unfolded(values, clients), changed

    def head(self, state: Mapping[str, Tensor], embeddings: Tensor) -> Tensor:
        """Apply the last layer, which has no bias and whose outputs are scaled."""
        return LOGIT_SCALE * (embeddings @ state["head.weight"].transpose(1, 2))
