"""Optimisers on stacked parameters against torch.optim."""

from __future__ import annotations

import pytest
import torch

from fedgraph.support.errors import RunError
from fedgraph.training import optimisers
from fedgraph.training.optimisers import Optimiser, check_state, clip_rows, fresh_state
from fedgraph.training.settings import TrainSettings

CASES = [
    ({"optimizer": "sgd"}, torch.optim.SGD, {}),
    ({"optimizer": "sgd", "momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
    (
        {"optimizer": "sgd", "momentum": 0.8, "nesterov": True, "weight-decay": 0.1},
        torch.optim.SGD,
        {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
    ),
    ({"optimizer": "adam"}, torch.optim.Adam, {}),
    (
        {"optimizer": "adam", "weight-decay": 0.1, "betas": [0.8, 0.95]},
        torch.optim.Adam,
        {"weight_decay": 0.1, "betas": (0.8, 0.95)},
    ),
    ({"optimizer": "adamw", "weight-decay": 0.1}, torch.optim.AdamW, {"weight_decay": 0.1}),
]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("table", "reference", "options"), CASES, ids=lambda case: str(case))
def test_equals_torch_optim_for_each_client_on_its_own_steps(table, reference, options, fused, monkeypatch):
    monkeypatch.setattr(optimisers, "_FUSED_FROM", 0 if fused else 10**9)
    random = torch.Generator().manual_seed(0)
    settings = TrainSettings(**table)
    start = torch.randn(3, 5, generator=random)
    parameters = start.clone()
    ours = Optimiser(settings, 0.05, fresh_state(settings, 3, 5))
    rows = [start[i].clone().requires_grad_() for i in range(3)]
    theirs = [reference([row], lr=0.05, **options) for row in rows]
    for step in range(12):
        gradient = torch.randn(3, 5, generator=random)
        active = 3 if step < 4 else 2 if step < 9 else 1
        ours.step(parameters, gradient[:active].clone())
        for client in range(active):
            rows[client].grad = gradient[client].clone()
            theirs[client].step()
    torch.testing.assert_close(parameters, torch.stack(rows).detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("table", "reference", "options"), CASES, ids=lambda case: str(case))
def test_rates_of_their_own_equal_torch_optim_with_that_rate(table, reference, options):
    random = torch.Generator().manual_seed(0)
    settings = TrainSettings(**table)
    start = torch.randn(3, 5, generator=random)
    parameters = start.clone()
    ours = Optimiser(settings, 100.0, fresh_state(settings, 3, 5))
    rows = [start[i].clone().requires_grad_() for i in range(3)]
    theirs = [reference([row], lr=100.0, **options) for row in rows]
    for step in range(8):
        gradient, rates = torch.randn(3, 5, generator=random), torch.rand(3, generator=random)
        active = 3 if step < 4 else 2
        ours.step(parameters, gradient[:active].clone(), rates[:active])
        for client in range(active):
            rows[client].grad = gradient[client].clone()
            theirs[client].param_groups[0]["lr"] = rates[client].item()
            theirs[client].step()
    torch.testing.assert_close(parameters, torch.stack(rows).detach(), atol=1e-5, rtol=1e-5)


def test_rows_of_different_ages_are_not_taken_for_one(monkeypatch):
    """Two clients, the second of which has trained before."""
    monkeypatch.setattr(optimisers, "_FUSED_FROM", 0)
    settings, gradient = TrainSettings(optimizer="adam"), torch.ones(2, 4)
    state = fresh_state(settings, 2, 4)
    state["step"][1], state["first-moment"][1], state["second-moment"][1] = 5.0, 0.3, 0.02
    parameters = torch.zeros(2, 4)
    Optimiser(settings, 0.1, state).step(parameters, gradient)
    mean, square = 0.9 * 0.3 + 0.1, 0.999 * 0.02 + 0.001
    expected = -0.1 * (mean / (1 - 0.9**6)) / ((square / (1 - 0.999**6)) ** 0.5)
    torch.testing.assert_close(parameters[:, 0], torch.tensor([-0.1, expected]), rtol=1e-4, atol=0)
    assert state["step"].tolist() == [1, 6]


def test_clip_rows_like_torch_per_client():
    gradient = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    expected = []
    for row in gradient:
        leaf = torch.zeros(2, requires_grad=True)
        leaf.grad = row.clone()
        torch.nn.utils.clip_grad_norm_([leaf], 1.0)
        expected.append(leaf.grad)
    torch.testing.assert_close(clip_rows(gradient, 1.0), torch.stack(expected))


def test_state_of_other_settings_is_refused():
    with pytest.raises(RunError, match=r"optimiser state has .*momentum.*continued with other settings"):
        check_state({"momentum": torch.zeros(2, 3)}, fresh_state(TrainSettings(optimizer="adam"), 2, 3))
