"""Frozen layers: everything else trains as if the gradient of the frozen tensors were masked."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from fedgraph.data.base import CohortData
from fedgraph.data.examples import ExampleSplit
from fedgraph.models import build
from fedgraph.models.base import TaskSpec
from fedgraph.models.frozen import FrozenLayers
from fedgraph.support.errors import ExperimentError
from fedgraph.training.batches import shuffling_keys, training_batches
from fedgraph.training.cohort import Cohort, TrainSettings

TASK = TaskSpec("classification", (6, 2), (3,))
IMAGES = TaskSpec("classification", (1, 8, 8), (3,))


def unwrapped(frozen, rows):
    """Rows of the model itself: each is found among the columns that ``wrapped`` gives its numbers."""
    columns = frozen.wrapped(torch.arange(float(rows.shape[1]))[None])[0].long()
    return torch.empty_like(rows).index_copy(1, columns, rows)


def make_data(task, clients=3, examples=11):
    random = torch.Generator().manual_seed(3)
    inputs = torch.randn(clients * examples, *task.input_shape, generator=random)
    targets = torch.randint(3, (clients * examples,), generator=random)
    split = ExampleSplit(inputs, targets, torch.arange(clients * examples).reshape(clients, examples))
    names = tuple(f"owner {number}" for number in range(clients))
    return CohortData(names, task, {"train": split}, torch.zeros(clients), torch.ones(clients))


def rows_of(model):
    return torch.stack([model.initial(torch.Generator().manual_seed(i)) for i in range(3)])


@pytest.mark.parametrize("compiled", [False, True])
def test_equals_a_masked_gradient(compiled):
    model = build({"name": "lstm", "hidden": 4, "read-out": "steps"}, TASK)
    model = model.compiled() if compiled else model
    frozen = FrozenLayers(model, ["head.*", "combine.bias"])
    assert frozen.native == compiled
    settings = TrainSettings(optimizer="sgd", learning_rate=0.1, batch_size=11, local_epochs=1, workers=1)
    data, start = make_data(TASK), rows_of(frozen)
    trained = Cohort(frozen, data, settings, seed=1).train(start, round=1).parameters

    # The whole set is one minibatch, so its order does not count.
    rows = unwrapped(frozen, start).requires_grad_()
    batch = data.splits["train"].batch(torch.arange(11).expand(3, -1))
    outputs, _ = model.forward(model.layout.unflatten(rows), batch.inputs, training=True)
    loss = sum(functional.cross_entropy(*each) for each in zip(outputs, batch.targets, strict=True))
    (gradient,) = torch.autograd.grad(loss, rows)
    for name, value in model.layout.unflatten(gradient).items():
        assert value.any()
        if name in ("head.weight", "head.bias", "combine.bias"):
            value.zero_()
    torch.testing.assert_close(unwrapped(frozen, trained), rows.detach() - 0.1 * gradient, atol=1e-6, rtol=1e-5)
    for name in ("head.weight", "head.bias", "combine.bias"):
        assert torch.equal(*(frozen.layout.unflatten(each)[name] for each in (trained, start)))


def test_short_last_minibatches_count_their_own_examples_only():
    model = build({"name": "mlp", "hidden": []}, TASK)
    frozen = FrozenLayers(model, ["head.bias"])
    settings = TrainSettings(optimizer="sgd", learning_rate=0.1, batch_size=4, local_epochs=2, workers=1)
    data, start = make_data(TASK), rows_of(frozen)
    trained = Cohort(frozen, data, settings, seed=1).train(start, round=1).parameters
    split, counts = data.splits["train"], torch.full((3,), 11)
    for client in range(3):
        state = frozen.layout.row_state(start[client])
        weight = state["head.weight"].requires_grad_()
        for indices in training_batches(shuffling_keys(1, data.names), counts, settings, round=1)[:, client]:
            rows = split.rows[client, indices[indices >= 0]]
            loss = functional.cross_entropy(
                split.inputs[rows].flatten(1) @ weight.T + state["head.bias"], split.targets[rows]
            )
            weight.grad = None
            loss.backward()
            weight.data -= 0.1 * weight.grad
        found = frozen.layout.row_state(trained[client])["head.weight"]
        torch.testing.assert_close(found, weight.detach(), atol=1e-6, rtol=1e-5)


def test_order_and_representation_are_those_of_the_model():
    model = build({"name": "resnet9", "width": 2}, IMAGES)
    frozen = FrozenLayers(model, ["prep.*"])
    assert frozen.layout.names[: len(frozen.layout.names) - len(frozen.layout.buffers)] == tuple(
        name for name in model.layout.names if name not in frozen.layout.buffers
    )
    rows = rows_of(model)
    assert torch.equal(rows_of(frozen), frozen.wrapped(rows))
    inputs = torch.randn(3, 4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    state, whole = frozen.layout.unflatten(frozen.wrapped(rows)), model.layout.unflatten(rows)
    for found, expected in zip(frozen.represent(state, inputs), model.represent(whole, inputs), strict=True):
        assert torch.equal(found, expected)
    assert (frozen.embedding_size, frozen.head_tensors) == (8, ("head.weight",))
    frozen.twin().load_state_dict(frozen.layout.row_state(frozen.wrapped(rows)[0]), strict=False)


def test_running_statistics_of_a_frozen_layer_stay():
    model = build({"name": "resnet9", "width": 2}, IMAGES)
    frozen = FrozenLayers(model, ["prep.*"])
    state = frozen.layout.unflatten(rows_of(frozen))
    inputs = torch.randn(3, 4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for changed in (frozen.forward(state, inputs, True)[1], frozen.embed(state, inputs, True)[1]):
        assert "layer1.norm.running_mean" in changed
        assert not any(name.startswith("prep.") for name in changed)


def test_a_pattern_without_a_tensor_is_refused():
    with pytest.raises(ExperimentError, match=r"'heat\.\*'; .*recurrent.weight_ih_l0"):
        FrozenLayers(build({"name": "lstm"}, TASK), ["heat.*"])
