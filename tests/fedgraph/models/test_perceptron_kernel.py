"""Fully connected layers and their loss in C++ against autograd through the same layers."""

from __future__ import annotations

import pytest
import torch

from fedgraph.data import ExampleSplit
from fedgraph.models import build, perceptron_kernel
from fedgraph.models.base import Batch, Differentiated, TaskSpec
from fedgraph.models.frozen import FrozenLayers
from fedgraph.models.native import loader as native
from fedgraph.training.metrics import loss_sums, masked_mean

pytestmark = pytest.mark.skipif(perceptron_kernel.library() is None, reason="no C++ compiler")

CLIENTS, EXAMPLES = 3, 6
RATES = torch.ones(CLIENTS, 2)
LOSSES = {"cross-entropy": "classification", "mae": "forecast", "mse": "forecast", "huber": "forecast"}


def model_of(hidden, loss="cross-entropy"):
    task = TaskSpec(kind=LOSSES[loss], input_shape=(2, 3), output_shape=(4,))
    return build({"name": "mlp", "hidden": hidden}, task).compiled()


def drawn(model):
    """Models, and a minibatch of which a part does not count: nothing at all of the last client."""
    generator = torch.Generator().manual_seed(1)
    models = torch.stack([model.initial(generator) for _ in range(CLIENTS)])
    inputs = torch.randn(CLIENTS, EXAMPLES, *model.task.input_shape, generator=generator)
    if model.task.kind == "classification":
        targets = torch.randint(4, (CLIENTS, EXAMPLES), generator=generator)
    else:
        targets = 2 * torch.randn(CLIENTS, EXAMPLES, 4, generator=generator)
    weights = (torch.rand(targets.shape, generator=generator) < 0.7).float()
    weights[-1] = 0
    targets[weights == 0] = -1 if targets.dtype == torch.int64 else torch.nan
    return models, Batch(inputs, targets, weights)


def by_autograd(model, loss, models, batch):
    leaf = models.double().requires_grad_()
    outputs, _ = model.forward(model.layout.unflatten(leaf), batch.inputs.double(), True)
    targets = batch.targets if loss == "cross-entropy" else batch.targets.double()
    sums = loss_sums(loss, model.task, outputs, targets, batch.weights.double())
    return torch.stack(sums), *torch.autograd.grad(masked_mean(*sums).sum(), leaf)


def agree(found, expected):
    for value, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(value.double(), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("hidden", [[], [1], [5], [33, 19], [4, 3, 2, 5]], ids=str)
@pytest.mark.parametrize("loss", LOSSES)
def test_losses_and_gradients_are_those_of_autograd(loss, hidden):
    model = model_of(hidden, loss)
    models, batch = drawn(model)
    found = model.loss_gradient(loss, models, batch)
    assert [each.dtype for each in found] == [torch.float32] * 2
    agree(found, by_autograd(model, loss, models, batch))
    assert not found[1][-1].any()


def test_a_client_does_not_depend_on_the_others():
    model = model_of([5, 3])
    models, batch = drawn(model)
    together = model.loss_gradient("cross-entropy", models, batch)
    alone = model.loss_gradient("cross-entropy", models[1:2], Batch(*(each[1:2] for each in batch)))
    assert torch.equal(alone[0], together[0][:, 1:2])
    assert torch.equal(alone[1], together[1][1:2])


def test_tensors_are_read_in_any_layout():
    model = model_of([5, 3])
    models, batch = drawn(model)
    expected = model.loss_gradient("cross-entropy", models, batch)
    # Columns of a wider matrix, examples side by side with others, all clients at the same ones.
    wider = torch.cat([models, torch.full((CLIENTS, 2), torch.nan)], 1)[:, :-2]
    turned = Batch(*(each.transpose(0, 1).contiguous().transpose(0, 1) for each in batch))
    for given in ((wider, batch), (models, turned), (models.T.contiguous().T, batch)):
        assert all(
            torch.equal(*pair) for pair in zip(model.loss_gradient("cross-entropy", *given), expected, strict=True)
        )
    shared = Batch(*(each[:1].expand_as(each) for each in batch))
    agree(model.loss_gradient("cross-entropy", models, shared), by_autograd(model, "cross-entropy", models, shared))


def test_what_is_no_number_stays_so_and_with_its_client():
    model = model_of([5])
    models, batch = drawn(model)
    models[0, 0] = torch.nan
    sums, gradient = model.loss_gradient("cross-entropy", models, batch)
    assert sums[0].isnan().tolist() == [True, False, False]
    assert gradient.isnan().any(1).tolist() == [True, False, False]


def test_large_outputs_have_a_loss():
    model = model_of([])
    models, batch = drawn(model)
    agree(
        model.loss_gradient("cross-entropy", 1e4 * models, batch),
        by_autograd(model, "cross-entropy", 1e4 * models, batch),
    )


@pytest.mark.parametrize("label", [-1, 4])
def test_a_class_without_an_output_is_refused_where_it_counts(label):
    model = model_of([5])
    models, batch = drawn(model)
    batch.targets[0, 0], batch.weights[0, 0] = label, 1
    with pytest.raises(IndexError, match="classes 0 to"):
        model.loss_gradient("cross-entropy", models, batch)


def test_what_does_not_fit_is_refused_before_it_reaches_addresses():
    model = model_of([5])
    models, batch = drawn(model)
    for given in (
        (models[:2], batch),
        (models[:, 1:], batch),
        (models, batch._replace(inputs=batch.inputs[..., :2])),
        (models, batch._replace(targets=batch.targets.int())),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            model.loss_gradient("cross-entropy", *given)
    with pytest.raises(RuntimeError, match="shape"):
        model.loss_gradient("cross-entropy", models, batch._replace(weights=batch.weights[:, 1:]))


def test_other_tensors_and_frozen_layers_are_left_to_autograd():
    model = model_of([5])
    models, batch = drawn(model)
    assert model.loss_gradient("cross-entropy", models.double(), batch) is None
    assert model.loss_gradient("cross-entropy", models, batch._replace(inputs=batch.inputs[:, :0])) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert model.loss_gradient("cross-entropy", models, batch) is None
    frozen = FrozenLayers(model, ["head.weight"])
    assert model.native
    assert not frozen.native
    assert not isinstance(frozen, Differentiated)
    assert not isinstance(build({"name": "mlp"}, model.task), Differentiated)


def test_without_a_compiler_autograd_does_it(monkeypatch, caplog):
    def fails(name, source):
        raise native.NativeError("there is no C++ compiler")

    monkeypatch.setattr(native, "load", fails)
    perceptron_kernel.library.forget()
    model = model_of([5])
    try:
        assert model.loss_gradient("cross-entropy", *drawn(model)) is None
    finally:
        perceptron_kernel.library.forget()
    assert "there is no C++ compiler" in caplog.text


@pytest.mark.parametrize("hidden", [[], [5], [4, 3]], ids=str)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_descent_is_one_step_after_the_other(loss, hidden):
    model = model_of(hidden, loss)
    models, first = drawn(model)
    second = Batch(*(each.flip(1) for each in first))
    rates, decay = torch.tensor([[0.1, 0.2], [0.3, 0.0], [0.1, 0.1]]), 0.5
    expected, sums = models.clone(), torch.zeros(2, CLIENTS)
    for step, batch in enumerate((first, second)):
        found = model.loss_gradient(loss, expected, batch)
        sums += found[0]
        rate = rates[:, step, None]
        expected = (1 - rate * decay) * expected - rate * found[1]
    # Columns of a wider matrix, whose others stay as they are.
    wide = torch.cat([models, torch.ones(CLIENTS, 2)], 1)
    steps = Batch(*(torch.stack(pair, 1) for pair in zip(first, second, strict=True)))
    told = model.descend(loss, wide[:, :-2], steps, rates, decay)
    torch.testing.assert_close(wide[:, :-2], expected, atol=1e-6, rtol=1e-5)
    assert (wide[:, -2:] == 1).all()
    torch.testing.assert_close(told.float(), sums)


@pytest.mark.parametrize("stored", [torch.uint8, torch.float32], ids=str)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_minibatches_by_rows_are_those_that_are_gathered(loss, stored, workers, monkeypatch):
    monkeypatch.setattr(perceptron_kernel, "_WORTH_A_THREAD", 1)
    model, generator = model_of([5], loss), torch.Generator().manual_seed(2)
    models = torch.stack([model.initial(generator) for _ in range(CLIENTS)])
    inputs = torch.randint(0, 256, (20, 2, 3), generator=generator).to(stored)
    classes = loss == "cross-entropy"
    targets = torch.randint(4, (20,), generator=generator) if classes else torch.randn(20, 4, generator=generator)
    rows = torch.randint(0, 20, (CLIENTS, 2, EXAMPLES), generator=generator)
    rows[1, 1, 4:] = -1  # a last minibatch that is shorter
    scale, shift = torch.tensor(1 / 255), torch.randn(2, 3, generator=generator)
    split = ExampleSplit(inputs, targets, torch.arange(20).expand(CLIENTS, -1), scale, shift)
    gathered = split.batch(rows.flatten(1))
    steps = Batch(*(each.unflatten(1, rows.shape[1:]) for each in gathered))
    rates, expected = torch.rand(CLIENTS, 2, generator=generator), models.clone()
    wanted = model.descend(loss, expected, steps, rates, 0.1)
    told = model.descend(loss, models, split.minibatches(rows), rates, 0.1, workers)
    torch.testing.assert_close(models, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(told, wanted, atol=1e-6, rtol=1e-5)


def test_a_minibatch_by_rows_without_examples_is_no_step():
    model = model_of([5])
    models, _ = drawn(model)
    split = ExampleSplit(torch.randn(4, 2, 3), torch.zeros(4, dtype=torch.int64), torch.arange(4).expand(CLIENTS, -1))
    before = models.clone()
    sums = model.descend("cross-entropy", models, split.minibatches(-torch.ones(CLIENTS, 2, 3).long()), RATES, 0.5)
    assert torch.equal(models, before)
    assert (sums == 0).all()


def test_rows_of_no_example_are_refused():
    model = model_of([5])
    models, _ = drawn(model)
    split = ExampleSplit(torch.randn(4, 2, 3), torch.zeros(4, dtype=torch.int64), torch.full((CLIENTS, 1), 4))
    with pytest.raises(IndexError, match="rows 4 to 4 of 4 inputs"):
        model.descend("cross-entropy", models, split.minibatches(torch.zeros(CLIENTS, 2, 3).long()), RATES, 0.5)


def test_a_descent_changes_nothing_where_it_cannot_be_made():
    model = model_of([5])
    models, batch = drawn(model)
    steps, rates = Batch(*(each[:, None] for each in batch)), torch.ones(CLIENTS, 1)
    before, turned = models.clone(), models.T.contiguous().T
    assert model.descend("cross-entropy", turned, steps, rates, 0.0) is None
    assert model.descend("cross-entropy", models.double(), steps, rates, 0.0) is None
    assert torch.equal(turned, before)
    with pytest.raises(ValueError, match="do not fit"):
        model.descend("cross-entropy", models, steps, torch.ones(CLIENTS, 2), 0.0)
