import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from fedgraph.data import open_source, parse_data
from fedgraph.models import build
from fedgraph.support.errors import DataError
from fedgraph.training import Cohort, TrainSettings
from fedgraph.training.forecasting import forecast_errors, read_targets, simple_forecasts

STEPS, INPUT, OUTPUT = 3 * 7 * 24, 4, 2
NAMES = ("daily", "sparse")


@pytest.fixture
def cohort(tmp_path):
    """Two sensors that repeat their day, with noise; the second one has gaps. Three weeks of hours."""
    return _cohort(tmp_path)


def _cohort(tmp_path, **keys):
    random = np.random.default_rng(0)
    hours = np.arange(STEPS)
    day = np.sin(2 * np.pi * hours / 24)
    series = np.stack([50 + 9 * day, 20 - 4 * day], axis=1) + random.standard_normal((STEPS, 2))
    series[random.random(STEPS) < 0.3, 1] = np.nan
    path = tmp_path / "hours.npz"
    np.savez(path, data=series.astype(np.float32), names=np.array(NAMES))
    table = {"set": "series", "path": str(path), "input-steps": INPUT, "output-steps": OUTPUT}
    table |= {"start": "2024-05-06T00:00", "step-minutes": 60} | keys
    data = open_source(parse_data(table), tmp_path).load(NAMES)
    return Cohort(build({"name": "rnn", "hidden": 2}, data.task), data, TrainSettings(), 0)


def windows(cohort, split, row):
    data = cohort.data.splits[split]
    batch = data.batch(torch.arange(int(data.num_examples[row])).expand(2, -1))
    return batch.inputs[row].numpy(), batch.targets[row].numpy(), batch.weights[row].numpy() > 0


def test_the_last_reading_is_repeated(cohort):
    found = simple_forecasts("last-reading", cohort, ("test",))["test"]
    split = cohort.data.splits["test"]
    for row in range(2):
        for example in range(0, found.shape[1], 7):
            at = split.first + example
            read = np.flatnonzero(split.observed[row, at : at + INPUT].numpy())
            expected = split.series[row, at + read[-1], 0] if len(read) else 0.0
            assert found[row, example].tolist() == pytest.approx([float(expected)] * OUTPUT)


def test_the_weekly_profile_is_that_of_the_training_part_at_the_time_of_targets(cohort):
    found = simple_forecasts("weekly-profile", cohort, ("validation", "test"))
    errors = forecast_errors(cohort, found["test"], "test")["mae"]
    # The deviation of the noise is 1, and its mean absolute value .8.
    assert bool((errors < 1.1).all())
    nothing = forecast_errors(cohort, torch.zeros_like(found["test"]), "test")["mae"]
    assert float(nothing[0]) > 4
    split = cohort.data.splits["validation"]
    hour = (split.first + INPUT) % 168
    readings = split.series[0, hour : split.first : 168, 0]
    assert float(found["validation"][0, 0, 0]) == pytest.approx(float(readings.mean()), abs=0.25)


def test_a_weekly_profile_needs_to_know_the_time(tmp_path):
    cohort = _cohort(tmp_path, start=None)
    with pytest.raises(DataError, match="needs `start` and `step-minutes`"):
        simple_forecasts("weekly-profile", cohort, ("test",))


def test_ridge_is_that_of_scikit_learn(cohort):
    found = simple_forecasts("ridge", cohort, ("validation", "test"))
    for row in range(2):
        x, y, known = windows(cohort, "train", row)
        x_test, _, _ = windows(cohort, "test", row)
        for step in range(OUTPUT):
            rows = known[:, step]
            fits = [
                Ridge(alpha=penalty * rows.sum()).fit(x[rows].reshape(rows.sum(), -1), y[rows, step])
                for penalty in 10.0 ** np.arange(-4, 3)
            ]
            said = [fit.predict(x_test.reshape(len(x_test), -1)) for fit in fits]
            ours = found["test"][row, : len(x_test), step].numpy()
            assert min(np.abs(ours - one).max() for one in said) < 1e-4
    targets, known = read_targets(cohort, "validation")
    loss = ((found["validation"] - targets).abs() * known).sum((1, 2)) / known.sum((1, 2))
    naive = (targets.abs() * known).sum((1, 2)) / known.sum((1, 2))
    assert bool((loss < 0.8 * naive).all())


def test_trees_learn_what_covariates_tell(tmp_path):
    errors = {}
    for covariates in ([], ["time-of-day"]):
        cohort = _cohort(tmp_path, covariates=covariates)
        found = simple_forecasts("trees", cohort, ("test",))["test"]
        errors[len(covariates)] = forecast_errors(cohort, found, "test")["mae"]
        again = simple_forecasts("trees", cohort, ("test",))["test"]
        assert torch.equal(found, again)
    assert bool((errors[1] < 0.95 * errors[0]).all())


def test_scaled_forecasts_are_measured_in_the_unit_of_readings(cohort):
    targets, known = read_targets(cohort, "test")
    errors = forecast_errors(cohort, targets + 0.5, "test", (1, 2))
    torch.testing.assert_close(errors["mae"], 0.5 * cohort.data.std.double())
    torch.testing.assert_close(errors["mae-2hours"], 0.5 * cohort.data.std.double())
    assert not known[1].all()
