from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

from fedgraph.models.base import TaskSpec
from fedgraph.support.errors import ExperimentError
from fedgraph.training.metrics import direction, loss_sums, masked_mean, summarise
from fedgraph.training.tallies import SMALLEST_TARGET, tally

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


FORECAST_OF_TWO = TaskSpec("forecast", (12, 1), (4,), step_minutes=5, unit="mph")


def forecast_batch(seed=0, clients=3, examples=20):
    random = np.random.default_rng(seed)
    outputs = random.normal(size=(clients, examples, 4)).astype(np.float32)
    targets = random.normal(size=(clients, examples, 4)).astype(np.float32)
    weights = (random.random((clients, examples, 4)) < 0.7).astype(np.float32)
    targets[weights == 0] = np.nan
    return outputs, targets, weights


def numpy_errors(outputs, targets, weights):
    kept = weights > 0
    error = np.abs(outputs[kept] - targets[kept])
    far = np.abs(targets[kept]) >= SMALLEST_TARGET
    return {
        "mae": error.mean(),
        "rmse": np.sqrt((error**2).mean()),
        "mape": 100 * (error[far] / np.abs(targets[kept][far])).mean(),
    }


def test_forecast_metrics_in_the_tasks_unit_whatever_the_batches():
    outputs, targets, weights = forecast_batch()
    mean, std = np.array([50.0, 60.0, 0.0]), np.array([9.0, 4.0, 1.0])
    targets[2, 0, 0], weights[2, 0, 0] = 0.0, 1.0
    for cuts in ([20], [7, 13], [1] * 20):
        sums = tally(FORECAST_OF_TWO, torch.tensor(mean), torch.tensor(std), horizons=(1, 3))
        for part in zip(*(torch.from_numpy(each).split(cuts, 1) for each in (outputs, targets, weights)), strict=True):
            sums.add(*part)
        found = sums.result()
        assert set(found) == {f"{kind}{at}" for kind in ("mae", "rmse", "mape") for at in ("", "-5min", "-15min")}
        for client in range(3):
            y, t, w = (each[client].astype(np.float64) for each in (outputs, targets, weights))
            y, t = y * std[client] + mean[client], t * std[client] + mean[client]
            for suffix, steps in (("", slice(None)), ("-5min", slice(0, 1)), ("-15min", slice(2, 3))):
                for name, value in numpy_errors(y[:, steps], t[:, steps], w[:, steps]).items():
                    assert found[name + suffix][client].item() == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize(
    ("minutes", "suffixes"),
    [
        (20, {"20min", "60min"}),
        (60, {"1hour", "3hours"}),
        (60 + 1 / 60, {"1hour", "3hours"}),  # a second of jitter
        (0.5, {"0.5min", "1.5min"}),
        (120, {"2hours", "6hours"}),
        (1440, {"1day", "3days"}),
        (10080, {"1week", "3weeks"}),
        (44640, {"1month", "3months"}),
        (131040, {"1quarter", "3quarters"}),
        (525600, {"1year", "3years"}),
    ],
)
def test_horizons_are_named_in_the_unit_of_steps(minutes, suffixes):
    task = TaskSpec("forecast", (12, 1), (4,), step_minutes=minutes)
    sums = tally(task, torch.zeros(1), torch.ones(1), horizons=(1, 3))
    sums.add(torch.zeros(1, 1, 4), torch.ones(1, 1, 4), torch.ones(1, 1, 4))
    assert {name.removeprefix("mae-") for name in sums.result() if name.startswith("mae-")} == suffixes


def test_steps_without_known_length_are_numbered():
    task = TaskSpec("forecast", (12, 1), (4,))
    sums = tally(task, torch.zeros(3), torch.ones(3), horizons=(2,))
    sums.add(*map(torch.from_numpy, forecast_batch()))
    assert "mape-step2" in sums.result()


def test_regression_has_no_percentage():
    sums = tally(TaskSpec("regression", (5,), (1,)), torch.zeros(1), torch.full((1,), 2.0))
    sums.add(torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[0.0], [5.0]]]), torch.ones(1, 2, 1))
    assert {name: value.tolist() for name, value in sums.result().items()} == {
        "mae": [4.0],
        "rmse": [pytest.approx(math.sqrt((4 + 36) / 2))],
    }


def test_classification_against_numpy():
    random = np.random.default_rng(0)
    logits = random.normal(size=(2, 9, 3)).astype(np.float32)
    targets = random.integers(3, size=(2, 9))
    weights = np.ones((2, 9), dtype=np.float32)
    weights[1, 4:] = 0
    sums = tally(TaskSpec("classification", (4,), (3,)), torch.zeros(2), torch.ones(2))
    for cut in (slice(0, 4), slice(4, 9)):
        sums.add(*(torch.from_numpy(each[:, cut]) for each in (logits, targets, weights)))
    found = sums.result()
    for client, kept in enumerate((9, 4)):
        z, t = logits[client, :kept].astype(np.float64), targets[client, :kept]
        log_likelihood = z[np.arange(kept), t] - np.log(np.exp(z).sum(1))
        assert found["accuracy"][client].item() == pytest.approx((z.argmax(1) == t).mean())
        assert found["loss"][client].item() == pytest.approx(-log_likelihood.mean())


@pytest.mark.parametrize(("classes", "average"), [(2, "binary"), (3, "macro"), (6, "macro")])
def test_f1_against_scikit_learn_whatever_the_batches(classes, average):
    random = np.random.default_rng(classes)
    clients, examples = 7, 12
    logits = random.normal(size=(clients, examples, classes)).astype(np.float32)
    targets = random.integers(classes, size=(clients, examples))
    weights = (random.random((clients, examples)) < 0.6).astype(np.float32)
    logits[0, :, 1] = -9.0  # class 1 is never predicted
    targets[1] = logits[1].argmax(1)  # all right
    targets[2], logits[2, :, 0] = 0, 9.0  # nothing but class 0, there and predicted
    targets[3], logits[3, :, 0] = 1, 9.0  # two classes only, all wrong
    weights[4, 5:] = 0
    targets[weights == 0] = 99  # what has no weight may hold anything
    for cuts in ([12], [5, 7], [1] * 12):
        sums = tally(TaskSpec("classification", (4,), (classes,)), torch.zeros(clients), torch.ones(clients))
        for part in zip(*(torch.from_numpy(each).split(cuts, 1) for each in (logits, targets, weights)), strict=True):
            sums.add(*part)
        found = sums.result()["f1"].tolist()
        for client in range(clients):
            kept = weights[client] > 0
            truth, guess = targets[client, kept], logits[client, kept].argmax(1)
            assert found[client] == pytest.approx(f1_score(truth, guess, average=average, zero_division=0.0))
    assert found[1] == 1.0
    assert found[3] == 0.0


def test_weights_count_in_f1():
    sums = tally(TaskSpec("classification", (4,), (2,)), torch.zeros(1), torch.ones(1))
    logits = torch.tensor([[[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]])
    sums.add(logits, torch.tensor([[1, 0, 1]]), torch.tensor([[3.0, 1.0, 0.5]]))
    weighted = f1_score([1, 0, 1], [1, 1, 0], sample_weight=[3.0, 1.0, 0.5])
    assert sums.result()["f1"].tolist() == [pytest.approx(weighted)]


def test_f1_without_any_target_is_nan():
    for classes in (2, 3):
        sums = tally(TaskSpec("classification", (4,), (classes,)), torch.zeros(1), torch.ones(1))
        sums.add(torch.zeros(1, 2, classes), torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2))
        assert math.isnan(sums.result()["f1"].item())


def test_no_valid_target_is_nan():
    outputs, targets, weights = forecast_batch()
    weights[1] = 0
    sums = tally(FORECAST_OF_TWO, torch.zeros(3), torch.ones(3))
    sums.add(*map(torch.from_numpy, (outputs, targets, weights)))
    assert all(value.isnan().tolist() == [False, True, False] for value in sums.result().values())


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (FORECAST_OF_TWO, "horizon 5 .*1 to 4"),
        (TaskSpec("classification", (4,), (3,)), "horizon 5 .*classification"),
    ],
)
def test_horizons_out_of_range(task, message):
    with pytest.raises(ExperimentError, match=message):
        tally(task, torch.zeros(1), torch.ones(1), horizons=(5,))


def test_direction_goes_by_the_part_of_the_name_that_is_a_measure():
    assert direction("mae-15min") == direction("test/loss") == "lower"
    assert direction("validation/accuracy") == direction("public/cause-macro-recall-local") == "higher"
    # Features that are called as measures are.
    assert direction("test/loss-auc-local") == "higher"
    assert direction("test/accuracy-rmse") == "lower"
    with pytest.raises(ExperimentError, match="'speed'; .*accuracy, auc"):
        direction("speed")


def test_summary_ignores_clients_without_a_value():
    values = np.random.default_rng(1).random(41)
    with_gap = torch.cat([torch.from_numpy(values), torch.tensor([math.nan])])
    lower, higher = summarise(with_gap, "mae"), summarise(with_gap, "accuracy")
    ordered = np.sort(values)
    assert lower["mean"] == pytest.approx(values.mean())
    assert lower["std"] == pytest.approx(values.std())
    assert lower["best5"] == higher["worst5"] == pytest.approx(ordered[:2].mean())
    assert lower["worst5"] == higher["best5"] == pytest.approx(ordered[-2:].mean())


def test_summary_of_few_or_no_values():
    summary = summarise({"a": 1.0, "b": 3.0, "c": math.nan}, "loss")
    assert summary == {"mean": 2.0, "std": 1.0, "best5": 1.0, "worst5": 3.0}
    assert all(math.isnan(value) for value in summarise(torch.tensor([math.nan]), "mae").values())
    assert all(math.isnan(value) for value in summarise({}, "mae").values())


def test_missing_targets_count_as_a_value_beside_the_masked_errors():
    task = TaskSpec("forecast", (12, 1), (2,), step_minutes=5)
    outputs, targets = torch.zeros(1, 3, 2), torch.tensor([[[1.0, torch.nan], [torch.nan, -1.0], [0.5, 0.5]]])
    weights = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]])
    sums = tally(task, torch.tensor([50.0]), torch.tensor([10.0]), horizons=(1,), missing_as=0.0)
    # The third example is padding. Forecasts are 50; 60 and 40 were read, and the two that are missing count as 0.
    sums.add(outputs, targets, weights, torch.tensor([[True, True, False]]))
    assert {name: value.item() for name, value in sums.result().items()} == pytest.approx(
        {
            "mae": 10.0, "rmse": 10.0, "mape": 100 * (10 / 60 + 10 / 40) / 2,
            "mae-5min": 10.0, "rmse-5min": 10.0, "mape-5min": 100 * 10 / 60,
            "mae-unmasked": (10 + 50 + 50 + 10) / 4, "rmse-unmasked": math.sqrt((100 + 2500 + 2500 + 100) / 4),
            "mae-5min-unmasked": 30.0, "rmse-5min-unmasked": math.sqrt((100 + 2500) / 2),
        }
    )  # fmt: skip
    assert direction("test/mae-5min-unmasked") == "lower"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "task",
    [TaskSpec("classification", (3,), (3,)), TaskSpec("forecast", (3, 1), (4,)), TaskSpec("regression", (3,), (1,))],
    ids=lambda task: task.kind,
)
def test_outputs_that_are_not_finite_leave_nothing_to_measure(task, value):
    """A single number among the outputs of a client, in its second batch; numbers in padding do not matter."""
    sums = tally(task, torch.zeros(3), torch.ones(3), (1, 3) if task.kind == "forecast" else (), missing_as=None)
    for broken in (False, True):
        outputs, targets = torch.zeros(3, 5, *task.output_shape), torch.ones(3, 5, *task.output_shape)
        if task.kind == "classification":
            targets = torch.zeros(3, 5, dtype=torch.int64)
        present = torch.ones(3, 5, dtype=torch.bool)
        present[2, 3:] = False
        weights = present.float().reshape(3, 5, *[1] * (targets.dim() - 2)).expand_as(targets).clone()
        if broken:
            outputs[0, 1, 2 if task.kind != "regression" else 0] = value
            outputs[2, 4] = value
        sums.add(outputs, targets, weights, present)
    found = sums.result()
    assert len(found) >= 2
    for values in found.values():
        assert values[0].isnan()
        assert values[1:].isfinite().all()
