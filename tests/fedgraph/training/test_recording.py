"""Steps on tensors at fixed places: what a recorded step computes, with a recorder that needs no GPU."""

from __future__ import annotations

import gc
import logging
import weakref

import pytest
import torch

from fedgraph.data import CohortData
from fedgraph.data.examples import ExampleSplit
from fedgraph.models import TaskSpec, build
from fedgraph.training import Cohort, TrainSettings, recording
from fedgraph.training.local_training import LocalTraining

IMAGES = TaskSpec("classification", (3, 8, 8), (4,), classes=tuple("abcd"))
SERIES = TaskSpec("forecast", (5, 2), (3,))
CASES = {
    "mlp": ({"name": "mlp", "hidden": [6]}, IMAGES),
    "gru": ({"name": "gru", "hidden": 3}, SERIES),
    "module": (  # with dropout
        {"name": "fedgraph.simulations.benchmarks.models:ConvolutionNet"},
        TaskSpec("classification", (1, 28, 28), (10,)),
    ),
    "resnet9": ({"name": "resnet9", "width": 2}, IMAGES),  # with running statistics
}


class Replayed:
    """What a CUDA graph does: the work anew, on the same tensors."""

    made = 0

    def __init__(self, work, pool):
        Replayed.made += 1
        self.replay = work
        for _ in range(3):  # recording runs the work
            work()

    def pool(self):
        return "memory"


@pytest.fixture
def records(monkeypatch):
    """Record on a CPU, where all clients are stacked as on a GPU."""
    monkeypatch.setattr(LocalTraining, "sequential", lambda self, device: False)
    monkeypatch.setattr(LocalTraining, "draws_hashed", lambda self, device: self.model.draws)
    monkeypatch.setattr(LocalTraining, "_records", lambda self, state: True)
    monkeypatch.setattr(recording, "recorded", Replayed)
    monkeypatch.setattr(Replayed, "made", 0)
    return Replayed


def cohort_of(name, counts=(12, 12, 12), **keys):
    table, task = CASES[name]
    random, total = torch.Generator().manual_seed(0), sum(counts)
    rows = torch.full((len(counts), max(counts)), -1)
    for row, (stop, count) in enumerate(zip(torch.tensor(counts).cumsum(0).tolist(), counts, strict=True)):
        rows[row, :count] = torch.arange(stop - count, stop)
    inputs = torch.rand(total, *task.input_shape, generator=random)
    is_forecast = task.kind == "forecast"
    targets = torch.rand(total, *task.output_shape, generator=random) if is_forecast else torch.arange(total) % 4
    split = ExampleSplit(inputs, targets, rows, torch.tensor(1.0), torch.tensor(0.0))
    data = CohortData(tuple("abc"), task, {"train": split}, torch.zeros(3), torch.ones(3))
    settings = TrainSettings(**{"batch-size": 4, "local-epochs": 2, "learning-rate": 0.05, "compile": False, **keys})
    return Cohort(build(table, task), data, settings, 0)


def trained(cohort, rounds=3, term=None, state=None):
    model = cohort.model.initial(torch.Generator().manual_seed(0)).expand(3, -1)
    losses = []
    for round in range(1, rounds + 1):
        result = cohort.train(model, round, term, state)
        model, state = result.parameters, result.optimizer_state or None
        losses.append(result.loss)
    return [model, *losses, *(state or {}).values()]


SETTINGS = [
    {"momentum": 0.9, "clip-norm": 0.5},
    {"optimizer": "adam", "keep-optimizer": True, "learning-rate-decay": 0.5},
    {"warmup-epochs": 0.5, "final-learning-rate": 0.0},
]


@pytest.mark.parametrize(
    ("name", "keys"), [*(("gru", keys) for keys in SETTINGS), *((name, SETTINGS[0]) for name in CASES if name != "gru")]
)
def test_recorded_steps_compute_what_plain_ones_do(name, keys, records, monkeypatch):
    monkeypatch.setattr(recording, "PLAIN_STEPS", 5)
    found = trained(cohort_of(name, **keys))
    assert records.made == 1
    monkeypatch.setattr(LocalTraining, "_records", lambda self, state: False)
    for ours, theirs in zip(found, trained(cohort_of(name, **keys)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_term_of_the_gradient_is_not_recorded(name, records, monkeypatch):
    monkeypatch.setattr(recording, "PLAIN_STEPS", 0)
    found = []
    for counts in ((12, 12, 12), (12, 10, 4)):
        for on in (True, False):
            monkeypatch.setattr(LocalTraining, "_records", lambda self, state, on=on: on)
            calls = []

            def term(parameters, clients, weight, calls=calls):
                calls.append(parameters.data_ptr())
                return 0.1 * len(calls) * parameters

            cohort = cohort_of(name, counts, momentum=0.9)
            found.append(trained(cohort, 2, lambda *given, term=term: term(*given)))
            assert len(calls) == 12
    assert records.made == 4  # what computes the gradient and what uses it, for each set of clients
    for ours, theirs in (found[:2], found[2:]):
        for pair in zip(ours, theirs, strict=True):
            torch.testing.assert_close(*pair, rtol=1e-5, atol=1e-6)


def test_the_last_minibatch_of_an_epoch_is_recorded_too(records, monkeypatch):
    monkeypatch.setattr(recording, "PLAIN_STEPS", 1)
    found = trained(cohort_of("gru", (10, 10, 10), momentum=0.9))
    assert records.made == 2
    monkeypatch.setattr(recording, "_SHAPES", 1)
    assert all(map(torch.equal, found, trained(cohort_of("gru", (10, 10, 10), momentum=0.9))))
    monkeypatch.setattr(LocalTraining, "_records", lambda self, state: False)
    for ours, theirs in zip(found, trained(cohort_of("gru", (10, 10, 10), momentum=0.9)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("asked", [True, "auto"])
def test_what_cannot_be_recorded_is_computed_plainly(asked, records, monkeypatch, caplog):
    def fails(work, pool):
        work()
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(recording, "PLAIN_STEPS", 0)
    monkeypatch.setattr(recording, "recorded", fails)
    monkeypatch.setattr("fedgraph.training.local_training.Compiled", lambda function: function)
    with caplog.at_level(logging.INFO, logger="fedgraph"):
        found = trained(cohort_of("gru", compile=asked))
    assert [record.levelname for record in caplog.records] == (["WARNING"] if asked is True else [])
    monkeypatch.setattr(LocalTraining, "_records", lambda self, state: False)
    for ours, theirs in zip(found, trained(cohort_of("gru")), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_block_that_does_not_fit_the_memory_says_so(records, monkeypatch):
    def full(work, pool):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(recording, "PLAIN_STEPS", 0)
    monkeypatch.setattr(recording, "recorded", full)
    with pytest.raises(torch.OutOfMemoryError):
        trained(cohort_of("mlp", momentum=0.9))


@pytest.mark.gpu
@pytest.mark.parametrize("keys", SETTINGS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_recorded_step_is_the_plain_one_bit_for_bit_on_a_gpu(name, keys, monkeypatch):
    made, record = [], recording.recorded
    monkeypatch.setattr(recording, "recorded", lambda *given: made.append(given) or record(*given))
    found = []
    for after in (0, 5, 1000):
        monkeypatch.setattr(recording, "PLAIN_STEPS", after)
        cohort = cohort_of(name, (10, 10, 10), **{**keys, "device": "cuda", "compile": "auto"})
        found.append(trained(cohort))
        blocks = cohort._training._fixed_blocks.values()
        assert all(step.records for block in blocks for step in block._steps.values())
    assert len(made) == 4  # two shapes of minibatches, in two of the runs
    for pair in zip(*found, strict=True):
        assert torch.equal(pair[0], pair[1])
        assert torch.equal(pair[0], pair[2])


def test_recorded_steps_are_gone_with_the_cohort(records, monkeypatch):
    class Graph:  # it has no more of the work than kernels
        def __init__(self, work, pool):
            work()

        def replay(self):
            pass

        pool = replay

    monkeypatch.setattr(recording, "PLAIN_STEPS", 0)
    monkeypatch.setattr(recording, "recorded", Graph)
    cohort = cohort_of("gru", momentum=0.9)
    trained(cohort)
    assert not any(each.total.requires_grad for each in cohort._training._fixed_blocks.values())
    (block,) = map(weakref.ref, cohort._training._fixed_blocks.values())
    gc.disable()  # what is left waits for no collector: it may be gigabytes of a GPU
    try:
        cohort._training.forget()
        assert block() is None
    finally:
        gc.enable()
