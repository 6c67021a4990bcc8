"""The recurrent layer in C++ against the same layer in tensor operations, and when it steps aside."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fedgraph.models import build, recurrence, recurrence_kernel
from fedgraph.models.base import TaskSpec
from fedgraph.models.native import loader as native
from fedgraph.models.recurrence import GRUCell, LSTMCell, TanhCell, Weights
from fedgraph.models.recurrence_kernel import run_sequence

KINDS = {"gru": (GRUCell(), 3), "lstm": (LSTMCell(), 4), "rnn": (TanhCell(), 1)}
TASK = TaskSpec(kind="forecast", input_shape=(6, 2), output_shape=(3,), step_minutes=5.0)


@pytest.fixture(scope="module")
def compiler():
    try:
        native._compiler()
    except native.NativeError as error:
        pytest.skip(str(error))
    assert recurrence_kernel.library() is not None


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def drawn(gates, steps=4, features=2, hidden=5, scale=0.5):
    """Inputs ``[steps, 3 clients, features, 4 examples]`` and weights."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return (torch.randn(*shape, generator=generator) * scale).requires_grad_()

    weights = (gates * hidden, features), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,)
    return [draw(steps, 3, features, 4), *(draw(3, *shape) for shape in weights)]


def with_gradients(run, cell, inputs, weights, last):
    """Outputs, and gradients of the inputs and weights for a fixed gradient of the outputs."""
    outputs = run(cell, inputs, Weights(*weights), last)
    upstream = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(2)).to(outputs.dtype)
    return [outputs, *torch.autograd.grad(outputs, [inputs, *weights], upstream)]


@pytest.fixture
def only_native(compiler, monkeypatch):
    """Whatever is left to the tensor operations fails."""

    def refuse(*arguments):
        raise AssertionError("the layer in C++ was not used")

    tensor_operations = recurrence.run_sequence
    monkeypatch.setattr(recurrence, "run_sequence", refuse)
    return tensor_operations


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(("steps", "features", "hidden"), [(1, 1, 1), (4, 2, 5), (7, 33, 19), (12, 1, 64)])
def test_outputs_and_gradients_are_those_of_the_tensor_operations(kind, only_native, steps, features, hidden, last):
    cell, gates = kind
    inputs, *weights = drawn(gates, steps, features, hidden, scale=0.1)
    found = with_gradients(run_sequence, cell, inputs, weights, last)
    exact_inputs, *exact_weights = (value.detach().double().requires_grad_() for value in (inputs, *weights))
    expected = with_gradients(only_native, cell, exact_inputs, exact_weights, last)
    for value, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(value.double(), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.usefixtures("only_native")
def test_the_forward_pass_alone_gives_the_same(kind, last):
    cell, gates = kind
    inputs, *weights = drawn(gates)
    with torch.no_grad():
        alone = run_sequence(cell, inputs, Weights(*weights), last)
    assert torch.equal(alone, run_sequence(cell, inputs, Weights(*weights), last))


@pytest.mark.usefixtures("only_native")
def test_inputs_in_any_layout_are_read(kind):
    cell, gates = kind
    inputs, *weights = drawn(gates)
    for order in ((3, 2, 1, 0), (1, 3, 0, 2)):
        turned = inputs.permute(order).contiguous().permute([order.index(axis) for axis in range(4)])
        assert torch.equal(run_sequence(cell, turned, Weights(*weights)), run_sequence(cell, inputs, Weights(*weights)))


@pytest.mark.usefixtures("only_native")
def test_gates_far_out_are_at_their_limits_and_what_is_no_number_stays_so(kind):
    cell, gates = kind
    inputs, *weights = drawn(gates)
    values, *gradients = with_gradients(run_sequence, cell, inputs, [weight * 1e4 for weight in weights], True)
    assert all(bool(each.isfinite().all()) for each in (values, *gradients))
    assert float(values.detach().abs().max()) <= 1 + 1e-6
    broken = inputs.detach().clone()
    broken[0, 1] = torch.nan
    outputs = run_sequence(cell, broken, Weights(*weights), last=True)
    assert outputs.isnan().all(2).all(1).tolist() == [False, True, False]
    assert not outputs[[0, 2]].isnan().any()


@pytest.mark.usefixtures("only_native")
def test_a_client_does_not_depend_on_the_others(kind):
    cell, gates = kind
    inputs, *weights = drawn(gates)
    together = with_gradients(run_sequence, cell, inputs, weights, False)
    alone = with_gradients(run_sequence, cell, inputs[:, 1:2], [weight[1:2] for weight in weights], False)
    torch.testing.assert_close(alone[0], together[0][:, 1:2])


@pytest.mark.usefixtures("only_native")
def test_a_kept_graph_gives_the_same_gradient_again_and_a_freed_one_says_so(kind):
    cell, gates = kind
    inputs, *weights = drawn(gates)
    total = run_sequence(cell, inputs, Weights(*weights), last=True).sum()
    first = torch.autograd.grad(total, weights, retain_graph=True)
    second = torch.autograd.grad(total, weights)
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(total, weights)


@pytest.mark.usefixtures("only_native")
def test_a_gradient_of_the_gradient_is_refused(kind):
    cell, gates = kind
    inputs, *weights = drawn(gates)
    total = run_sequence(cell, inputs, Weights(*weights), last=True).square().sum()
    gradient, *_ = torch.autograd.grad(total, weights, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.usefixtures("only_native")
def test_hidden_states_changed_in_place_are_noticed(kind):
    cell, gates = kind
    inputs, *weights = drawn(gates)
    hidden = run_sequence(cell, inputs, Weights(*weights), last=True)
    with torch.no_grad():
        hidden.zero_()
    with pytest.raises(RuntimeError, match="modified inplace"):
        torch.autograd.grad(hidden.sum(), weights)


@pytest.mark.usefixtures("only_native")
def test_threads_do_not_disturb_each_other(kind):
    cell, gates = kind
    jobs = [drawn(gates, steps, hidden=hidden) for steps, hidden in [(9, 24), (5, 40), (12, 8), (7, 33)] * 8]

    def run(job):
        return with_gradients(run_sequence, cell, job[0], job[1:], True)

    expected = [run(job) for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, jobs))
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.usefixtures("only_native")
def test_weights_that_do_not_fit_are_refused(kind):
    cell, gates = kind
    inputs, *weights = drawn(gates)
    with pytest.raises(ValueError, match="2 clients .*fit"):
        run_sequence(cell, inputs[:, :2], Weights(*weights))
    with pytest.raises(ValueError, match="3 clients .*fit"):
        run_sequence(cell, inputs[:, :, :1], Weights(*weights))


@pytest.mark.usefixtures("compiler")
def test_other_precisions_are_left_to_the_tensor_operations(kind):
    cell, gates = kind
    inputs, *weights = drawn(gates)
    doubled = [value.detach().double() for value in (inputs, *weights)]
    assert run_sequence(cell, doubled[0], Weights(*doubled[1:])).dtype == torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        assert run_sequence(cell, inputs, Weights(*weights)).dtype == torch.bfloat16


@pytest.mark.parametrize("name", KINDS)
def test_a_compiled_model_of_two_layers_is_the_model(name, compiler, monkeypatch):
    model = build({"name": name, "hidden": 8, "layers": 2}, TASK)
    generator = torch.Generator().manual_seed(3)
    matrix = torch.stack([model.initial(generator) for _ in range(3)])
    inputs = torch.randn(3, 5, *TASK.input_shape, generator=generator)

    def computed(which):
        parameters = matrix.clone().requires_grad_()
        outputs, _ = which.forward(model.layout.unflatten(parameters), inputs, True)
        return outputs, *torch.autograd.grad(outputs.square().sum(), parameters)

    expected = computed(model)
    calls = []
    used = recurrence_kernel.library()
    monkeypatch.setattr(recurrence_kernel, "library", lambda: calls.append(1) or used)
    for value, exact in zip(computed(model.compiled()), expected, strict=True):
        torch.testing.assert_close(value, exact, atol=1e-5, rtol=1e-5)
    assert len(calls) == 2
    computed(model)
    assert len(calls) == 2  # the model itself stays as it was


def test_without_a_compiler_one_warning_says_so_and_the_result_is_the_same(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    recurrence_kernel.library.forget()
    cell, gates = KINDS["gru"]
    inputs, *weights = drawn(gates)
    try:
        with caplog.at_level(logging.WARNING, logger="fedgraph"):
            found = [run_sequence(cell, inputs, Weights(*weights)) for _ in range(2)]
    finally:
        recurrence_kernel.library.forget()
    expected = recurrence.run_sequence(cell, inputs, Weights(*weights))
    assert all(torch.equal(each, expected) for each in found)
    (record,) = caplog.records
    assert "no-such-compiler" in record.getMessage()
    assert "install a C++ compiler" in record.getMessage()
