"""Modules of the user's own as stacked models."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from fedgraph.models import build
from fedgraph.models.base import TaskSpec
from fedgraph.models.hashed_draws import drawing_from
from fedgraph.models.user_module import Call, Slots
from fedgraph.support.errors import ExperimentError

TASK = TaskSpec("classification", (4,), (3,))


class Normed(nn.Module):
    def __init__(self, input_shape, output_shape, hidden=6):
        super().__init__()
        self.first = nn.Linear(input_shape[0], hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.last = nn.Linear(hidden, output_shape[0])

    def forward(self, inputs):
        return self.last(self.norm(self.first(inputs)).relu())


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.fixed = nn.Linear(4, 3)
        self.fixed.requires_grad_(False)
        self.last = nn.Linear(3, 3)

    def forward(self, inputs):
        return self.last(self.fixed(inputs))


class Branching(Frozen):
    def forward(self, inputs):
        return super().forward(inputs) if inputs.sum() > 0 else -super().forward(inputs)


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, inputs):
        return self.last(nn.functional.dropout(inputs, 0.5, self.training))


class DroppedThenBranching(Dropped):
    def forward(self, inputs):
        outputs = super().forward(inputs)
        return outputs if outputs.sum() > 0 else -outputs


class DrawsOrders(Dropped):
    """Draws as no hash does."""

    def forward(self, inputs):
        return super().forward(inputs) + 0 * torch.randperm(3).sum()


class WrongOutput(nn.Linear):
    def __init__(self):
        super().__init__(4, 5)


class WrongInput(nn.Linear):
    def __init__(self):
        super().__init__(9, 3)


class Pair(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

    def forward(self, inputs):
        return super().forward(inputs), inputs


class Listed(nn.Module):
    """Its layers are in a list, where PyTorch does not see them."""

    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(4, 3)]

    def forward(self, inputs):
        return self.layers[0](inputs)


class Lazy(nn.Module):
    def __init__(self, output_shape):
        super().__init__()
        self.layers = nn.Sequential(nn.LazyLinear(6), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(output_shape[0]))

    def forward(self, inputs):
        return self.layers(inputs)


class NormedOverAll(Normed):
    def __init__(self, input_shape, output_shape):
        super().__init__(input_shape, output_shape)
        self.norm.momentum = None


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3)
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("mask", torch.tensor([True, False, True]))

    def forward(self, inputs):
        self.calls += 1
        return self.last(inputs) * self.mask


class Softmaxed(nn.Module):
    def __init__(self, logarithm=False):
        super().__init__()
        self.last = nn.Linear(4, 3)
        self.activation = nn.LogSoftmax(1) if logarithm else nn.Softmax(1)

    def forward(self, inputs):
        return self.activation(self.last(inputs))


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.filter = nn.Linear(4, 3), nn.Parameter(torch.ones(3, dtype=torch.cfloat))

    def forward(self, inputs):
        return self.last(torch.fft.irfft(torch.fft.rfft(inputs) * self.filter, n=4))


class InBfloat16(Dropped):
    def __init__(self):
        super().__init__()
        self.bfloat16()

    def forward(self, inputs):
        return super().forward(inputs.to(self.last.weight.dtype))


class InBfloat16Alone(InBfloat16):
    def forward(self, inputs):
        return self.last(inputs.bfloat16())


class Tied(nn.Module):
    """Two layers with one weight, whole numbers as a frozen parameter, and buffers that are no floats."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight
        self.places = nn.Parameter(torch.randperm(4), requires_grad=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("drawn", torch.as_tensor(np.random.permutation(4)))

    def forward(self, inputs):
        if self.training:
            self.seen += len(inputs)
        return self.last(self.second(self.first(inputs).relu()).relu()[:, self.places][:, self.drawn])


@pytest.fixture(autouse=True)
def user_package(monkeypatch):
    module = types.ModuleType("their_models")
    kinds = (
        Normed,
        Frozen,
        Branching,
        Dropped,
        DroppedThenBranching,
        DrawsOrders,
        WrongOutput,
        WrongInput,
        Pair,
        Listed,
    )
    for kind in (*kinds, Lazy, Complex, InBfloat16, InBfloat16Alone, Tied, Counting, Softmaxed, NormedOverAll):
        setattr(module, kind.__name__, kind)
    module.number = 3
    monkeypatch.setitem(sys.modules, "their_models", module)


def make(name, **options):
    return build({"name": f"their_models:{name}", "options": options}, TASK)


def rows(model, clients):
    return torch.stack([model.initial(torch.Generator().manual_seed(i)) for i in range(clients)])


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_and_gradients_equal_the_twin(training):
    model = make("Normed", hidden=5)
    assert model.layout.buffers == {"norm.running_mean", "norm.running_var"}
    assert model.layout.names[-2:] == ("norm.running_mean", "norm.running_var")
    matrix = rows(model, 3).requires_grad_()
    before = matrix.detach().clone()
    inputs = torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(1))
    outputs, changed = model.forward(model.layout.unflatten(matrix), inputs, training)
    (gradient,) = torch.autograd.grad(outputs.square().sum(), matrix)
    assert torch.equal(matrix.detach(), before)
    for client in range(3):
        twin = model.twin().train(training)
        twin.load_state_dict(model.layout.row_state(before[client]), strict=False)
        expected = twin(inputs[client])
        torch.testing.assert_close(outputs[client], expected, atol=1e-5, rtol=1e-4)
        for name in model.layout.buffers:
            torch.testing.assert_close(changed[name][client], twin.state_dict()[name])
        expected.square().sum().backward()
        flat = torch.cat([value.grad.flatten() for value in twin.parameters()])
        torch.testing.assert_close(gradient[client, : model.layout.num_trainable], flat, atol=1e-5, rtol=1e-3)
    assert model.module.norm.num_batches_tracked == 0


def test_frozen_parameters_are_not_trained():
    model = make("Frozen")
    assert model.layout.buffers == {"fixed.weight", "fixed.bias"}
    assert model.layout.num_trainable == 12
    assert model.layout.names[:2] == ("last.weight", "last.bias")


def test_dropout_differs_between_clients_and_is_off_in_evaluation():
    model = make("Dropped")
    matrix = rows(model, 1).expand(2, -1)
    inputs = torch.randn(1, 16, 4, generator=torch.Generator().manual_seed(0)).expand(2, -1, -1)
    state = model.layout.unflatten(matrix)
    first, second = model.forward(state, inputs, training=True)[0]
    assert not torch.equal(first, second)
    first, second = model.forward(state, inputs, training=False)[0]
    assert torch.equal(first, second)


def test_falls_back_to_a_loop_where_vmap_cannot_and_says_so_once(caplog):
    model = make("Branching")
    matrix = rows(model, 2)
    inputs = torch.stack([torch.ones(3, 4), -torch.ones(3, 4)])
    for _ in range(2):
        outputs, _ = model.forward(model.layout.unflatten(matrix), inputs, training=True)
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        "their_models:Branching cannot be vectorised over clients; they run one by one"
    ]
    for client in range(2):
        twin = model.twin()
        twin.load_state_dict(model.layout.row_state(matrix[client]))
        torch.testing.assert_close(outputs[client], twin(inputs[client]))


def test_a_failed_vmap_does_not_shift_what_a_module_draws():
    model = make("DroppedThenBranching")
    state, inputs = model.layout.unflatten(rows(model, 2)), torch.randn(2, 8, 4, generator=torch.Generator())
    outputs = []
    with torch.random.fork_rng(devices=[]):
        for _ in range(2):  # only the first one tries vmap
            torch.manual_seed(5)
            outputs.append(model.forward(state, inputs, training=True)[0])
    assert not model.vectorise
    assert torch.equal(*outputs)


def test_hashed_draws_do_not_depend_on_vmap():
    name = "DroppedThenBranching"
    model, keys = make(name), torch.tensor([5, 6])
    state, inputs = model.layout.unflatten(rows(model, 2)), torch.randn(2, 8, 4, generator=torch.Generator())
    with drawing_from(keys):
        outputs = model.forward(state, inputs, training=True)[0]
    assert not model.vectorise
    for client in range(2):
        own = {name: value[client : client + 1] for name, value in state.items()}
        with drawing_from(keys[client : client + 1]):
            assert torch.equal(model.forward(own, inputs[client : client + 1], True)[0][0], outputs[client])


def test_in_evaluation_nothing_is_drawn_by_keys():
    model = make("Dropped")
    state, inputs = model.layout.unflatten(rows(model, 2)), torch.ones(2, 8, 4)
    with drawing_from(torch.tensor([5, 6])):
        outputs = model.forward(state, inputs, training=False)[0]
    assert torch.equal(outputs, model.forward(state, inputs, training=False)[0])


@pytest.mark.parametrize(
    ("name", "hashed", "padded"),
    [("Dropped", True, True), ("Normed", True, False), ("DrawsOrders", False, True), ("Frozen", True, True)],
)
def test_whether_draws_can_be_hashes_is_found_by_trying(name, hashed, padded):
    model = make(name)
    assert model.draws_hashed is hashed
    assert model.draws_padded is padded


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("their_models:Absent", {}, r"name = 'their_models:Absent': .* has no 'Absent'"),
        ("no_such_package:Model", {}, "'no_such_package'"),
        ("their_models:number", {}, "derived .*torch.nn.Module"),
        ("their_models:Normed", {"wide": 3}, r"cannot be built from the options .*'wide'"),
        (
            "torch_geometric.nn:Sequential",
            {"input_args": "x: print(1)", "modules": []},
            "parenthesis, which may be code",
        ),
        ("their_models:Listed", {}, r"Listed .*nn\.ModuleList"),
        ("their_models:WrongOutput", {}, r"\[2, 5\] .*\(4,\); .*\[2, 3\]"),
        ("their_models:Pair", {}, r"Pair returns a tuple: .* one tensor \[2, 3\] for two inputs"),
        ("their_models:WrongInput", {}, r"fails on two inputs of shape \(4,\)"),
    ],
)
def test_messages(name, options, message):
    with pytest.raises(ExperimentError, match=message):
        build({"name": name, "options": options}, TASK)


def test_lazy_layers_get_the_shapes_of_the_task():
    model = make("Lazy")
    assert model.layout.shapes_by_name()["layers.0.weight"] == (6, 4)
    assert model.layout.buffers == {"layers.1.running_mean", "layers.1.running_var"}
    first, again, other = (model.initial(torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    start = model.layout.row_state(first)
    assert bool((start["layers.1.running_var"] == 1).all()), "as before any training"
    outputs, _ = model.forward(model.layout.unflatten(first[None]), torch.randn(1, 5, 4), training=True)
    assert outputs.shape == (1, 5, 3)


def test_parameters_of_another_type_become_float32_and_that_is_said(caplog):
    model = make("InBfloat16")
    assert model.twin().last.weight.dtype == torch.float32
    (said,) = (record.getMessage() for record in caplog.records)
    assert "InBfloat16 has bfloat16 parameters: fedgraph makes every model float32" in said
    with pytest.raises(ExperimentError, match="bfloat16: .*float32"):
        make("InBfloat16Alone")


def test_complex_parameters_are_refused():
    with pytest.raises(ExperimentError, match="filter is complex"):
        make("Complex")


def test_counters_that_training_would_change_are_said_and_must_not_count_batches(caplog):
    make("Counting")
    (said,) = (record.getMessage() for record in caplog.records)
    assert "Counting changes calls in training: buffers that are no floating-point numbers keep" in said
    make("Normed")
    assert len(caplog.records) == 1
    with pytest.raises(ExperimentError, match=r"layer 'norm' averages over all batches so far \(momentum=None\)"):
        make("NormedOverAll")


def test_a_classifier_that_puts_out_probabilities_is_warned_of(caplog):
    make("Softmaxed", logarithm=True)
    build({"name": "their_models:Softmaxed"}, TaskSpec("regression", (4,), (3,)))
    assert not caplog.records
    make("Softmaxed")
    assert "Softmaxed puts out probabilities: its last softmax is one too many" in caplog.text


def test_what_is_not_in_the_layout_is_alike_in_every_process():
    one, other = (make("Tied").twin() for _ in range(2))
    assert torch.equal(one.drawn, other.drawn)
    assert torch.equal(one.places, other.places)
    assert "second.weight" not in make("Tied").layout.names
    before = np.random.get_state()[1].tolist()
    make("Tied")
    assert np.random.get_state()[1].tolist() == before


def test_whole_numbers_are_computed_with_as_such():
    model = make("Tied")
    state = model.layout.unflatten(rows(model, 2))
    outputs, _ = model.forward(state, torch.ones(2, 3, 4), training=False)
    for client in range(2):
        twin = model.twin().eval()
        twin.load_state_dict({name: value[client] for name, value in state.items()}, strict=False)
        torch.testing.assert_close(outputs[client], twin(torch.ones(3, 4)))


@pytest.mark.parametrize(
    ("name", "in_training", "in_evaluation", "least"),
    [("Normed", True, False, 2), ("Frozen", False, False, 1), ("Dropped", True, False, 1), ("Lazy", True, False, 2)],
)
def test_whether_examples_influence_each_other_is_found_by_trying(name, in_training, in_evaluation, least):
    model = make(name)
    assert model.mixes_examples(training=True) == in_training, "what draws is assumed to"
    assert model.mixes_examples(training=False) == in_evaluation
    assert model.least_examples == least


class Viewed(nn.Module):
    """Relies on channels that come first in memory, unless told otherwise."""

    def __init__(self, copies=False):
        super().__init__()
        self.convolution, self.last, self.copies = nn.Conv2d(2, 3, 3), nn.Linear(3 * 36, 3), copies

    def forward(self, images):
        values = self.convolution(images)
        return self.last(values.flatten(1) if self.copies else values.view(len(values), -1))


@pytest.mark.parametrize("copies", [False, True])
def test_channels_come_last_where_the_module_bears_it(monkeypatch, copies):
    monkeypatch.setitem(sys.modules, "own_modules", types.SimpleNamespace(Viewed=Viewed))
    task = TaskSpec("classification", (2, 8, 8), (3,))
    model = build({"name": "own_modules:Viewed", "options": {"copies": copies}}, task)
    assert model.sequential
    assert model._channels_last is copies
    row = model.initial(torch.Generator().manual_seed(0))[None]
    images = torch.randn(1, 5, 2, 8, 8)
    twin = model.twin()
    twin.load_state_dict(model.layout.row_state(row[0]))
    outputs, _ = model.forward(model.layout.unflatten(row), images, training=True)
    torch.testing.assert_close(outputs[0], twin(images[0]), atol=1e-5, rtol=1e-4)


class Quantised(nn.Module):
    """A frozen layer of whole numbers before a convolution."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([2], dtype=torch.int8), requires_grad=False)
        self.convolution, self.last = nn.Conv2d(2, 3, 3), nn.Linear(3 * 36, 3)

    def forward(self, images):
        return self.last(self.convolution(images * self.scale).flatten(1))


def test_whole_numbers_do_not_keep_channels_from_coming_last(monkeypatch):
    monkeypatch.setitem(sys.modules, "own_modules", types.SimpleNamespace(Quantised=Quantised))
    model = build({"name": "own_modules:Quantised"}, TaskSpec("classification", (2, 8, 8), (3,)))
    assert model._channels_last
    row = model.initial(torch.Generator().manual_seed(0))[None]
    outputs, _ = model.forward(model.layout.unflatten(row), torch.randn(1, 5, 2, 8, 8), training=True)
    assert outputs.shape == (1, 5, 3)


def test_slots_are_functional_call_without_looking():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.norm = nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3)
            self.second.weight = self.first.weight

        def forward(self, inputs):
            return self.norm(self.second(self.first(inputs).relu()))

    module, inputs = Tied(), torch.randn(5, 3)
    own = {name: value.clone() for name, value in module.state_dict().items()}
    tensors = {name: torch.rand_like(value) for name, value in module.named_parameters()}
    tensors["norm.running_mean"], twice = torch.zeros(3), torch.zeros(3)

    found = Slots(module).call(tensors, Call((inputs,)))

    torch.testing.assert_close(found, functional_call(module, {**tensors, "norm.running_mean": twice}, (inputs,)))
    torch.testing.assert_close(tensors["norm.running_mean"], twice)
    for name, value in module.named_parameters():
        assert torch.equal(value, own[name])
    with pytest.raises(RuntimeError):
        Slots(module).call(tensors, Call((torch.randn(5, 4),)))
    assert all(torch.equal(value, own[name]) for name, value in module.named_parameters())
