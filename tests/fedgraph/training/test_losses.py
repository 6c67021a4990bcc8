from __future__ import annotations

import numpy as np
import pytest
import torch

from fedgraph.models.task import TaskSpec
from fedgraph.training.losses import loss_sums, masked_mean

FORECAST = TaskSpec("forecast", (3, 1), (2,))


@pytest.mark.parametrize(
    ("loss", "equation"),
    [
        ("auto", np.abs),
        ("mae", np.abs),
        ("mse", np.square),
        ("huber", lambda e: np.where(np.abs(e) < 1, e**2 / 2, np.abs(e) - 0.5)),
    ],
)
def test_masked_sums_skip_missing_targets(loss, equation):
    random = np.random.default_rng(0)
    outputs, targets = 2 * random.normal(size=(2, 4, 6, 2)).astype(np.float32)
    weights = (random.random((4, 6, 2)) < 0.5).astype(np.float32)
    weights[3] = 0
    targets[weights == 0] = np.nan
    leaf = torch.from_numpy(outputs).requires_grad_()
    sums, counts = loss_sums(loss, FORECAST, leaf, torch.from_numpy(targets), torch.from_numpy(weights))
    for client in range(4):
        kept = weights[client] > 0
        expected = equation(outputs[client][kept] - targets[client][kept]).sum()
        assert sums[client].item() == pytest.approx(expected, rel=1e-5)
        assert counts[client] == kept.sum()
    mean = masked_mean(sums, counts)
    assert mean[3] == 0
    mean.sum().backward()
    assert leaf.grad.isfinite().all()
    assert (leaf.grad[torch.from_numpy(weights) == 0] == 0).all()


def test_automatic_loss_of_the_other_tasks():
    logits, classes = torch.randn(1, 5, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([[0, 2, 1, 1, 0]])
    sums, _ = loss_sums("auto", TaskSpec("classification", (4,), (3,)), logits, classes, torch.ones(1, 5))
    torch.testing.assert_close(sums[0], torch.nn.functional.cross_entropy(logits[0], classes[0], reduction="sum"))
    sums, _ = loss_sums("auto", TaskSpec("regression", (4,), ()), torch.ones(1, 2), torch.zeros(1, 2), torch.ones(1, 2))
    assert sums.item() == 2
