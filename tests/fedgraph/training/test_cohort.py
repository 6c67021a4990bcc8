"""Training many clients together equals training each alone, and equals plain PyTorch."""

from __future__ import annotations

import dataclasses
import math
import shutil
import sys
import types

import pytest
import torch
from torch import nn

from fedgraph.data.base import CohortData
from fedgraph.data.images.augmentation import ImageAugmentation
from fedgraph.models import build
from fedgraph.models.base import Batch, TaskSpec
from fedgraph.models.hashed_draws import HashedDraws
from fedgraph.models.native.loader import COMPILERS
from fedgraph.support import devices
from fedgraph.support.errors import DataError, ExperimentError, RunError
from fedgraph.training.batches import example_numbers, keys_of_steps, shuffling_keys, training_batches
from fedgraph.training.cohort import Cohort, TrainSettings, mean_of
from fedgraph.training.local_training import LocalTraining

SIZES = (11, 4, 7, 1)
FORECAST = TaskSpec("forecast", (5, 1), (3,), step_minutes=5)
CLASSES = TaskSpec("classification", (4,), (3,))

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="needs a C++ compiler")


class Examples:
    """A split of given tensors ``[clients, examples, ...]``, of which each client has the first few."""

    def __init__(self, inputs, targets, weights, num_examples):
        self.inputs, self.targets, self.weights, self.num_examples = inputs, targets, weights, num_examples

    def batch(self, indices):
        rows, present = torch.arange(len(indices))[:, None], indices >= 0
        inputs, targets, weights = (
            each[rows, indices.clamp(min=0)] for each in (self.inputs, self.targets, self.weights)
        )
        return Batch(inputs, targets, weights * present.view(*present.shape, *[1] * (weights.dim() - 2)))

    def select(self, clients):
        parts = (self.inputs, self.targets, self.weights, self.num_examples)
        return Examples(*(part[clients] for part in parts))

    def to(self, device):
        parts = (self.inputs, self.targets, self.weights, self.num_examples)
        return Examples(*(part.to(device) for part in parts))


def make_data(task=FORECAST, sizes=SIZES, seed=0):
    random = torch.Generator().manual_seed(seed)
    clients, most = len(sizes), max(sizes)
    inputs = torch.randn(clients, most, *task.input_shape, generator=random)
    if task.kind == "classification":
        targets = torch.randint(task.output_shape[0], (clients, most), generator=random)
        weights = torch.ones(clients, most)
    else:
        targets = torch.randn(clients, most, *task.output_shape, generator=random)
        weights = (torch.rand(targets.shape, generator=random) < 0.8).float()
        targets = targets.masked_fill(weights == 0, math.nan)
    split = Examples(inputs, targets, weights, torch.tensor(sizes))
    return CohortData(
        tuple(f"client-{i}" for i in range(clients)),
        task,
        {"train": split, "test": split},
        torch.linspace(0, 3, clients),
        torch.linspace(1, 2, clients),
    )


def subset(data, rows):
    splits = {}
    for name, split in data.splits.items():
        parts = (split.inputs, split.targets, split.weights, split.num_examples)
        splits[name] = Examples(*(part[rows] for part in parts))
    return CohortData(tuple(data.names[i] for i in rows), data.task, splits, data.mean[rows], data.std[rows])


def rows_of(model, clients=4):
    return torch.stack([model.initial(torch.Generator().manual_seed(i)) for i in range(clients)])


GRU = build({"name": "gru", "hidden": 5}, FORECAST)
MLP = build({"name": "mlp", "hidden": [6]}, CLASSES)

TABLES = [
    {"learning-rate": 0.1, "batch-size": 3, "local-epochs": 2},
    {"learning-rate": 0.1, "batch-size": 3, "local-epochs": 2, "momentum": 0.9, "nesterov": True, "clip-norm": 0.2},
    {"optimizer": "adam", "batch-size": 4, "local-epochs": 3, "weight-decay": 0.1},
    {"optimizer": "adamw", "batch-size": 5, "local-steps": 6, "weight-decay": 0.1, "clip-norm": 0.5},
    {"learning-rate": 0.1, "batch-size": 3, "local-epochs": 2, "drop-last": True, "momentum": 0.5, "loss": "huber"},
]


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_together_equals_one_by_one_in_any_order_and_block(table):
    data, start = make_data(), rows_of(GRU)
    keep = table | {"keep-optimizer": True}
    together = Cohort(GRU, data, TrainSettings(**keep), seed=1).train(start, round=2)
    blocked = Cohort(GRU, data, TrainSettings(**keep, block_size=3), seed=1).train(start, round=2)
    single = Cohort(GRU, data, TrainSettings(**keep, block_size=1), seed=1).train(start, round=2)
    order = [2, 0, 3, 1]
    shuffled = Cohort(GRU, subset(data, order), TrainSettings(**keep), seed=1).train(start[order], round=2)
    for rows, other in ((slice(None), blocked), (slice(None), single), (order, shuffled)):
        torch.testing.assert_close(other.parameters, together.parameters[rows], atol=1e-6, rtol=1e-4)
        torch.testing.assert_close(other.loss, together.loss[rows])
        assert torch.equal(other.steps, together.steps[rows])
        for name, moments in together.optimizer_state.items():
            torch.testing.assert_close(other.optimizer_state[name], moments[rows], atol=1e-6, rtol=1e-4)
    for client in range(len(SIZES)):
        alone = Cohort(GRU, subset(data, [client]), TrainSettings(**keep), seed=1).train(start[[client]], round=2)
        torch.testing.assert_close(alone.parameters[0], together.parameters[client], atol=1e-6, rtol=1e-4)
        assert (alone.parameters[0] - start[client]).abs().max() > 1e-3


def test_equals_plain_torch():
    data, start = make_data(), rows_of(GRU)
    settings = TrainSettings(learning_rate=0.1, batch_size=16, local_epochs=3, momentum=0.9, clip_norm=0.3)
    result = Cohort(GRU, data, settings, seed=0).train(start, round=1)
    assert result.steps.tolist() == [3, 3, 3, 3]
    assert result.num_examples.tolist() == list(SIZES)
    split = data.splits["train"]
    for client, count in enumerate(SIZES):
        twin = GRU.twin()
        twin.load_state_dict(GRU.layout.row_state(start[client]))
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
        inputs, targets, weights = (each[client, :count] for each in (split.inputs, split.targets, split.weights))
        losses = []
        for _ in range(3):
            kept = weights > 0
            loss = (twin(inputs)[kept] - targets[kept]).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(twin.parameters(), 0.3)
            optimizer.step()
            losses.append(loss.item())
        expected = torch.cat([value.detach().flatten() for value in twin.parameters()])
        torch.testing.assert_close(result.parameters[client], expected, atol=1e-6, rtol=1e-4)
        assert result.loss[client].item() == pytest.approx(sum(losses) / 3, rel=1e-5)


def test_inputs_and_the_global_generator_stay_as_they_are():
    data, start = make_data(CLASSES), rows_of(MLP)
    kept = start.clone()
    before = torch.get_rng_state()
    cohort = Cohort(MLP, data, TrainSettings(momentum=0.5, keep_optimizer=True), seed=0)
    first = cohort.train(start, round=1)
    moments = {name: value.clone() for name, value in first.optimizer_state.items()}
    cohort.train(start, round=2, optimizer_state=first.optimizer_state)
    cohort.evaluate(start, "test")
    assert torch.equal(start, kept)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first.optimizer_state[name], value) for name, value in moments.items())
    torch.manual_seed(99)
    assert torch.equal(cohort.train(start, round=1).parameters, first.parameters)


def test_gradient_term_is_added_before_clipping_and_knows_its_clients():
    data, start = make_data(), rows_of(GRU)
    pulls = torch.randn(start.shape, generator=torch.Generator().manual_seed(3)) * 100
    seen = []

    def term(parameters, clients, batch_weight):
        seen.append((clients, batch_weight.tolist()))
        assert torch.equal(parameters, start[clients])
        return pulls[clients]

    settings = TrainSettings(learning_rate=1.0, batch_size=16, clip_norm=0.5, block_size=2, workers=1)
    result = Cohort(GRU, data, settings, seed=0).train(start, round=1, gradient_term=term)
    assert seen == [(slice(0, 2), [11.0, 4.0]), (slice(2, 4), [7.0, 1.0])]
    moved = start - result.parameters
    torch.testing.assert_close(moved.norm(dim=1), torch.full((4,), 0.5))
    assert (nn.functional.cosine_similarity(moved, pulls) > 0.99).all()


def test_gradient_term_gets_the_rows_of_those_still_training():
    data, start = make_data(), rows_of(GRU)
    seen = []

    def term(parameters, clients, batch_weight):
        seen.append((clients.tolist(), batch_weight.tolist()))
        return torch.zeros_like(parameters)

    Cohort(GRU, data, TrainSettings(batch_size=4), seed=0).train(start, round=1, gradient_term=term)
    assert seen == [([0, 2, 1, 3], [4.0, 4.0, 4.0, 1.0]), ([0, 2], [4.0, 3.0]), ([0], [3.0])]


@pytest.mark.parametrize("workers", [2, 5])
def test_the_number_of_workers_changes_no_bit(workers):
    data, start = make_data(sizes=(11, 4, 7, 1, 9, 9)), rows_of(GRU, 6)
    table = {"momentum": 0.9, "batch-size": 4, "local-epochs": 3, "keep-optimizer": True, "block-size": 1}
    one, many = (Cohort(GRU, data, TrainSettings(**table, workers=count), seed=0) for count in (1, workers))
    alone, together = one.train(start, round=1), many.train(start, round=1)
    assert torch.equal(alone.parameters, together.parameters)
    assert torch.equal(alone.optimizer_state["momentum"], together.optimizer_state["momentum"])
    assert torch.equal(alone.loss, together.loss)
    for name, values in one.evaluate(start, "test").items():
        assert torch.equal(many.evaluate(start, "test")[name], values)
    assert torch.equal(one.predict(start, "test").nan_to_num(), many.predict(start, "test").nan_to_num())


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_kept_moments_continue_where_the_last_round_stopped(optimizer):
    data, start = make_data(CLASSES, sizes=(8, 8)), rows_of(MLP, 2)
    table = {"optimizer": optimizer, "momentum": 0.9, "batch-size": 8, "learning-rate": 0.05}
    once = Cohort(MLP, data, TrainSettings(**table, local_epochs=2, keep_optimizer=True), seed=0).train(start, 1)
    cohort = Cohort(MLP, data, TrainSettings(**table, local_epochs=1, keep_optimizer=True), seed=0)
    half = cohort.train(start, 1)
    full = cohort.train(half.parameters, 1, optimizer_state=half.optimizer_state)
    torch.testing.assert_close(full.parameters, once.parameters)
    assert not torch.allclose(cohort.train(half.parameters, 1).parameters, once.parameters, atol=1e-4)
    assert Cohort(MLP, data, TrainSettings(**table), seed=0).train(start, 1).optimizer_state == {}


@pytest.mark.parametrize("table", [{"local-steps": 0}, {"local-epochs": 0}])
def test_no_local_steps_means_no_training(table):
    start = rows_of(GRU)
    result = Cohort(GRU, make_data(), TrainSettings(**table), seed=0).train(start, round=1)
    assert torch.equal(result.parameters, start)
    assert result.loss.isnan().all()
    assert result.steps.tolist() == [0, 0, 0, 0]


def test_training_learns_and_the_learning_rate_decays():
    data, start = make_data(CLASSES, sizes=(40, 40)), rows_of(MLP, 2)
    settings = TrainSettings(optimizer="adam", learning_rate=0.02, local_epochs=60, batch_size=10)
    cohort = Cohort(MLP, data, settings, seed=0)
    trained = cohort.train(start, round=1).parameters
    before, after = cohort.evaluate(start, "train"), cohort.evaluate(trained, "train")
    assert (after["loss"] < 0.7 * before["loss"]).all()
    assert (after["accuracy"] > before["accuracy"]).all()
    decayed = TrainSettings(learning_rate=0.1, learning_rate_decay=0.5, batch_size=40)
    moves = [(Cohort(MLP, data, decayed, seed=0).train(start, round).parameters - start) for round in (1, 2)]
    torch.testing.assert_close(moves[0], 2 * moves[1], atol=1e-6, rtol=1e-3)


def test_evaluation_equals_each_twin_and_does_not_depend_on_batches():
    data, rows = make_data(), rows_of(GRU)
    cohort = Cohort(GRU, data, TrainSettings(), seed=0)
    whole = cohort.evaluate(rows, "test", horizons=(3,))
    assert set(whole) == {f"{kind}{at}" for kind in ("mae", "rmse", "mape") for at in ("", "-15min")}
    for name, value in cohort.evaluate(rows, "test", horizons=(3,), batch_size=2).items():
        torch.testing.assert_close(value, whole[name], rtol=1e-6, atol=0, equal_nan=True)
    split = data.splits["test"]
    predictions = cohort.predict(rows, "test", batch_size=3)
    assert predictions.shape == (4, 11, 3)
    for client, count in enumerate(SIZES):
        twin = GRU.twin()
        twin.load_state_dict(GRU.layout.row_state(rows[client]))
        scale = data.std[client], data.mean[client]
        outputs = twin(split.inputs[client, :count]).detach() * scale[0] + scale[1]
        torch.testing.assert_close(predictions[client, :count], outputs, atol=1e-5, rtol=1e-5)
        assert predictions[client, count:].isnan().all()
        kept = split.weights[client, :count] > 0
        error = (outputs - split.targets[client, :count] * scale[0] - scale[1])[kept]
        assert whole["mae"][client].item() == pytest.approx(error.abs().mean().item(), rel=1e-5)
        assert whole["rmse"][client].item() == pytest.approx(error.square().mean().sqrt().item(), rel=1e-5)


def test_a_client_without_examples_in_a_split_gets_nan():
    data = make_data(CLASSES)
    split = data.splits["test"]
    data.splits["test"] = Examples(split.inputs, split.targets, split.weights, torch.tensor([3, 0, 2, 0]))
    cohort = Cohort(MLP, data, TrainSettings(block_size=1), seed=0)
    assert cohort.evaluate(rows_of(MLP), "test")["accuracy"].isnan().tolist() == [False, True, False, True]
    assert cohort.predict(rows_of(MLP), "test")[1].isnan().all()


@pytest.mark.parametrize("workers", [1, 2])
def test_predicted_classes_are_those_of_each_twin_beside_the_true_ones(workers):
    data, rows = make_data(CLASSES), rows_of(MLP)
    cohort = Cohort(MLP, data, TrainSettings(workers=workers, block_size=2), seed=0)
    predicted, targets = cohort.classify(rows, "test", batch_size=3)
    assert predicted.shape == targets.shape == (4, 11)
    for client, count in enumerate(SIZES):
        twin = MLP.twin()
        twin.load_state_dict(MLP.layout.row_state(rows[client]))
        own = data.splits["test"]
        assert torch.equal(predicted[client, :count], twin(own.inputs[client, :count]).argmax(-1))
        assert torch.equal(targets[client, :count], own.targets[client, :count])
    past = torch.arange(11) >= torch.tensor(SIZES)[:, None]
    assert bool((predicted[past] == -1).all() and (targets[past] == -1).all())
    with pytest.raises(DataError, match="forecast task"):
        Cohort(GRU, make_data(), TrainSettings(), seed=0).classify(rows_of(GRU), "test")


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, inputs):
        return self.last(self.norm(self.first(inputs)).relu())


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, inputs):
        return self.last(nn.functional.dropout(inputs, 0.5, self.training))


def user_model(monkeypatch, kind):
    module = types.ModuleType("their_cohort_models")
    module.Model = kind
    monkeypatch.setitem(sys.modules, "their_cohort_models", module)
    return build({"name": "their_cohort_models:Model"}, CLASSES)


def test_running_statistics_are_trained_like_the_twins_and_stop_with_their_client(monkeypatch):
    model = user_model(monkeypatch, Normed)
    sizes = (8, 4, 6)
    data, start = make_data(CLASSES, sizes=sizes), rows_of(model, 3)
    settings = TrainSettings(learning_rate=0.1, batch_size=4, local_epochs=1)
    together = Cohort(model, data, settings, seed=0).train(start, round=1)
    assert together.steps.tolist() == [2, 1, 2]
    for client in range(3):
        alone = Cohort(model, subset(data, [client]), settings, seed=0).train(start[[client]], round=1)
        torch.testing.assert_close(alone.parameters[0], together.parameters[client], atol=1e-6, rtol=1e-4)
    twin = model.twin()
    twin.load_state_dict(model.layout.row_state(start[1]), strict=False)
    split = data.splits["train"]
    nn.functional.cross_entropy(twin(split.inputs[1, :4]), split.targets[1, :4]).backward()
    expected = twin.state_dict()
    for name, value in model.layout.row_state(together.parameters[1]).items():
        moved = (
            expected[name]
            if name in model.layout.buffers
            else expected[name] - 0.1 * dict(twin.named_parameters())[name].grad
        )
        torch.testing.assert_close(value, moved, atol=1e-6, rtol=1e-4)


class NormedWithoutRunningStatistics(Normed):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6, track_running_stats=False)


@pytest.mark.parametrize("kind", [Normed, NormedWithoutRunningStatistics])
def test_batch_statistics_are_those_of_plain_torch_for_minibatches_of_any_length(monkeypatch, kind):
    model, sizes = user_model(monkeypatch, kind), (7, 3, 11)
    data, start = make_data(CLASSES, sizes=sizes), rows_of(model, 3)
    settings = TrainSettings(learning_rate=0.1, batch_size=1000, local_epochs=3)
    cohort = Cohort(model, data, settings, seed=0)
    trained = cohort.train(start, round=1).parameters
    measured = cohort.evaluate(trained, "train", batch_size=4)["loss"]
    for client, size in enumerate(sizes):
        twin, split = model.twin().train(), data.splits["train"]
        twin.load_state_dict(model.layout.row_state(start[client]), strict=False)
        optimiser = torch.optim.SGD(twin.parameters(), lr=0.1)
        inputs, targets = split.inputs[client, :size], split.targets[client, :size]
        for _ in range(3):
            optimiser.zero_grad()
            nn.functional.cross_entropy(twin(inputs), targets).backward()
            optimiser.step()
        for name, value in model.layout.row_state(trained[client]).items():
            torch.testing.assert_close(value, twin.state_dict()[name], atol=1e-6, rtol=1e-5)
        loss = nn.functional.cross_entropy(twin.eval()(inputs), targets)
        torch.testing.assert_close(measured[client].float(), loss, atol=1e-6, rtol=1e-5)


def test_a_last_minibatch_of_one_is_left_out_where_it_has_no_statistics(monkeypatch, caplog):
    model = user_model(monkeypatch, Normed)
    data, start = make_data(CLASSES, sizes=(5, 1, 6)), rows_of(model, 3)
    settings = TrainSettings(learning_rate=0.1, batch_size=4, local_epochs=1)
    cohort = Cohort(model, data, settings, seed=0)
    result = cohort.train(start, round=1)
    cohort.train(start, round=2)
    assert result.steps.tolist() == [1, 0, 2]
    assert torch.equal(result.parameters[1], start[1])
    assert bool(result.parameters.isfinite().all())
    assert [record.getMessage() for record in caplog.records] == [
        "a minibatch of one example has no batch statistics: it is dropped at the end of an epoch, for 'client-0', "
        "'client-1'; another [train] batch-size may avoid it, and a client with one example in total does not train"
    ]
    with pytest.raises(ExperimentError, match="batch-size = 1: "):
        Cohort(model, data, settings.model_copy(update={"batch_size": 1}), seed=0).train(start, round=1)
    # One example is enough for others.
    dropped = user_model(monkeypatch, Dropped)
    assert Cohort(dropped, data, settings, seed=0).train(rows_of(dropped, 3), round=1).steps.tolist() == [2, 1, 2]


IMAGES = TaskSpec("classification", (2, 8, 8), (3,))


@pytest.mark.parametrize("model", [{"name": "cnn", "channels": [3, 4]}, {"name": "resnet9", "width": 2}], ids=str)
def test_augmented_and_scheduled_training_depends_on_the_client_alone(model):
    model = build(model, IMAGES)
    data, start = make_data(IMAGES), rows_of(model)
    data = dataclasses.replace(data, augment=ImageAugmentation(frozenset({"crop", "flip", "cutout"}), 2, 3))
    table = {
        "learning-rate": 0.2, "warmup-epochs": 1, "final-learning-rate": 0.01, "batch-size": 4, "local-epochs": 3,
        "momentum": 0.9, "nesterov": True,
    }  # fmt: skip
    settings = TrainSettings(**table)
    together = Cohort(model, data, settings, seed=1).train(start, round=2).parameters
    blocked = Cohort(model, data, TrainSettings(**table, block_size=3), seed=1).train(start, round=2).parameters
    order = [2, 0, 3, 1]
    changed = dataclasses.replace(subset(data, order), augment=data.augment)
    shuffled = Cohort(model, changed, settings, seed=1).train(start[order], round=2).parameters
    torch.testing.assert_close(blocked, together, atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(shuffled, together[order], atol=1e-5, rtol=1e-3)
    plain = Cohort(model, dataclasses.replace(data, augment=None), settings, seed=1).train(start, round=2).parameters
    constant = Cohort(model, data, TrainSettings(**{**table, "warmup-epochs": 0, "final-learning-rate": None}), seed=1)
    for other in (plain, constant.train(start, round=2).parameters):
        assert ((other - together).abs().amax(1) > 1e-3).all()


def test_minibatches_are_augmented_as_their_numbers_say():
    """One epoch of two full minibatches against plain PyTorch on images that were changed beforehand."""
    model = build({"name": "cnn", "channels": [3, 4]}, IMAGES)
    data, start = make_data(IMAGES, sizes=(8,)), rows_of(model, 1)
    augment = ImageAugmentation(frozenset({"crop", "flip"}), 2)
    settings = TrainSettings(learning_rate=0.4, batch_size=4, final_learning_rate=0.1)
    found = Cohort(model, dataclasses.replace(data, augment=augment), settings, seed=3).train(start, round=5)
    split, keys = data.splits["train"], shuffling_keys(3, data.names)
    twin = model.twin()
    twin.load_state_dict(model.layout.row_state(start[0]))
    batches = training_batches(keys, torch.tensor([8]), settings, round=5)[:, 0]
    for step, (rows, rate) in enumerate(zip(batches, (0.25, 0.1), strict=True)):
        inputs = augment(split.inputs[:, rows], example_numbers(keys, 5, step, 4))[0]
        optimizer = torch.optim.SGD(twin.parameters(), lr=rate)
        optimizer.zero_grad()
        nn.functional.cross_entropy(twin(inputs), split.targets[0, rows]).backward()
        optimizer.step()
    expected = model.layout.row(twin.state_dict())
    torch.testing.assert_close(found.parameters[0], expected, atol=1e-6, rtol=1e-4)


def test_dropout_draws_from_the_seed_alone(monkeypatch):
    model = user_model(monkeypatch, Dropped)
    data, start = make_data(CLASSES), rows_of(model)
    settings = TrainSettings(learning_rate=0.5, block_size=1)
    first = Cohort(model, data, settings, seed=0).train(start, round=1).parameters
    torch.manual_seed(123)
    assert torch.equal(Cohort(model, data, settings, seed=0).train(start, round=1).parameters, first)
    assert not torch.equal(Cohort(model, data, settings, seed=0).train(start, round=2).parameters, first)
    order = [3, 1, 0, 2]
    shuffled = Cohort(model, subset(data, order), settings, seed=0).train(start[order], round=1).parameters
    assert torch.equal(shuffled, first[order])


class Recurrent(nn.Module):
    """Draws within a layer of PyTorch's, which takes no generator."""

    def __init__(self):
        super().__init__()
        self.recurrent, self.last = nn.LSTM(2, 4, num_layers=2, dropout=0.5, batch_first=True), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.last(self.recurrent(inputs.unflatten(1, (2, 2)))[0][:, -1])


@pytest.mark.parametrize(("kind", "apart"), [(Dropped, True), (Recurrent, False)])
def test_draws_are_the_clients_own_in_any_block_on_any_number_of_workers(monkeypatch, kind, apart):
    model = user_model(monkeypatch, kind)
    data, start = make_data(CLASSES), rows_of(model)
    before = torch.get_rng_state()
    results = []
    for block, workers in ((None, 1), (None, 3), *(((2, 2), (3, 1)) if apart else ())):
        settings = TrainSettings(learning_rate=0.5, batch_size=2, block_size=block, workers=workers)
        cohort = Cohort(model, data, settings, seed=0)
        assert cohort._training.draws_apart(cohort.device) is apart
        results.append(cohort.train(start, round=1).parameters)
    assert all(torch.equal(each, results[0]) for each in results)
    assert torch.equal(torch.get_rng_state(), before)


class DroppedAndNormed(Dropped):
    """Draws twice in a forward pass, and its examples influence each other."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, inputs):
        noise = torch.randn_like(inputs) if self.training else 0
        return self.norm(super().forward(inputs + 0.1 * noise))


class DroppedFlat(Dropped):
    """What an example draws depends on how many there are."""

    def forward(self, inputs):
        dropped = nn.functional.dropout(inputs.t().flatten(), 0.5, self.training)
        return self.last(dropped.view(inputs.t().shape).t())


class DroppedByBranches(Dropped):
    """Cannot be vectorised."""

    def forward(self, inputs):
        outputs = super().forward(inputs)
        return outputs if outputs.sum() > 0 else -outputs


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Clients are computed on a CPU as on a GPU: stacked, with hashes as random numbers."""
    monkeypatch.setattr(LocalTraining, "sequential", lambda self, device: False)
    monkeypatch.setattr(LocalTraining, "draws_hashed", lambda self, device: self.model.draws_hashed)


@pytest.mark.parametrize(
    ("kind", "padded"),
    [(Dropped, True), (DroppedAndNormed, False), (DroppedFlat, False), (DroppedByBranches, True)],
)
def test_hashed_draws_are_the_clients_own_in_any_block(monkeypatch, as_on_a_gpu, kind, padded):
    model = user_model(monkeypatch, kind)
    assert model.draws_padded is padded
    data, start, before = make_data(CLASSES), rows_of(model), torch.get_rng_state()

    def trained(data=data, start=start, round=1, seed=0, block=None):
        settings = TrainSettings(learning_rate=0.5, batch_size=4, local_epochs=2, block_size=block)
        cohort = Cohort(model, data, settings, seed)
        assert block or cohort._blocks._clients_per_block(4, native=False) > 4
        return cohort.train(start, round).parameters

    together, order = trained(), [3, 1, 0, 2]
    for block in (1, 2, 3):
        torch.testing.assert_close(trained(block=block), together)
    torch.testing.assert_close(trained(subset(data, order), start[order]), together[order])
    for client in range(4):
        torch.testing.assert_close(trained(subset(data, [client]), start[[client]])[0], together[client])
    for other in (trained(round=2), trained(seed=1)):
        assert ((other[:3] - together[:3]).abs().amax(1) > 1e-3).all()
    assert torch.equal(torch.get_rng_state(), before)


def test_hashed_draws_are_padded_instead_of_computed_by_number_of_examples(monkeypatch, as_on_a_gpu):
    model, shapes = user_model(monkeypatch, Dropped), []
    forward = type(model).forward

    def seen(self, state, inputs, training):
        shapes.append(tuple(inputs.shape[:2]))
        return forward(self, state, inputs, training)

    cohort = Cohort(model, make_data(CLASSES), TrainSettings(batch_size=4, local_epochs=1), seed=0)
    assert cohort._blocks._clients_per_block(4, native=False) > 4
    monkeypatch.setattr(type(model), "forward", seen)
    cohort.train(rows_of(model), 1)
    assert shapes == [(4, 4), (2, 4), (1, 3)]


def test_hashed_draws_are_those_of_a_plain_loop_with_the_keys_of_steps(monkeypatch, as_on_a_gpu):
    model, data = user_model(monkeypatch, Dropped), make_data(CLASSES)
    settings, start = TrainSettings(learning_rate=0.5, batch_size=4, local_epochs=2), rows_of(model)
    found = Cohort(model, data, settings, seed=3).train(start, round=2).parameters
    for client, name in enumerate(data.names):
        own = shuffling_keys(3, [name])
        twin, split = model.twin().train(), subset(data, [client]).splits["train"]
        twin.load_state_dict(model.layout.row_state(start[client]))
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.5)
        batches = training_batches(own, split.num_examples, settings, 2)[:, 0]
        for rows, key in zip(batches, keys_of_steps(own, 2, len(batches))[:, 0], strict=True):
            rows = rows[rows >= 0]
            optimizer.zero_grad()
            with HashedDraws(key):
                outputs = twin(split.inputs[0, rows])
            nn.functional.cross_entropy(outputs, split.targets[0, rows]).backward()
            optimizer.step()
        torch.testing.assert_close(found[client], model.layout.row(twin.state_dict()), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(("kind", "hashed"), [(Dropped, True), (Recurrent, False)])
def test_on_a_gpu_what_can_be_hashed_is_stacked(monkeypatch, kind, hashed):
    model, room = user_model(monkeypatch, kind), 2**30
    monkeypatch.setattr(devices, "room", lambda device: room)
    monkeypatch.setattr(TrainSettings, "torch_device", lambda self: torch.device("cuda"))
    cohort = Cohort(model, make_data(CLASSES), TrainSettings(), seed=0)
    assert cohort._training.draws_hashed(cohort.device) is hashed
    assert not cohort._training.draws_hashed(torch.device("cpu"))
    assert (cohort._blocks._clients_per_block(32, native=False) > 1) is hashed


def test_messages():
    data = make_data(CLASSES)
    cohort = Cohort(MLP, data, TrainSettings(momentum=0.5, keep_optimizer=True), seed=0)
    with pytest.raises(RunError, match=r"\(3, 51\), .*\(4, 51\)"):
        cohort.train(rows_of(MLP)[:3], round=1)
    with pytest.raises(RunError, match=r"shape \(4, 50\)"):
        cohort.evaluate(rows_of(MLP)[:, 1:], "test")
    with pytest.raises(DataError, match="'validation'; .*train, test"):
        cohort.evaluate(rows_of(MLP), "validation")
    with pytest.raises(RunError, match="stored optimiser state"):
        cohort.train(rows_of(MLP), round=1, optimizer_state={"step": torch.zeros(4)})
    with pytest.raises(ExperimentError, match="horizon 3"):
        cohort.evaluate(rows_of(MLP), "test", horizons=(3,))


@pytest.mark.parametrize(("table", "task"), [({"name": "gru", "hidden": 16}, FORECAST), ({"name": "mlp"}, CLASSES)])
def test_bf16_is_near_float32_and_keeps_float32_parameters(table, task):
    model, data = build(table, task), make_data(task)
    exact, rounded = (
        Cohort(model, data, TrainSettings(local_steps=5, learning_rate=0.05, precision=precision), seed=0)
        for precision in ("float32", "bf16")
    )
    start = rows_of(model)
    moved, wanted = rounded.train(start, 1).parameters - start, exact.train(start, 1).parameters - start
    assert moved.dtype == torch.float32
    assert not torch.equal(moved, wanted)
    assert (torch.nn.functional.cosine_similarity(moved, wanted) > 0.98).all()
    for name, values in exact.evaluate(start, "test").items():
        torch.testing.assert_close(rounded.evaluate(start, "test")[name], values, rtol=0.1, atol=0.1)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("workers", [1, 2])
def test_compiled_training_is_that_of_the_plain_model(workers, caplog):
    task = TaskSpec("classification", (1, 4, 4), (3,))
    model, data = build({"name": "cnn"}, task), make_data(task, sizes=(9, 9, 6, 9))
    table = {"learning-rate": 0.1, "batch-size": 4, "local-epochs": 2, "block-size": 2, "workers": workers}
    plain = Cohort(model, data, TrainSettings(**table), seed=0)
    fast = Cohort(model, data, TrainSettings(**table, compile=True), seed=0)
    start = rows_of(model)
    trained = fast.train(start, round=1).parameters
    torch.testing.assert_close(trained, plain.train(start, round=1).parameters, atol=1e-5, rtol=1e-3)
    assert fast._training._compiled_loss._built, caplog.text


@pytest.mark.slow
@needs_compiler
def test_compiled_modules_of_ones_own_train_alike_on_any_number_of_workers(monkeypatch, caplog):
    model = user_model(monkeypatch, Normed)
    data, start = make_data(CLASSES, sizes=(9, 9, 6, 9)), rows_of(model)
    table = {"learning-rate": 0.1, "batch-size": 4, "local-epochs": 2, "block-size": 2}
    wanted = Cohort(model, data, TrainSettings(**table), seed=0).train(start, round=1).parameters
    results = []
    for workers in (1, 2):
        cohort = Cohort(model, data, TrainSettings(**table, compile=True, workers=workers), seed=0)
        results.append(cohort.train(start, round=1).parameters)
        assert not cohort._training._compiled_loss.failed, caplog.text
    assert torch.equal(*results)
    torch.testing.assert_close(results[0], wanted, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("block", [1, 3, 6])
@pytest.mark.parametrize(
    "table",
    [
        *({"name": name, "hidden": 7, "layers": 2} for name in ("gru", "lstm", "rnn")),
        {"name": "mlp", "hidden": [7, 5]},
    ],
    ids=lambda table: table["name"],
)
def test_native_models_train_like_the_others_in_any_block_on_any_number_of_workers(table, block, caplog):
    model, data = build(table, FORECAST), make_data(sizes=(11, 4, 7, 1, 9, 9))
    table = {"momentum": 0.9, "batch-size": 4, "local-epochs": 2, "clip-norm": 0.5, "learning-rate": 0.1}
    plain = Cohort(model, data, TrainSettings(**table, block_size=1, workers=1, compile=False), seed=0)
    start = rows_of(model, 6)
    wanted = plain.train(start, round=1)
    results = []
    for workers in (1, 3):
        fast = Cohort(model, data, TrainSettings(**table, block_size=block, workers=workers, compile=True), seed=0)
        results.append(fast.train(start, round=1))
        for metric, values in plain.evaluate(start, "test").items():
            torch.testing.assert_close(fast.evaluate(start, "test")[metric], values, rtol=1e-4, atol=1e-5)
    assert not caplog.records
    assert fast.model.native
    assert not model.native
    assert torch.equal(results[0].parameters, results[1].parameters)
    torch.testing.assert_close(results[0].parameters, wanted.parameters, atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(results[0].loss, wanted.loss, atol=1e-5, rtol=1e-4)


@needs_compiler
@pytest.mark.parametrize(
    "keys",
    [{}, {"weight-decay": 0.1}, {"warmup-epochs": 1.0, "final-learning-rate": 0.01}, {"precision": "bf16"}],
    ids=str,
)
@pytest.mark.parametrize("task", [FORECAST, CLASSES], ids=lambda task: task.kind)
def test_steps_of_descent_in_native_code_are_those_of_the_plain_model(task, keys):
    model, data = build({"name": "mlp", "hidden": [7]}, task), make_data(task, sizes=(11, 4, 7, 1, 9, 9))
    table = {"batch-size": 4, "local-epochs": 3, "learning-rate": 0.1, **keys}
    start = rows_of(model, 6)
    plain, native = (Cohort(model, data, TrainSettings(**table, compile=each), seed=0) for each in (False, "auto"))
    assert native._training.descends(None)
    assert not plain._training.descends(None)
    wanted, found = plain.train(start, round=2), native.train(start, round=2)
    torch.testing.assert_close(found.parameters, wanted.parameters, atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(found.loss, wanted.loss, atol=1e-5, rtol=1e-4)
    assert torch.equal(found.steps, wanted.steps)


@pytest.mark.parametrize(
    ("table", "compile_", "compiler", "told"),
    [
        ({"name": "mlp"}, "auto", True, "by native code, compiled on the node ([train] compile)"),
        ({"name": "mlp"}, "native", False, "stacked, on a CPU"),
        ({"name": "mlp"}, False, True, "stacked, on a CPU"),
        ({"name": "gru", "hidden": 3}, "auto", True, "by native code, compiled on the node ([train] compile)"),
        ({"name": "gru", "hidden": 3}, "native", False, "stacked, on a CPU"),
        ({"name": "cnn"}, "auto", True, "sequentially by client, on a CPU"),
        ({"name": "cnn"}, True, True, "stacked, on a CPU, by torch.compile where that works"),
    ],
)
@needs_compiler
def test_a_cohort_says_how_it_trains(monkeypatch, table, compile_, compiler, told):
    if not compiler:
        monkeypatch.setattr("fedgraph.models.perceptron_kernel.library", lambda: None)
        monkeypatch.setattr("fedgraph.models.recurrence_kernel.library", lambda: None)
    task = IMAGES if table["name"] == "cnn" else FORECAST
    assert Cohort(build(table, task), make_data(task), TrainSettings(compile=compile_), seed=0).computed == told


@needs_compiler
@pytest.mark.parametrize("keys", [{"momentum": 0.5}, {"optimizer": "adam"}, {"clip-norm": 1.0}], ids=str)
def test_other_optimisers_are_given_the_gradient_of_native_code(keys):
    model, data = build({"name": "mlp", "hidden": [7]}, CLASSES), make_data(CLASSES)
    settings = TrainSettings(**{"batch-size": 4, "learning-rate": 0.1, **keys})
    cohort = Cohort(model, data, settings, seed=0)
    assert not cohort._training.descends(None)
    wanted = Cohort(model, data, settings.model_copy(update={"compile": False}), seed=0).train(rows_of(model), round=1)
    found = cohort.train(rows_of(model), round=1)
    torch.testing.assert_close(found.parameters, wanted.parameters, atol=1e-5, rtol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("compile_", [False, True])
@pytest.mark.parametrize("name", ["gru", "lstm", "rnn"])
def test_a_gpu_gives_the_same_result(name, compile_):
    model, data = build({"name": name, "hidden": 5}, FORECAST), make_data()
    table = {"momentum": 0.9, "local-steps": 4, "batch-size": 4}
    results = []
    for device, compiles in (("cpu", False), ("cuda", compile_)):  # for a CPU it would compile for tens of seconds
        cohort = Cohort(model, data, TrainSettings(**table, device=device, compile=compiles), seed=0)
        trained = cohort.train(rows_of(model), round=1).parameters
        assert trained.device.type == "cpu"
        results.append((trained, cohort.evaluate(trained, "test")["mae"], cohort.predict(trained, "test").nan_to_num()))
    for on_cpu, on_gpu in zip(*results, strict=True):
        torch.testing.assert_close(on_gpu, on_cpu, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("most", [1, 2, 100])
@pytest.mark.parametrize("keys", [{}, {"momentum": 0.9}, {"local-steps": 0}, {"compile": False}], ids=str)
@pytest.mark.parametrize(
    "table", [{"name": "mlp", "hidden": [7]}, {"name": "gru", "hidden": 3}], ids=lambda t: t["name"]
)
def test_a_mean_is_that_of_the_trained_models(table, keys, most, monkeypatch):
    monkeypatch.setattr("fedgraph.training.cohort.portion", lambda parameters, device: most)
    model, data = build(table, FORECAST), make_data(sizes=(11, 4, 7, 1, 9, 9))
    keys = {"batch-size": 4, **({"local-epochs": 2} if "local-steps" not in keys else {}), **keys}
    start, weights = rows_of(model, 6), torch.tensor([11.0, 4.0, 7.0, 0.0, 9.0, 9.0])
    means = []
    for workers in (1, 3):
        cohort = Cohort(model, data, TrainSettings(**keys, workers=workers), seed=0)
        each = cohort.train(start, round=1)
        found = cohort.train_mean(start, weights, round=1)
        torch.testing.assert_close(found.mean, weights @ each.parameters / weights.sum(), atol=1e-5, rtol=1e-4)
        assert found.finite.all()
        torch.testing.assert_close(found.loss, each.loss, equal_nan=True)
        means.append(found.mean)
    assert torch.equal(*means)


def test_models_that_are_not_finite_are_left_out_of_a_mean():
    models, weights = torch.tensor([[1.0, 2.0], [torch.nan, 0.0], [3.0, 6.0]]), torch.tensor([1.0, 5.0, 3.0])
    mean, finite = mean_of(models, weights)
    assert finite.tolist() == [True, False, True]
    torch.testing.assert_close(mean, torch.tensor([2.5, 5.0]))
    # Finite numbers whose sum is not.
    mean, finite = mean_of(torch.full((4, 1), 3e38), torch.ones(4))
    assert finite.all()
