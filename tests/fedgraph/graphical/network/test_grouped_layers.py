import pytest
import torch

from fedgraph.graphical.network.grouped_layers import GroupedLayers

CLIENTS, GROUPS, WIDTH, INPUTS, OUTPUTS, ROWS = 2, 3, 4, 5, 2, 7


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def some_layers(layers=2):
    weights = [random(CLIENTS, GROUPS * WIDTH, INPUTS)]
    weights += [random(CLIENTS * GROUPS, WIDTH, WIDTH, seed=layer) for layer in range(1, layers)]
    biases = [random(CLIENTS * GROUPS, WIDTH, seed=layer) for layer in range(layers)]
    return GroupedLayers(weights, biases, random(CLIENTS * GROUPS, OUTPUTS, WIDTH))


def test_each_group_is_a_perceptron_of_its_own():
    layers, values = some_layers(), random(CLIENTS, INPUTS, ROWS)
    found = layers(values)
    for client in range(CLIENTS):
        for group in range(GROUPS):
            place = client * GROUPS + group
            hidden = layers.weights[0][client, group * WIDTH : (group + 1) * WIDTH] @ values[client]
            hidden = (hidden + layers.biases[0][place][:, None]).relu()
            hidden = (layers.weights[1][place] @ hidden + layers.biases[1][place][:, None]).relu()
            assert torch.allclose(found[place], layers.head[place] @ hidden)


@pytest.mark.parametrize("layers", [1, 3])
def test_gradients_are_those_that_pytorch_finds(layers):
    made, values = some_layers(layers), random(CLIENTS, INPUTS, ROWS)
    tensors = [tensor.requires_grad_() for tensor in (values, *made.weights, *made.biases, made.head)]
    hidden = values
    for weight, bias in zip(made.weights, made.biases, strict=True):
        hidden = (weight @ hidden).reshape(*bias.shape, ROWS) + bias[:, :, None]
        hidden = hidden.relu()
    wanted = torch.autograd.grad((made.head @ hidden).square().sum(), tensors)
    found = torch.autograd.grad(made(values).square().sum(), tensors)
    assert all(torch.allclose(*pair) for pair in zip(found, wanted, strict=True))


def test_the_last_inputs_may_be_left_out_where_they_are_zero():
    made = some_layers()
    values = random(CLIENTS, INPUTS, ROWS).index_fill(1, torch.tensor([INPUTS - 1]), 0)
    short = values[:, :-1]
    assert torch.allclose(made(short), made(values))
    (of_first, *_), _ = made.backward(made.forward(short)[1], torch.ones_like(made(values)))
    (wanted, *_), _ = made.backward(made.forward(values)[1], torch.ones_like(made(values)))
    assert torch.allclose(of_first, wanted)
    assert (of_first[:, :, -1] == 0).all()
