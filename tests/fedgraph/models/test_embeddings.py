"""The embedding of a model is the input of its last linear layer."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import nn

from fedgraph.models import build
from fedgraph.models.base import TaskSpec
from fedgraph.support.errors import ExperimentError

SEQUENCE = TaskSpec("classification", (6, 2), (3,))
IMAGES = TaskSpec("classification", (2, 8, 8), (4,))
VECTOR = TaskSpec("classification", (4,), (3,))

CASES = [
    ({"name": "gru", "hidden": 5, "layers": 2}, SEQUENCE, 5),
    ({"name": "lstm", "hidden": 7, "read-out": "steps"}, SEQUENCE, 7),
    ({"name": "rnn", "hidden": 3, "read-out": "steps"}, SEQUENCE, 3),
    ({"name": "mlp", "hidden": [9, 6]}, SEQUENCE, 6),
    ({"name": "mlp", "hidden": []}, SEQUENCE, 12),
    ({"name": "cnn", "channels": [3, 4]}, IMAGES, 16),
    ({"name": "resnet9", "width": 2}, IMAGES, 8),
    ({"name": "their_embeddings:Backwards"}, VECTOR, 6),
    ({"name": "their_embeddings:Backwards", "embedding-layer": "first"}, VECTOR, 4),
    ({"name": "their_embeddings:Backwards", "embedding-layer": "norm"}, VECTOR, 6),
    ({"name": "their_embeddings:Branching"}, VECTOR, 5),
    ({"name": "their_embeddings:Twice"}, VECTOR, 3),
]


class Backwards(nn.Module):
    """The last layer to be called is the first one to be made."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 3)
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, inputs):
        return self.last(self.norm(self.first(inputs)).relu())


class Branching(nn.Module):
    """What vmap cannot compute."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, inputs):
        values = self.first(inputs)
        return self.last(values if inputs.sum() > 0 else -values)


class Twice(nn.Module):
    """A layer that is called twice: its second input counts."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 3)

    def forward(self, inputs):
        return self.last(self.last(self.first(inputs)).tanh())


class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 3))
        self.unused = nn.Linear(4, 3)

    def forward(self, inputs):
        return inputs @ self.weight


@pytest.fixture(autouse=True)
def user_package(monkeypatch):
    module = types.ModuleType("their_embeddings")
    for kind in (Backwards, Branching, Twice, Product):
        setattr(module, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, "their_embeddings", module)


def stacked(model, clients=3):
    return torch.stack([model.initial(torch.Generator().manual_seed(i)) for i in range(clients)])


@pytest.mark.parametrize(("table", "task", "size"), CASES)
@pytest.mark.parametrize("training", [True, False])
def test_embedding_is_what_the_twins_last_layer_sees(table, task, size, training):
    model = build(table, task)
    assert model.embedding_size == size
    rows = stacked(model)
    inputs = torch.randn(3, 5, *task.input_shape, generator=torch.Generator().manual_seed(0))
    state = model.layout.unflatten(rows)
    embeddings, changed = model.embed(state, inputs, training)
    expected_outputs, expected_changed = model.forward(state, inputs, training)
    assert embeddings.shape == (3, 5, size)
    assert set(changed) == set(expected_changed)
    assert all(torch.equal(changed[name], expected_changed[name]) for name in changed)
    layer = table.get("embedding-layer") or ("last" if ":" in table["name"] else "head")
    for client in range(3):
        twin = model.twin().train(training)
        twin.load_state_dict(model.layout.row_state(rows[client]), strict=False)
        seen = []
        twin.get_submodule(layer).register_forward_pre_hook(lambda layer, given, seen=seen: seen.append(given[0]))
        twin(inputs[client])
        torch.testing.assert_close(embeddings[client], seen[-1], atol=1e-5, rtol=1e-4)
    if not training:
        both = model.represent(state, inputs)
        assert torch.equal(both[0], embeddings)
        assert torch.equal(both[1], expected_outputs)


def test_gradient_flows_through_embeddings():
    model = build({"name": "their_embeddings:Backwards"}, VECTOR)
    rows = stacked(model).requires_grad_()
    embeddings, _ = model.embed(model.layout.unflatten(rows), torch.ones(3, 5, 4).cumsum(1), training=False)
    assert model.vectorise
    (gradient,) = torch.autograd.grad(embeddings.square().sum(), rows)
    reached = {name for name, value in model.layout.unflatten(gradient).items() if value.any()}
    assert {"first.weight", "first.bias"} <= reached
    assert not reached & {"last.weight", "last.bias"}


@pytest.mark.parametrize(
    ("table", "names"),
    [
        ({"name": "gru"}, ("head.weight", "head.bias")),
        ({"name": "their_embeddings:Branching"}, ("last.weight", "last.bias")),
        ({"name": "their_embeddings:Branching", "embedding-layer": "first"}, ("first.weight", "first.bias")),
    ],
)
def test_tensors_of_the_last_layer(table, names):
    assert build(table, VECTOR if ":" in table["name"] else SEQUENCE).head_tensors == names


def test_a_module_without_a_linear_layer_says_so_when_asked():
    model = build({"name": "their_embeddings:Product"}, VECTOR)
    state, inputs = model.layout.unflatten(stacked(model)), torch.ones(3, 2, 4)
    assert model.forward(state, inputs, training=False)[0].shape == (3, 2, 3)
    for ask in (lambda: model.embedding_size, lambda: model.embed(state, inputs, training=False)):
        with pytest.raises(ExperimentError, match=r"torch\.nn\.Linear.*embedding-layer"):
            ask()


def test_unknown_and_unused_layers_are_refused():
    with pytest.raises(ExperimentError, match="'hidden'; .*last, first, norm"):
        build({"name": "their_embeddings:Backwards", "embedding-layer": "hidden"}, VECTOR)
    model = build({"name": "their_embeddings:Product", "embedding-layer": "unused"}, VECTOR)
    with pytest.raises(ExperimentError, match="layer 'unused'"):
        _ = model.embedding_size
