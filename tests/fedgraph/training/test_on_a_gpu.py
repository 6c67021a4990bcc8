"""What would fail, or wait, on a GPU: on the device ``meta``, whose tensors have no values to wait for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedgraph.data import CohortData
from fedgraph.data.examples import ExampleSplit
from fedgraph.models import TaskSpec, build
from fedgraph.training import Cohort, TrainSettings
from fedgraph.training.alignment import Distance, FixedAlignment, PeerAlignment
from fedgraph.training.batches import Schedule
from fedgraph.training.local_training import Block, LocalTraining
from fedgraph.training.optimisers import fresh_state

META = torch.device("meta")
IMAGES = TaskSpec("classification", (3, 8, 8), (4,), classes=tuple("abcd"))
SEQUENCES = TaskSpec("forecast", (5, 2), (3,))
CASES = {
    "mlp": ({"name": "mlp", "hidden": [6]}, IMAGES),
    "cnn": ({"name": "cnn", "channels": [2]}, IMAGES),
    "gru": ({"name": "gru", "hidden": 3}, SEQUENCES),
    "lstm": ({"name": "lstm", "hidden": 3, "read-out": "steps"}, SEQUENCES),
    "resnet9": ({"name": "resnet9", "width": 2}, IMAGES),
    "module": (
        {"name": "fedgraph.simulations.benchmarks.models:ConvolutionNet"},
        TaskSpec("classification", (1, 28, 28), (10,)),
    ),
}
NAMES = ("a", "b", "c")


def split_of(task, each=10):
    count, classes = each * len(NAMES), task.kind == "classification"
    random = torch.Generator().manual_seed(0)
    inputs = torch.rand(count, *task.input_shape, generator=random)
    targets = torch.arange(count) % 4 if classes else torch.rand(count, *task.output_shape, generator=random)
    return ExampleSplit(
        inputs, targets, torch.arange(count).view(len(NAMES), each), torch.tensor(2.0), torch.tensor(0.5)
    )


def train(name, monkeypatch, term=None, short=0, device=META, **keys):
    """A round of training on the device; a wait for a value, or a tensor on another device, is an error."""
    table, task = CASES[name]
    settings = TrainSettings(**{"batch-size": 4, "local-steps": 3, **keys})
    model, split = build(table, task), split_of(task)
    split.rows[2, 9 - short :] = -1

    def schedule(counts):
        return Schedule(counts, settings, model.least_examples if model.mixes_examples(True) else 1, device)

    block = Block(slice(0, 3), NAMES, torch.arange(3).to(device), schedule(split.num_examples), split.to(device))
    rows = torch.stack([model.initial(torch.Generator().manual_seed(0))] * 3).to(device)
    moments = fresh_state(settings, 3, model.layout.num_trainable, device)
    one = replace(block, rows=slice(0, 1), names=NAMES[:1], keys=block.keys[:1],
                  schedule=schedule(split.num_examples[:1]), split=block.split.select(slice(0, 1)))  # fmt: skip
    if isinstance(term, PeerAlignment):
        block, rows, moments = one, rows[:1], {key: value[:1] for key, value in moments.items()}
    loss, _ = LocalTraining(model, task, settings, 0).run(block, rows, moments, 1, term)
    assert loss.device.type == device.type
    assert loss.shape == (len(rows),)


@pytest.mark.parametrize(
    "keys", [{"momentum": 0.9, "clip-norm": 1.0}, {"optimizer": "adam", "weight-decay": 0.1}], ids=str
)
@pytest.mark.parametrize("name", CASES)
def test_steps_neither_wait_for_a_gpu_nor_mix_devices(name, keys, monkeypatch):
    train(name, monkeypatch, **keys)


@pytest.mark.parametrize("name", CASES)
def test_nor_do_clients_with_fewer_examples(name, monkeypatch):
    train(name, monkeypatch, short=4, **{"local-steps": None, "local-epochs": 2})


def test_waiting_would_be_seen(monkeypatch):
    with pytest.raises(RuntimeError, match="meta"):
        train("gru", monkeypatch, term=lambda v, clients, weight: v * float(weight[0]))


@pytest.mark.parametrize("name", ["fixed", "peers"])
def test_the_alignment_of_peers_does_not_wait_either(name, monkeypatch):
    width = build(*CASES["gru"]).layout.num_trainable
    distance, others = Distance(0.1, True, 2.0), torch.zeros(2, width, device=META)
    if name == "fixed":
        term = FixedAlignment(others, torch.ones(3, 2, device=META), distance)
    else:
        settings = TrainSettings(**{"optimizer": "adam"})
        moments = fresh_state(settings, 2, width, META)
        term = PeerAlignment(
            others, torch.ones(2, device=META), distance, True, settings, 1, moments, torch.tensor([10])
        )
    train("gru", monkeypatch, term=term)


@pytest.mark.parametrize("name", ["mlp", "module"])
def test_minibatches_are_made_while_the_round_before_is_computed(name, monkeypatch):
    table, task = CASES[name]
    settings, split = TrainSettings(**{"batch-size": 4, "local-steps": 3}), split_of(task).to(META)
    model = build(table, task)
    schedule = Schedule(torch.full((3,), 10), settings, 1, META)
    block = Block(slice(0, 3), NAMES, torch.arange(3).to(META), schedule, split)
    training, made, begun = LocalTraining(model, task, settings, 0), [], []
    batches, minibatches = Schedule.batches, LocalTraining._minibatches
    monkeypatch.setattr(Schedule, "batches", lambda self, keys, round: made.append(round) or batches(self, keys, round))
    monkeypatch.setattr(
        LocalTraining, "_minibatches", lambda *given: (begun.append(len(made)) or each for each in minibatches(*given))
    )
    rows = torch.stack([model.initial(torch.Generator().manual_seed(0))] * 3).to(META)
    for round, expected in ((1, [1]), (2, [1, 2, 3]), (3, [1, 2, 3, 4]), (5, [1, 2, 3, 4, 5]), (6, [*range(1, 8)])):
        training.run(block, rows, {}, round)
        assert made == expected
        assert begun.count(len(made)) == (3 if round in (1, 5) else 1)
    training.run(replace(block, names=NAMES), rows, {}, 7)  # another block
    assert made == [*range(1, 8), 7]


def data_of(task):
    split = split_of(task)
    splits = {"train": split, "validation": split, "test": split}
    return CohortData(NAMES, task, splits, torch.zeros(3), torch.ones(3))


@pytest.mark.parametrize(
    "table", [{"name": "mlp", "hidden": [6]}, {"name": "gru", "hidden": 3}], ids=lambda t: t["name"]
)
def test_native_code_is_for_a_cpu_alone(table, monkeypatch):
    task = IMAGES if table["name"] == "mlp" else SEQUENCES
    settings = TrainSettings(compile="native")
    assert Cohort(build(table, task), data_of(task), settings, 0).model.native
    monkeypatch.setattr(TrainSettings, "torch_device", lambda self: torch.device("cuda"))
    cohort = Cohort(build(table, task), data_of(task), settings, 0)
    assert not cohort.model.native
    assert not cohort._training.descends(None)
    assert cohort.computed == "stacked, on a GPU"


def test_a_model_that_all_start_from_is_sent_to_a_gpu_once(monkeypatch, no_gpu):
    monkeypatch.setattr(TrainSettings, "torch_device", lambda self: torch.device("cuda"))
    model = build(*CASES["gru"])
    cohort = Cohort(model, data_of(SEQUENCES), TrainSettings(), 0)
    row = model.initial(torch.Generator().manual_seed(0))
    moved = no_gpu()
    found = cohort._from(row.expand(3, -1), slice(0, 2))
    assert moved == [(1, len(row))]
    assert found.is_contiguous()
    assert torch.equal(found, row.repeat(2, 1))
    rows = torch.rand(3, len(row))
    assert torch.equal(cohort._from(rows, torch.tensor([2, 0])), rows[[2, 0]])


def test_counters_of_a_module_are_sent_to_a_gpu_once():
    model, counter = build(*CASES["module"]), torch.tensor(3)
    sent = model._on(META, "layers.1.num_batches_tracked", counter)
    assert sent.device == META
    assert model._on(META, "layers.1.num_batches_tracked", counter) is sent
    assert model._on(counter.device, "layers.1.num_batches_tracked", counter) is counter


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["mlp", "cnn", "gru", "lstm"])
def test_steps_do_not_wait_for_a_real_gpu(name, monkeypatch):
    train(name, monkeypatch, device=torch.device("cuda"), momentum=0.9)  # what is loaded once waits
    differentiate = LocalTraining._differentiate

    def checked(*given, **named):
        """One step, in which to wait is an error."""
        torch.cuda.set_sync_debug_mode("error")
        try:
            return differentiate(*given, **named)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(LocalTraining, "_differentiate", checked)
    train(name, monkeypatch, device=torch.device("cuda"), momentum=0.9)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["mlp", "gru", "module"])
def test_what_a_real_gpu_is_given_ahead_is_made_without_waiting_and_the_same(name, monkeypatch):
    table, task = CASES[name]
    settings = TrainSettings(**{"batch-size": 4, "local-epochs": 2, "learning-rate": 0.01, "device": "cuda"})
    prepared, ahead = LocalTraining._prepared, []

    def checked(self, block, round, begin=False):
        """The minibatches; to wait is an error where they are made ahead."""
        torch.cuda.set_sync_debug_mode("error" if begin else "default")
        try:
            return prepared(self, block, round, begin)
        finally:
            torch.cuda.set_sync_debug_mode("default")
            ahead.append((round, begin))

    monkeypatch.setattr(LocalTraining, "_prepared", checked)
    cohort = Cohort(build(table, task), data_of(task), settings, 0)
    rows = cohort.model.initial(torch.Generator().manual_seed(0)).expand(3, -1)
    found = [cohort.train(rows, round).parameters for round in range(1, 5)]
    assert ahead == [(1, False), (2, False), (3, True), (4, True), (5, True)]
    for round, trained in enumerate(found, 1):
        fresh = Cohort(build(table, task), data_of(task), settings, 0)
        assert torch.equal(fresh.train(rows, round).parameters, trained)


@pytest.mark.gpu
@pytest.mark.parametrize("keys", [{"momentum": 0.9}, {"optimizer": "adam"}, {"compile": True}], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_computes_what_a_cpu_does_and_the_same_twice(name, keys):
    table, task = CASES[name]
    found = []
    # What is compiled on a CPU takes tens of seconds to build, and has tests of its own.
    for device, more in (("cpu", {**keys, "compile": False}), ("cuda", keys), ("cuda", keys)):
        table_of_settings = {"batch-size": 4, "local-epochs": 3, "learning-rate": 0.01, "device": device, **more}
        settings = TrainSettings(**table_of_settings)
        cohort = Cohort(build(table, task), data_of(task), settings, 0)
        row = cohort.model.initial(torch.Generator().manual_seed(0))
        found.append(cohort.train(row.expand(3, -1), 1).parameters)
    on_cpu, first, second = found
    assert torch.equal(first, second)
    if not cohort.model.draws:  # other numbers on each device
        assert torch.linalg.vector_norm(first - on_cpu) <= 1e-3 * torch.linalg.vector_norm(on_cpu)
