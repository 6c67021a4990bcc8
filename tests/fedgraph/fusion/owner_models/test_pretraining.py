"""Many owners represented at once equal each alone."""

from __future__ import annotations

import math

import pytest
import torch

from fedgraph.data.base import CohortData
from fedgraph.data.examples import ExampleSplit
from fedgraph.fusion.owner_models import pretraining as representing
from fedgraph.fusion.owner_models.pretraining import initial_models, pretrain, represent, some_clients
from fedgraph.models import build
from fedgraph.models.base import TaskSpec
from fedgraph.models.frozen import FrozenLayers
from fedgraph.models.mlp import MLPModel
from fedgraph.support.errors import RunError
from fedgraph.training.cohort import Cohort, TrainSettings
from fedgraph.training.working_set import WorkingSet

TASK = TaskSpec("classification", (6, 2), (3,))


@pytest.mark.parametrize("table", [{"name": "lstm", "hidden": 4, "read-out": "steps"}, {"name": "mlp", "hidden": [5]}])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_equals_one_by_one(monkeypatch, table, compiled, workers):
    model = build(table, TASK)
    model = model.compiled() if compiled else model
    rows = torch.stack([model.initial(torch.Generator().manual_seed(i)) for i in range(5)])
    inputs = torch.randn(5, 13, 6, 2, generator=torch.Generator().manual_seed(0))
    blocks = []
    monkeypatch.setattr(
        WorkingSet, "clients_per_block", lambda self, batch_size, device: blocks.append(batch_size) or 2
    )
    found = represent(model, rows, inputs, batch_size=4, workers=workers)
    assert found.embeddings.shape == (5, 13, model.embedding_size)
    assert found.probabilities.shape == (5, 13, 3)
    for client in range(5):
        twin = model.twin().eval()
        twin.load_state_dict(model.layout.row_state(rows[client]))
        seen = []
        twin.head.register_forward_pre_hook(lambda layer, given, seen=seen: seen.append(given[0]))
        with torch.no_grad():
            expected = torch.softmax(twin(inputs[client]), dim=1)
        torch.testing.assert_close(found.probabilities[client], expected, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(found.embeddings[client], seen[0], atol=1e-6, rtol=1e-5)
    assert not found.embeddings.requires_grad


def test_never_more_than_a_batch_of_a_block_at_once(monkeypatch):
    model = build({"name": "mlp", "hidden": [5]}, TASK)
    shapes = []

    def watched(state, inputs, original=model.represent):
        shapes.append(tuple(inputs.shape[:2]))
        return original(state, inputs)

    monkeypatch.setattr(model, "represent", watched)
    monkeypatch.setattr(representing, "working_set", lambda model, task: WorkingSet(1, 1))
    monkeypatch.setattr(WorkingSet, "clients_per_block", lambda self, batch_size, device: 2)
    represent(model, torch.zeros(3, model.layout.num_parameters), torch.zeros(3, 9, 6, 2), batch_size=4, workers=1)
    assert shapes == [(2, 4), (2, 4), (2, 1), (1, 4), (1, 4), (1, 1)]


PRETRAINING_TASK = TaskSpec("classification", (4, 2), (3,))
NAMES = tuple(f"owner {number}" for number in range(5))
SETTINGS = TrainSettings(optimizer="adam", learning_rate=0.05, batch_size=8, workers=1)


def make_data(names=NAMES, unvalidated=(), untrained=()):
    """Each owner has noisy labels of its own, so that accuracy rises and falls."""
    splits = {"train": [], "validation": []}
    inputs, targets, size = [], [], 30
    for place, name in enumerate(names):
        random = torch.Generator().manual_seed(int(name[-1]))
        values = torch.randn(size, *PRETRAINING_TASK.input_shape, generator=random)
        labels = (values[:, 0, 0] > 0).long() + (values[:, 1, 1] > 1).long()
        noise = torch.randint(3, (size,), generator=random)
        inputs.append(values)
        targets.append(torch.where(torch.rand(size, generator=random) < 0.3, noise, labels))
        rows = torch.arange(size) + place * size
        splits["train"].append(rows[:18] if name not in untrained else torch.full((18,), -1))
        splits["validation"].append(rows[18:] if name not in unvalidated else torch.full((12,), -1))
    made = {
        name: ExampleSplit(torch.cat(inputs), torch.cat(targets), torch.stack(rows)) for name, rows in splits.items()
    }
    return CohortData(tuple(names), PRETRAINING_TASK, made, torch.zeros(len(names)), torch.ones(len(names)))


def cohort_of(data, model=None, settings=SETTINGS):
    return Cohort(model or build({"name": "mlp", "hidden": [6]}, PRETRAINING_TASK), data, settings, seed=3)


def alone(cohort, row, initial, max_epochs, patience):
    """The same by an ordinary loop over epochs of one client."""
    settings = cohort.settings.model_copy(update={"keep_optimizer": True})
    single = Cohort(cohort.model, some_clients(cohort.data, torch.tensor([row])), settings, cohort.seed)
    parameters, moments = initial[row : row + 1], None
    best, best_accuracy, best_epoch = parameters, -math.inf, 0
    for epoch in range(1, max_epochs + 1):
        result = single.train(parameters, epoch, optimizer_state=moments)
        parameters, moments = result.parameters, result.optimizer_state
        accuracy = float(single.evaluate(parameters, "validation")["accuracy"])
        if accuracy > best_accuracy:
            best, best_accuracy, best_epoch = parameters, accuracy, epoch
        elif epoch - best_epoch >= patience:
            break
    return best[0], best_accuracy, best_epoch, epoch


@pytest.mark.parametrize(
    ("table", "epochs", "patience"),
    [({"name": "mlp", "hidden": [6]}, 12, 3), ({"name": "gru", "hidden": 6, "read-out": "steps"}, 30, 8)],
)
def test_equals_early_stopping_of_each_client_alone(table, epochs, patience):
    model = build(table, PRETRAINING_TASK)
    cohort = cohort_of(make_data(), model)
    initial = initial_models(model, 7, NAMES)
    kept = initial.clone()
    found = pretrain(cohort, initial, epochs, patience)
    assert torch.equal(initial, kept)
    for row in range(len(NAMES)):
        best, accuracy, best_epoch, trained = alone(cohort, row, initial, epochs, patience)
        assert (int(found.best_epochs[row]), int(found.epochs[row])) == (best_epoch, trained)
        assert float(found.accuracy[row]) == pytest.approx(accuracy)
        torch.testing.assert_close(found.parameters[row], best, atol=1e-5, rtol=1e-4)
    # Otherwise the test would not see who stops when, and what is restored.
    assert len(set(found.epochs.tolist())) > 1
    assert (found.best_epochs < found.epochs).any()


def test_clients_that_have_stopped_are_left_out(monkeypatch):
    sizes = []
    train = Cohort.train

    def counted(self, parameters, *args, **kwargs):
        sizes.append(len(parameters))
        return train(self, parameters, *args, **kwargs)

    monkeypatch.setattr(Cohort, "train", counted)
    cohort = cohort_of(make_data())
    found = pretrain(cohort, initial_models(cohort.model, 7, NAMES), max_epochs=12, patience=3)
    assert sizes == [int((found.epochs >= epoch).sum()) for epoch in range(1, int(found.epochs.max()) + 1)]
    sizes.clear()
    # As if the model had no native code.
    monkeypatch.setattr(MLPModel, "compiled", lambda self: self)
    halves = cohort_of(make_data(), settings=SETTINGS.model_copy(update={"compile": True}))
    # Compiling is not what this is about.
    monkeypatch.setattr("fedgraph.training.local_training.Compiled", lambda function: function)
    same = pretrain(halves, initial_models(cohort.model, 7, NAMES), max_epochs=12, patience=3)
    assert torch.equal(same.epochs, found.epochs)
    torch.testing.assert_close(same.parameters, found.parameters)
    assert all(size == 5 or size <= 2 for size in sizes)
    assert sum(sizes) > int(found.epochs.sum())


def test_result_does_not_depend_on_who_else_is_there():
    initial = initial_models(build({"name": "mlp", "hidden": [6]}, PRETRAINING_TASK), 7, NAMES)
    whole = pretrain(cohort_of(make_data()), initial, 12, 3)
    rows = torch.tensor([3, 1])
    part = pretrain(cohort_of(make_data([NAMES[3], NAMES[1]])), initial[rows], 12, 3)
    assert torch.equal(part.epochs, whole.epochs[rows])
    torch.testing.assert_close(part.parameters, whole.parameters[rows], atol=1e-5, rtol=1e-4)


def test_clients_without_validation_examples_go_by_their_training_loss():
    data = make_data(unvalidated=NAMES[1:2])
    cohort = cohort_of(data)
    initial = initial_models(cohort.model, 7, NAMES)
    found = pretrain(cohort, initial, max_epochs=6, patience=2)
    assert found.accuracy.isnan().tolist() == [False, True, False, False, False]
    settings = SETTINGS.model_copy(update={"keep_optimizer": True})
    single = Cohort(cohort.model, some_clients(data, torch.tensor([1])), settings, cohort.seed)
    parameters, moments, losses, after = initial[1:2], None, [], []
    for epoch in range(1, int(found.epochs[1]) + 1):
        result = single.train(parameters, epoch, optimizer_state=moments)
        parameters, moments = result.parameters, result.optimizer_state
        losses.append(float(result.loss))
        after.append(parameters[0])
    best = losses.index(min(losses))
    assert int(found.best_epochs[1]) == best + 1
    torch.testing.assert_close(found.parameters[1], after[best], atol=1e-5, rtol=1e-4)


def test_the_best_epoch_can_be_that_of_the_lowest_validation_loss():
    cohort = cohort_of(make_data())
    initial = initial_models(cohort.model, 7, NAMES)
    found = pretrain(cohort, initial, max_epochs=12, patience=12, monitor="loss")
    single = Cohort(cohort.model, cohort.data, SETTINGS.model_copy(update={"keep_optimizer": True}), cohort.seed)
    parameters, moments, losses = initial, None, []
    for epoch in range(1, 13):
        result = single.train(parameters, epoch, optimizer_state=moments)
        parameters, moments = result.parameters, result.optimizer_state
        losses.append(single.evaluate(parameters, "validation")["loss"])
    best = torch.stack(losses).argmin(0) + 1
    assert torch.equal(found.best_epochs, best)
    by_accuracy = pretrain(cohort, initial, max_epochs=12, patience=12)
    assert not torch.equal(by_accuracy.best_epochs, best), "else the test shows nothing"


def test_learning_rate_decays_from_epoch_to_epoch():
    cohort = cohort_of(make_data(), settings=SETTINGS.model_copy(update={"learning_rate_decay": 1e-9}))
    initial = initial_models(cohort.model, 7, NAMES)
    first = cohort.train(initial, 1).parameters
    found = pretrain(cohort, initial, max_epochs=5, patience=5)
    torch.testing.assert_close(found.parameters, first, atol=1e-4, rtol=1e-3)


def test_no_epoch_at_all_leaves_the_models_as_they_were():
    cohort = cohort_of(make_data())
    initial = initial_models(cohort.model, 7, NAMES)
    found = pretrain(cohort, initial, max_epochs=0, patience=3)
    assert torch.equal(found.parameters, initial)
    assert found.epochs.tolist() == found.best_epochs.tolist() == [0] * 5


def test_a_diverged_client_is_named_and_one_without_examples_is_not():
    data = make_data(unvalidated=NAMES[2:3], untrained=NAMES[2:3])
    cohort = cohort_of(data)
    initial = initial_models(cohort.model, 7, NAMES)
    found = pretrain(cohort, initial, max_epochs=3, patience=3)
    assert torch.equal(found.parameters[2], initial[2])
    assert found.best_epochs.tolist()[2] == 0
    data.splits["train"].inputs[31] = math.inf  # of the owner 1
    with pytest.raises(RunError, match="'owner 1'.*learning-rate"):
        pretrain(cohort, initial, max_epochs=3, patience=3)


def test_initial_models_are_keyed_by_name():
    model = build({"name": "lstm", "hidden": 3}, PRETRAINING_TASK)
    rows = initial_models(model, 7, NAMES)
    assert torch.equal(initial_models(model, 7, NAMES[::-1]), rows.flip(0))
    assert len({tuple(row.tolist()) for row in rows}) == 5
    assert not torch.equal(initial_models(model, 8, NAMES), rows)


def test_a_tied_head_is_one_draw_for_all_and_for_all_architectures():
    model = build({"name": "lstm", "hidden": 6}, PRETRAINING_TASK)
    other = build({"name": "mlp", "hidden": [9, 6]}, PRETRAINING_TASK)
    heads = []
    for each in (model, other, FrozenLayers(other, ["head.*"])):
        state = each.layout.unflatten(initial_models(each, 7, NAMES, tied_head=True))
        own = each.layout.unflatten(initial_models(each, 7, NAMES))
        for name, value in state.items():
            assert torch.equal(value, own[name]) == (not name.startswith("head."))
        assert (state["head.weight"] == state["head.weight"][0]).all()
        heads.append(torch.cat([state["head.weight"][0].flatten(), state["head.bias"][0]]))
    assert torch.equal(heads[0], heads[1])
    assert torch.equal(heads[0], heads[2])
    assert 0.5 / math.sqrt(6) < heads[0].abs().max() <= 1 / math.sqrt(6)


def test_a_selection_keeps_everything_of_its_clients():
    data = make_data()
    counts = torch.arange(15).reshape(5, 3)
    full = CohortData(
        data.names,
        PRETRAINING_TASK,
        data.splits,
        torch.arange(5.0),
        torch.arange(5.0) + 1,
        counts,
        groups=("a", "b", "c", "d", "e"),
        untrained=("owner 0", "owner 3"),
        moments=torch.arange(20.0).reshape(5, 4),
    )
    part = some_clients(full, torch.tensor([3, 1]))
    assert part.names == ("owner 3", "owner 1")
    assert part.groups == ("d", "b")
    assert part.untrained == ("owner 3",)
    assert part.mean.tolist() == [3, 1]
    assert part.std.tolist() == [4, 2]
    assert part.label_counts.tolist() == counts[[3, 1]].tolist()
    assert part.moments[:, 0].tolist() == [12, 4]
    assert part.splits["train"].rows[:, 0].tolist() == [90, 30]
