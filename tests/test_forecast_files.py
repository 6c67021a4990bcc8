"""[evaluation] forecasts: what nodes write is what was measured, for every method that forecasts."""

import numpy as np
import pytest

import fedgraph
from fedgraph.experiment import parse_experiment
from fedgraph.support.errors import ExperimentError, RunError

TABLES = {
    "experiment": {"method": "sfl", "rounds": 2},
    "data": {"set": "synthetic-traffic", "sensors": 4, "days": 3, "train-steps": 400},
    "model": {"name": "gru", "hidden": 4},
    "train": {"local-steps": 2},
    "graph": {"source": "data"},
    "evaluation": {"splits": ["validation", "test"], "forecasts": "csv"},
    "f3-forecast": {"steps": 4},
}


@pytest.mark.parametrize(
    "method",
    [
        "sfl",
        "fedavg",
        "fedavg-ft",
        "fedper",
        "ipa",
        "f3-forecast",
        "f3-forecast-private",
        "simple-forecast",
        "fedgraph.simulations.forecasting.cnfgnn:CNFGNN",
        "fedgraph.simulations.forecasting.joint_forecast:JointForecast",
    ],
)
def test_errors_of_the_files_are_those_of_the_run(method, tmp_path):
    changes = {"evaluation.forecasts": "parquet"} if method == "sfl" else {}
    if method.endswith("-private"):
        method, changes = "f3-forecast", {"f3-forecast.targets": "private"}
    if method.endswith("JointForecast"):
        changes = {"JointForecast.steps": 30}
    if method.endswith("CNFGNN"):
        changes = {"CNFGNN.windows": 32, "CNFGNN.server-steps": 2}
    nodes = 1 if method.endswith("JointForecast") else 2
    named = {"strategy" if ":" in method else "method": method}
    run = fedgraph.run(TABLES, **named, set=changes, out=tmp_path, progress=False, nodes=nodes)
    found = run.forecasts
    assert list(found.columns) == ["client", "window", "time", "forecast", "reading", "readings_in_window"]
    assert found["readings_in_window"].between(1, 12).all()
    assert set(found["client"]) == set(run.clients.index)
    errors = (found["forecast"] - found["reading"]).abs().groupby(found["client"]).mean()
    np.testing.assert_allclose(errors, run.clients["test/mae"].sort_index(), rtol=1e-4)
    assert found["time"].iloc[:2].tolist() == ["2024-01-03T17:45:00", "2024-01-03T17:50:00"]


def test_a_run_without_forecasts_says_how_to_get_some(tmp_path):
    run = fedgraph.run(TABLES, set={"evaluation.forecasts": None, "experiment.rounds": 1}, out=tmp_path, progress=False)
    with pytest.raises(RunError, match=r"\[evaluation\] forecasts"):
        _ = run.forecasts


def test_what_has_no_forecasts_is_refused_at_the_start():
    variants = {"name": "gru", "hidden": 4, "variants": [{"clients": ["a*"], "name": "gru", "hidden": 8}]}
    with pytest.raises(ExperimentError, match="of one architecture"):
        parse_experiment({**TABLES, "model": variants})
