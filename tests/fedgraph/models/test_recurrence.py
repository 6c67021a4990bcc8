"""The written gradient of a recurrent layer, at several precisions and under the ways in which autograd calls it."""

from __future__ import annotations

import pytest
import torch

from fedgraph.models.recurrence import GRUCell, LSTMCell, TanhCell, Weights, run_sequence

KINDS = {
    "gru": (torch.nn.GRU, GRUCell(), 3),
    "lstm": (torch.nn.LSTM, LSTMCell(), 4),
    "rnn": (torch.nn.RNN, TanhCell(), 1),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def drawn(gates, steps=3, features=2, hidden=3, dtype=torch.float64, requires_grad=True):
    """Inputs ``[steps, 2 clients, features, 4 examples]`` and weights."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(2, *shape, generator=generator, dtype=dtype)

    weights = draw(gates * hidden, features), draw(gates * hidden, hidden), draw(gates * hidden), draw(gates * hidden)
    inputs = draw(steps, features, 4).transpose(0, 1).contiguous()
    return [value.requires_grad_(requires_grad) for value in (inputs, *weights)]


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("last", [True, False])
def test_gradients_are_those_of_finite_differences(kind, steps, last):
    _, cell, gates = kind

    def sequence(inputs, *weights):
        return run_sequence(cell, inputs, Weights(*weights), last)

    assert torch.autograd.gradcheck(sequence, drawn(gates, steps))


@pytest.mark.parametrize("features", [1, 5])
def test_every_hidden_state_is_that_of_the_layer(kind, features):
    layer_class, cell, gates = kind
    inputs, *weights = drawn(gates, features=features)
    found = run_sequence(cell, inputs, Weights(*weights))
    for client in range(2):
        layer = layer_class(features, 3, dtype=torch.float64)
        for parameter, value in zip(layer.parameters(), weights, strict=True):
            parameter.data = value[client].detach()
        expected, _ = layer(inputs[:, client].transpose(1, 2))
        torch.testing.assert_close(found[:, client].transpose(1, 2), expected)


def test_the_forward_pass_alone_gives_the_same(kind):
    _, cell, gates = kind
    inputs, *weights = drawn(gates)
    with torch.no_grad():
        alone = run_sequence(cell, inputs, Weights(*weights))
    assert torch.equal(alone, run_sequence(cell, inputs, Weights(*weights)))


def test_a_kept_graph_gives_the_same_gradient_again_and_a_freed_one_says_so(kind):
    _, cell, gates = kind
    inputs, *weights = drawn(gates)
    total = run_sequence(cell, inputs, Weights(*weights), last=True).sum()
    first = torch.autograd.grad(total, weights, retain_graph=True)
    second = torch.autograd.grad(total, weights)
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(total, weights)


def test_hidden_states_changed_in_place_are_noticed(kind):
    _, cell, gates = kind
    inputs, *weights = drawn(gates)
    hidden = run_sequence(cell, inputs, Weights(*weights), last=True)
    with torch.no_grad():
        hidden.zero_()
    with pytest.raises(RuntimeError, match="modified inplace"):
        torch.autograd.grad(hidden.sum(), weights)


def test_autocast_computes_in_bfloat16_and_gradients_stay_close(kind):
    _, cell, gates = kind
    results = []
    for autocast in (False, True):
        inputs, *weights = drawn(gates, steps=6, dtype=torch.float32)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            hidden = run_sequence(cell, inputs, Weights(*weights), last=True)
        assert hidden.dtype == (torch.bfloat16 if autocast else torch.float32)
        gradients = torch.autograd.grad(hidden.float().square().sum(), [inputs, *weights])
        assert all(gradient.dtype == torch.float32 for gradient in gradients)
        results.append(torch.cat([gradient.flatten() for gradient in gradients]))
    exact, rounded = results
    difference = float((rounded - exact).norm() / exact.norm())
    assert 0 < difference < 0.05
