"""Every stacked model equals its ordinary twin, forward and backward, and starts as the twin does."""

from __future__ import annotations

import pytest
import torch

from fedgraph.models import build
from fedgraph.models.base import TaskSpec
from fedgraph.models.stacked import folded
from fedgraph.support.errors import ExperimentError

FORECAST = TaskSpec("forecast", (6, 2), (4,), step_minutes=5)
SEQUENCE_CLASSES = TaskSpec("classification", (6, 2), (3,))
NUMBER = TaskSpec("regression", (5,), (1,))
SCALAR = TaskSpec("regression", (5,), ())


def images(channels, size):
    return TaskSpec("classification", (channels, size, size), (10,))


CASES = [
    ({"name": "gru", "hidden": 7}, FORECAST),
    ({"name": "gru", "hidden": 5, "layers": 3}, SEQUENCE_CLASSES),
    ({"name": "lstm", "hidden": 7}, FORECAST),
    ({"name": "lstm", "hidden": 5, "layers": 2}, SEQUENCE_CLASSES),
    ({"name": "rnn", "hidden": 7}, FORECAST),
    ({"name": "rnn", "hidden": 5, "layers": 2}, SEQUENCE_CLASSES),
    ({"name": "mlp"}, images(1, 8)),
    ({"name": "mlp", "hidden": [9]}, FORECAST),
    ({"name": "mlp", "hidden": []}, NUMBER),
    ({"name": "mlp", "hidden": [4]}, SCALAR),
    ({"name": "cnn", "channels": [3, 4]}, images(1, 8)),
    ({"name": "cnn", "channels": [3, 4]}, images(3, 32)),
    ({"name": "cnn", "channels": [3, 4]}, images(2, 28)),
    ({"name": "cnn", "channels": [3, 4]}, images(1, 5)),
    ({"name": "cnn", "channels": [[3, 4], [5, 2], 3], "hidden": [7, 6]}, images(3, 16)),
]


def stacked_rows(model, clients):
    return torch.stack([model.initial(torch.Generator().manual_seed(i)) for i in range(clients)])


@pytest.mark.parametrize(("table", "task"), CASES, ids=lambda case: str(getattr(case, "input_shape", case)))
def test_equals_twin_forward_and_backward(table, task):
    model = build(table, task)
    matrix = stacked_rows(model, 3).requires_grad_()
    inputs = torch.randn(3, 5, *task.input_shape, generator=torch.Generator().manual_seed(0))
    outputs, changed = model.forward(model.layout.unflatten(matrix), inputs, training=True)
    assert outputs.shape == (3, 5, *task.output_shape)
    assert not changed
    (gradient,) = torch.autograd.grad(outputs.square().sum(), matrix)
    for client in range(3):
        twin = model.twin()
        twin.load_state_dict(model.layout.row_state(matrix[client].detach()))
        expected = twin(inputs[client])
        torch.testing.assert_close(outputs[client], expected, atol=1e-5, rtol=1e-5)
        expected.square().sum().backward()
        twin_gradient = torch.cat([value.grad.flatten() for value in twin.parameters()])
        torch.testing.assert_close(gradient[client], twin_gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["gru", "lstm", "rnn", "mlp", "cnn"])
def test_initial_is_the_twins_default_and_leaves_the_global_generator_alone(name):
    model = build({"name": name}, images(1, 8) if name in ("mlp", "cnn") else FORECAST)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    row = model.initial(torch.Generator().manual_seed(1))
    twin = model.twin()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(77)
    assert torch.equal(model.initial(torch.Generator().manual_seed(1)), row)
    assert not torch.equal(model.initial(torch.Generator().manual_seed(2)), row)
    assert row.dtype == torch.float32
    for value, default in zip(model.layout.row_state(row).values(), twin.state_dict().values(), strict=True):
        assert value.shape == default.shape
        # PyTorch draws these uniformly: the largest of many draws is nearly the same again.
        if value.numel() > 60:
            assert value.abs().max() == pytest.approx(default.abs().max().item(), rel=0.2)


def test_initial_values_are_exactly_those_of_a_seeded_twin():
    model = build({"name": "gru", "hidden": 4}, FORECAST)
    seed = int(torch.randint(2**63 - 1, (), generator=torch.Generator().manual_seed(9)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        recurrent, head = torch.nn.GRU(2, 4, batch_first=True), torch.nn.Linear(4, 4)
    expected = torch.cat([value.flatten() for value in [*recurrent.parameters(), *head.parameters()]])
    assert torch.equal(model.initial(torch.Generator().manual_seed(9)), expected)


def test_names_follow_the_twin_and_the_last_layer_is_the_head():
    names = build({"name": "lstm"}, FORECAST).layout.names
    assert names[0] == "recurrent.weight_ih_l0"
    assert names[-2:] == ("head.weight", "head.bias")


@pytest.mark.parametrize("name", ["gru", "lstm", "rnn"])
def test_recurrent_gradient_reaches_the_inputs(name):
    model = build({"name": name, "hidden": 4}, FORECAST)
    matrix = stacked_rows(model, 1)
    inputs = torch.randn(1, 3, 6, 2, generator=torch.Generator().manual_seed(0), requires_grad=True)
    outputs, _ = model.forward(model.layout.unflatten(matrix), inputs, training=True)
    twin = model.twin()
    twin.load_state_dict(model.layout.row_state(matrix[0]))
    (found,) = torch.autograd.grad(outputs.sum(), inputs)
    (expected,) = torch.autograd.grad(twin(inputs[0]).sum(), inputs)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


def test_unknown_model_lists_the_known_ones():
    with pytest.raises(
        ExperimentError,
        match="'gur'; .*gru, .*'package",
    ):
        build({"name": "gur"}, FORECAST)


def test_unknown_key_lists_the_known_ones():
    known = "known keys: hidden, layers, name, read-out"
    with pytest.raises(ExperimentError, match=rf"\[model\] has no key 'hiden'; {known}"):
        build({"name": "gru", "hiden": 3}, FORECAST)


def test_models_name_the_shape_that_does_not_fit():
    with pytest.raises(ExperimentError, match=r"'gru' reads sequences.*\(1, 8, 8\)"):
        build({"name": "gru"}, images(1, 8))
    with pytest.raises(ExperimentError, match=r"'cnn' reads images.*\(6, 2\)"):
        build({"name": "cnn"}, FORECAST)
    with pytest.raises(ExperimentError, match=r"at least 16 x 16 pixels.*\(1, 8, 8\)"):
        build({"name": "cnn", "channels": [1, 1, 1, 1]}, images(1, 8))


def test_the_cnn_of_the_paper_on_ipa_has_as_many_parameters():
    """Gorbett et al. 2023: four 3x3 convolutions and three linear layers, 2.43 million parameters on CIFAR-10."""
    table = {"name": "cnn", "channels": [[64, 64], [128, 128]], "hidden": [256, 256]}
    convolutions = sum(9 * i * o + o for i, o in [(3, 64), (64, 64), (64, 128), (128, 128)])
    linear = sum(i * o + o for i, o in [(8192, 256), (256, 256), (256, 10)])
    assert build(table, images(3, 32)).layout.num_parameters == convolutions + linear == 2_425_930


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("name", ["gru", "lstm", "rnn"])
def test_reading_out_all_steps_equals_the_twin_forward_and_backward(name, native):
    model = build({"name": name, "hidden": 5, "layers": 2, "read-out": "steps"}, SEQUENCE_CLASSES)
    model = model.compiled() if native else model
    matrix = stacked_rows(model, 3).requires_grad_()
    inputs = torch.randn(3, 4, 6, 2, generator=torch.Generator().manual_seed(0), requires_grad=True)
    outputs, _ = model.forward(model.layout.unflatten(matrix), inputs, training=True)
    gradient, input_gradient = torch.autograd.grad(outputs.square().sum(), (matrix, inputs))
    for client in range(3):
        state = model.layout.row_state(matrix[client].detach())
        twin = model.twin()
        twin.load_state_dict(state)
        own_inputs = inputs[client].detach().requires_grad_()
        expected = twin(own_inputs)
        torch.testing.assert_close(outputs[client], expected, atol=1e-5, rtol=1e-5)
        expected.square().sum().backward()
        twin_gradient = torch.cat([value.grad.flatten() for value in twin.parameters()])
        torch.testing.assert_close(gradient[client], twin_gradient, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(input_gradient[client], own_inputs.grad, atol=1e-6, rtol=1e-4)
        # The definition: one weight per step, shared by the hidden units, and one bias.
        hidden, _ = twin.recurrent(own_inputs)
        combined = torch.einsum("bth,t->bh", hidden, state["combine.weight"][0]) + state["combine.bias"]
        by_hand = combined @ state["head.weight"].T + state["head.bias"]
        torch.testing.assert_close(outputs[client], by_hand, atol=1e-5, rtol=1e-5)


def test_gradient_of_reading_out_all_steps_by_finite_differences():
    model = build({"name": "lstm", "hidden": 3, "read-out": "steps"}, SEQUENCE_CLASSES)
    matrix = stacked_rows(model, 2).double().requires_grad_()
    inputs = torch.randn(2, 3, 6, 2, generator=torch.Generator().manual_seed(0)).double()

    def outputs(rows):
        return model.forward(model.layout.unflatten(rows), inputs, training=True)[0]

    assert torch.autograd.gradcheck(outputs, matrix, atol=1e-6, fast_mode=True)


def test_reading_out_all_steps_has_its_weights_between_the_layers():
    names = build({"name": "lstm", "read-out": "steps"}, FORECAST).layout.names
    assert names[-4:] == ("combine.weight", "combine.bias", "head.weight", "head.bias")


@pytest.mark.parametrize("colours", [1, 3])
@pytest.mark.parametrize(
    "table", [{"name": "cnn", "channels": [4, [5, 6]], "hidden": [7]}, {"name": "resnet9", "width": 4}], ids=str
)
def test_a_client_alone_is_computed_as_among_others(table, colours):
    model = build(table, images(colours, 16))
    assert model.sequential
    rows = stacked_rows(model, 3).requires_grad_()
    inputs = torch.randn(3, 5, colours, 16, 16, generator=torch.Generator().manual_seed(0))
    together, changed = model.forward(model.layout.unflatten(rows), inputs, training=True)
    (gradient,) = torch.autograd.grad(together.square().sum(), rows)
    for client in range(3):
        own = rows[client : client + 1].detach().requires_grad_()
        alone, after = model.forward(model.layout.unflatten(own), inputs[client : client + 1], training=True)
        torch.testing.assert_close(alone[0], together[client], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(
            torch.autograd.grad(alone.square().sum(), own)[0][0], gradient[client], atol=1e-3, rtol=1e-3
        )
        for name, value in after.items():
            torch.testing.assert_close(value[0], changed[name][client], atol=1e-5, rtol=1e-4)


def test_channels_are_last_in_memory_where_a_client_is_alone():
    folded_images = folded(torch.zeros(1, 4, 1, 8, 8))
    # With one channel, PyTorch takes any strides for both formats: these tell its convolutions which is meant.
    assert folded_images.stride() == (64, 1, 8, 1)
    assert folded(torch.zeros(2, 4, 1, 8, 8)).stride() == (64, 256, 8, 1)
