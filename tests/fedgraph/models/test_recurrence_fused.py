"""Recurrent layers around PyTorch's fused cells, which a CPU does not have: here they are written out."""

from __future__ import annotations

import pytest
import torch

from fedgraph.models import recurrence
from fedgraph.models.recurrence import GRUCell, LSTMCell, TanhCell, Weights
from fedgraph.models.recurrence_fused import run_sequence

CELLS = {"gru": (GRUCell(), 3), "lstm": (LSTMCell(), 4)}


def fused_gru(entering, product, hidden):
    (r_in, z_in, n_in), (r_h, z_h, n_h) = entering.chunk(3, 1), product.chunk(3, 1)
    reset, update = (r_in + r_h).sigmoid(), (z_in + z_h).sigmoid()
    new = (n_in + reset * n_h).tanh()
    return new + update * (hidden - new), torch.cat([reset, update, new, hidden, n_h], 1)


def fused_gru_backward(grad, kept, has_bias):
    assert not has_bias
    reset, update, new, hidden, n_h = kept.chunk(5, 1)
    grad_update = grad * (hidden - new) * update * (1 - update)
    grad_new = grad * (1 - update) * (1 - new * new)
    grad_reset = grad_new * n_h * reset * (1 - reset)
    entering = torch.cat([grad_reset, grad_update, grad_new], 1)
    return entering, torch.cat([grad_reset, grad_update, grad_new * reset], 1), grad * update, None, None


def fused_lstm(entering, product, memory):
    entry, forget, new, output = (entering + product).chunk(4, 1)
    entry, forget, new, output = entry.sigmoid(), forget.sigmoid(), new.tanh(), output.sigmoid()
    after = forget * memory + entry * new
    return output * after.tanh(), after, torch.cat([entry, forget, new, output], 1)


def fused_lstm_backward(grad_hidden, grad_memory, before, after, kept, has_bias):
    assert not has_bias
    entry, forget, new, output = kept.chunk(4, 1)
    squashed = after.tanh()
    grad_after = grad_hidden * output * (1 - squashed * squashed) + (0 if grad_memory is None else grad_memory)
    gates = [
        grad_after * new * entry * (1 - entry),
        grad_after * before * forget * (1 - forget),
        grad_after * entry * (1 - new * new),
        grad_hidden * squashed * output * (1 - output),
    ]
    return torch.cat(gates, 1), grad_after * forget, None


@pytest.fixture
def fused_cells(monkeypatch):
    called = []

    def put(name, function):
        monkeypatch.setattr(torch.ops.aten, name, lambda *given: (called.append(name), function(*given))[1])

    put("_thnn_fused_gru_cell", fused_gru)
    put("_thnn_fused_gru_cell_backward", fused_gru_backward)
    put("_thnn_fused_lstm_cell", fused_lstm)
    put("_thnn_fused_lstm_cell_backward_impl", fused_lstm_backward)
    return called


def drawn(gates, steps=4, clients=3, features=2, hidden=5, batch=6):
    random = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=random).requires_grad_()

    rows = gates * hidden
    weights = Weights(
        draw(clients, rows, features), draw(clients, rows, hidden), draw(clients, rows), draw(clients, rows)
    )
    return draw(steps, clients, features, batch), weights


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("name", CELLS)
def test_outputs_and_gradients_are_those_of_the_layer_on_a_cpu(name, last, steps, fused_cells):
    cell, gates = CELLS[name]
    inputs, weights = drawn(gates, steps)
    found = []
    for run in (run_sequence, recurrence.run_sequence):
        outputs = run(cell, inputs, weights, last)
        factors = torch.linspace(-1, 1, outputs.numel()).view(outputs.shape)
        found.append((outputs.detach(), *torch.autograd.grad((outputs * factors).sum(), (inputs, *weights))))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert len(fused_cells) == 2 * steps


def test_inputs_that_need_no_gradient_get_none(fused_cells):
    inputs, weights = drawn(3)
    outputs = run_sequence(GRUCell(), inputs.detach(), weights, last=True)
    assert all(each.isfinite().all() for each in torch.autograd.grad(outputs.sum(), weights))


def test_other_cells_and_types_are_computed_as_on_a_cpu(fused_cells):
    inputs, weights = drawn(1)
    assert torch.equal(*(run(TanhCell(), inputs, weights) for run in (run_sequence, recurrence.run_sequence)))
    inputs, weights = drawn(3)
    doubles = inputs.double(), Weights(*(each.double() for each in weights))
    assert torch.equal(*(run(GRUCell(), *doubles) for run in (run_sequence, recurrence.run_sequence)))
    with torch.autocast("cpu", torch.bfloat16):
        assert run_sequence(GRUCell(), inputs, weights).dtype == torch.bfloat16
    assert not fused_cells
