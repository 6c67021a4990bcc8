"""ResNet9 of many clients equals its twin: outputs, gradients and running statistics."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from fedgraph.models import build
from fedgraph.models.base import TaskSpec
from fedgraph.support.errors import ExperimentError

COLOURS = TaskSpec("classification", (3, 32, 32), (10,))
SMALL = TaskSpec("classification", (2, 16, 8), (4,))


def rows(model, clients):
    """Models that differ in everything, running statistics and normalisation included."""
    random = torch.Generator().manual_seed(5)
    matrix = torch.stack([model.initial(torch.Generator().manual_seed(i)) for i in range(clients)])
    state = model.layout.unflatten(matrix)
    for name, value in state.items():
        if ".norm." in name:
            value += 0.2 * torch.rand(value.shape, generator=random)
    return model.layout.flatten(state)


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("training", [True, False])
def test_equals_the_twin(training, clients):
    model = build({"name": "resnet9", "width": 3}, SMALL)
    matrix = rows(model, clients).requires_grad_()
    before = matrix.detach().clone()
    inputs = torch.randn(clients, 6, *SMALL.input_shape, generator=torch.Generator().manual_seed(1))
    outputs, changed = model.forward(model.layout.unflatten(matrix), inputs, training)
    assert outputs.shape == (clients, 6, 4)
    (gradient,) = torch.autograd.grad(outputs.square().sum(), matrix)
    assert torch.equal(matrix.detach(), before), "the state handed in stays as it is"
    assert set(changed) == (model.layout.buffers if training else set())
    for client in range(clients):
        twin = model.twin().train(training)
        twin.load_state_dict(model.layout.row_state(before[client]))
        expected = twin(inputs[client])
        torch.testing.assert_close(outputs[client], expected, atol=1e-5, rtol=1e-4)
        for name, value in changed.items():
            torch.testing.assert_close(value[client], twin.state_dict()[name])
            assert not value.requires_grad
        expected.square().sum().backward()
        flat = torch.cat([value.grad.flatten() for value in twin.parameters()])
        torch.testing.assert_close(gradient[client, : model.layout.num_trainable], flat, atol=1e-5, rtol=1e-3)


def test_the_twin_is_the_network_of_the_paper():
    """Against the layers written out with plain functions, in evaluation mode."""
    model = build({"name": "resnet9", "width": 2}, SMALL)
    state = model.layout.row_state(rows(model, 1)[0])
    inputs = torch.randn(5, *SMALL.input_shape, generator=torch.Generator().manual_seed(2))

    def block(values, name):
        values = functional.conv2d(values, state[f"{name}.conv.weight"], padding=1)
        mean, variance, scale, shift = (
            state[f"{name}.norm.{kind}"][:, None, None] for kind in ("running_mean", "running_var", "weight", "bias")
        )
        return ((values - mean) / (variance + 1e-5).sqrt() * scale + shift).clamp(min=0)

    values = functional.max_pool2d(block(block(inputs, "prep"), "layer1"), 2)
    values = values + block(block(values, "residual1.0"), "residual1.1")
    values = functional.max_pool2d(block(values, "layer2"), 2)
    values = values + block(block(values, "residual2.0"), "residual2.1")
    values = functional.max_pool2d(block(values, "layer3"), 2).amax((2, 3))
    twin = model.twin().eval()
    twin.load_state_dict(state)
    torch.testing.assert_close(twin(inputs), 0.2 * values @ state["head.weight"].T, atol=1e-6, rtol=1e-4)


def test_size_and_layout_are_those_of_the_paper():
    layout = build({"name": "resnet9"}, COLOURS).layout
    assert layout.num_trainable == 2_440_256
    assert layout.num_parameters - layout.num_trainable == 2_944
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    convolutions = [shapes[name][:2] for name in layout.names if name.endswith("conv.weight")]
    assert convolutions == [(64, 3), (128, 64), (128, 128), (128, 128), (256, 128), (256, 256), (256, 256), (256, 256)]
    trained = [name for name in layout.names if name not in layout.buffers]
    assert trained[-1] == "head.weight"
    assert "head.bias" not in shapes
    assert layout.buffers == {name for name in layout.names if "running" in name}
    assert not [name for name in layout.names if "num_batches" in name]


def test_starts_with_neutral_normalisation():
    model = build({"name": "resnet9", "width": 2}, SMALL)
    state = model.layout.row_state(model.initial(torch.Generator().manual_seed(3)))
    for name, value in state.items():
        if name.endswith(("running_var", "norm.weight")):
            assert (value == 1).all()
        elif ".norm." in name:
            assert (value == 0).all()
        else:
            assert value.std() > 0


def test_images_that_are_too_small_are_named():
    with pytest.raises(ExperimentError, match=r"'resnet9' reads images.*8 x 8.*\(1, 7, 9\)"):
        build({"name": "resnet9"}, TaskSpec("classification", (1, 7, 9), (3,)))
    with pytest.raises(ExperimentError, match=r"'resnet9' reads images.*\(6, 2\)"):
        build({"name": "resnet9"}, TaskSpec("classification", (6, 2), (3,)))
