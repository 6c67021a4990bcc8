"""Adam in C++ against PyTorch's own."""

import pytest
import torch

from fedgraph.training import adam_kernel
from fedgraph.training.optimisers import Optimiser, fresh_state
from fedgraph.training.settings import TrainSettings

pytestmark = pytest.mark.skipif(adam_kernel.library() is None, reason="no C++ compiler")

ROWS, COLUMNS = 3, 1001
PYTORCH = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def drawn(seed):
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rates", [None, [0.1, 0.01, 0.001]], ids=["one rate", "rates of clients"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", PYTORCH)
def test_rows_move_as_under_torch_optim(name, decay, rates):
    settings = TrainSettings(optimizer=name, weight_decay=decay, betas=(0.8, 0.95), compile="native")
    parameters, state = drawn(0), fresh_state(settings, ROWS, COLUMNS)
    optimiser = Optimiser(settings, 0.05, state)
    leaves = [row.clone().requires_grad_() for row in parameters]
    wanted = [
        PYTORCH[name]([leaf], rate, (0.8, 0.95), weight_decay=decay)
        for leaf, rate in zip(leaves, rates or [0.05] * ROWS, strict=True)
    ]
    for step in range(1, 6):
        active = ROWS if step < 4 else 2  # a client that has no more minibatches
        gradient = drawn(step)[:active]
        for leaf, row, theirs in zip(leaves, gradient, wanted, strict=False):
            leaf.grad = row.clone()
            theirs.step()
        optimiser.step(parameters, gradient, None if rates is None else torch.tensor(rates[:active]))
    torch.testing.assert_close(parameters, torch.stack([leaf.detach() for leaf in leaves]), rtol=1e-5, atol=1e-6)
    assert state["step"].tolist() == [5, 5, 3]


def test_it_is_used_where_it_can_be():
    compiled, plain = (TrainSettings(optimizer="adam", compile=compile) for compile in ("native", False))
    parameters, state = torch.zeros(2, 2), fresh_state(plain, 2, 2)
    gradient = torch.ones(2, 2)
    assert not adam_kernel.step(plain, parameters, gradient, state, 0.1)
    assert not adam_kernel.step(compiled, parameters, gradient.double(), state, 0.1)
    assert not adam_kernel.step(compiled, parameters.T, gradient, state, 0.1)
    assert not any(value.any() for value in (parameters, *state.values()))
    assert adam_kernel.step(compiled, parameters, gradient, state, 0.1)
    assert parameters.eq(-0.1).all()


def test_what_does_not_fit_is_refused_before_it_reaches_addresses():
    settings = TrainSettings(optimizer="adam", compile="native")
    parameters, state = torch.zeros(2, 3), fresh_state(settings, 2, 3)
    with pytest.raises(ValueError, match="do not fit"):
        adam_kernel.step(settings, parameters, torch.zeros(2, 4), state, 0.1)
    with pytest.raises(ValueError, match="do not fit"):
        adam_kernel.step(settings, parameters, torch.zeros(2, 3), {**state, "step": torch.zeros(1)}, 0.1)
    with pytest.raises(RuntimeError, match="shape"):
        adam_kernel.step(settings, parameters, torch.zeros(2, 3), state, torch.zeros(3))
