"""One training step of a block of clients: where its tensors lie, and what it leaves alone."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from fedgraph.data.examples import ExampleSplit
from fedgraph.data.series.windows import WindowSplit
from fedgraph.models import build
from fedgraph.models.base import TaskSpec
from fedgraph.support.errors import ExperimentError
from fedgraph.training.batches import Schedule, shuffling_keys
from fedgraph.training.local_training import Block, LocalTraining
from fedgraph.training.metrics import masked_mean
from fedgraph.training.optimisers import Optimiser, clip_rows, fresh_state
from fedgraph.training.settings import TrainSettings
from fedgraph.training.tallies import tally

IMAGES = TaskSpec("classification", (1, 8, 8), (3,))
SERIES = TaskSpec("forecast", (5, 1), (3,))
META = torch.device("meta")


def examples():
    inputs = (torch.rand(50, 1, 8, 8) * 255).to(torch.uint8)
    scale, shift = torch.tensor(1 / 255), torch.tensor(-0.5)
    return ExampleSplit(inputs, torch.randint(3, (50,)), torch.arange(48).view(4, 12), scale, shift)


def windows():
    return WindowSplit(torch.randn(4, 60, 1), torch.ones(4, 60, dtype=torch.bool), 0, 30, 1, 5, 3, 0)


@pytest.mark.parametrize("table", [{"optimizer": "sgd", "momentum": 0.9}, {"optimizer": "adamw", "weight-decay": 0.1}])
@pytest.mark.parametrize(
    ("model", "task", "split"),
    [
        ({"name": "mlp"}, IMAGES, examples()),
        ({"name": "cnn"}, IMAGES, examples()),
        ({"name": "gru", "hidden": 5, "layers": 2}, SERIES, windows()),
        ({"name": "lstm", "hidden": 5}, SERIES, windows()),
        ({"name": "rnn", "hidden": 5}, SERIES, windows()),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else None,
)
def test_a_step_needs_no_tensor_from_another_device(model, task, split, table):
    """PyTorch refuses to mix devices; ``meta``, which computes shapes alone, stands in for a GPU."""
    settings = TrainSettings(**table)
    built = build(model, task)
    training = LocalTraining(built, task, settings, seed=0)
    matrix = torch.zeros(4, built.layout.num_parameters, device=META)
    indices = torch.zeros(4, 6, dtype=torch.int64, device=META)
    batch = split.to(META).batch(indices[:, :5])
    parameters = matrix.detach().requires_grad_()
    sums, _ = training._loss(parameters, {}, batch)
    (gradient,) = torch.autograd.grad(masked_mean(*sums).sum(), parameters)
    clip_rows(gradient, 1.0)
    Optimiser(settings, 0.1, fresh_state(settings, 4, built.layout.num_trainable, META)).step(matrix, gradient)
    outputs, _ = built.forward(built.layout.unflatten(matrix), batch.inputs, training=False)
    sums = tally(task, torch.zeros(4, device=META), torch.ones(4, device=META), ())
    sums.add(outputs, batch.targets, batch.weights)
    assert gradient.shape == matrix.shape
    for tensor in (*batch, gradient, outputs, *sums.result().values()):
        assert tensor.device == META


def test_short_last_minibatches_cost_what_they_hold():
    seen = []

    class Counting(ExampleSplit):
        def batch(self, indices):
            seen.append(tuple(indices.shape))
            return super().batch(indices)

    given = examples()
    split = Counting(**{field.name: getattr(given, field.name) for field in dataclasses.fields(given)})
    split.rows[1:, 5:] = -1
    built = build({"name": "mlp", "hidden": [4]}, IMAGES)
    settings = TrainSettings(batch_size=8)
    training = LocalTraining(built, IMAGES, settings, seed=0)
    schedule = Schedule(split.num_examples, settings, 1, torch.device("cpu"))
    block = Block(slice(0, 4), list("abcd"), shuffling_keys(0, list("abcd")), schedule, split)
    matrix = built.initial(torch.Generator().manual_seed(0)).repeat(4, 1)
    before = matrix.clone()
    loss, steps = training.run(block, matrix, {}, round=1)
    assert seen == [(4, 8), (1, 4)]
    assert steps.tolist() == [2, 1, 1, 1]
    assert (matrix != before).any(1).all()
    assert loss.shape == (4,)
    assert not any(map(math.isnan, loss.tolist()))


def test_a_model_with_everything_frozen_is_not_trained(tmp_path, monkeypatch):
    (tmp_path / "wholly_frozen.py").write_text(
        "import torch\n\n\nclass Frozen(torch.nn.Linear):\n"
        "    def __init__(self):\n        super().__init__(5, 3)\n        self.requires_grad_(False)\n\n"
        "    def forward(self, inputs):\n        return super().forward(inputs.flatten(1))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model = build({"name": "wholly_frozen:Frozen"}, SERIES)
    training = LocalTraining(model, SERIES, TrainSettings(), seed=0)
    matrix = torch.zeros(4, model.layout.num_parameters)
    schedule = Schedule(torch.full((4,), 20), TrainSettings(), 1, torch.device("cpu"))
    block = Block(slice(0, 4), list("abcd"), torch.arange(4), schedule, windows())
    with pytest.raises(ExperimentError, match="all of them are frozen"):
        training.run(block, matrix, {}, 1)
