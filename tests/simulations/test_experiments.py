"""The experiments that come along: each is valid, and those on real traffic data do what they are there to show."""

import json
import tomllib
from pathlib import Path

import pytest

from fedgraph.experiment.experiment import load_experiment

FILES = (Path(__file__).resolve().parents[2] / "simulations").rglob("*.toml")
EXPERIMENTS = sorted(path for path in FILES if path.name != "pyproject.toml" and path.parent.name != "tables")


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_is_valid_and_found_by_name(path):
    experiment = load_experiment(path)
    named = load_experiment(f"{path.parent.name}/{path.name}")
    assert named.as_dict() == experiment.as_dict()
    assert experiment.experiment.name


def test_experiments_of_sfl_say_which_lambdas_they_have():
    tables = [tomllib.loads(path.read_text()) for path in EXPERIMENTS]
    found = [table for table in tables if table["experiment"]["method"] == "sfl" or "sfl-star" in table]
    assert len(found) >= 10
    for table in found:
        own = table["sfl" if table["experiment"]["method"] == "sfl" else "sfl-star"]
        assert own.keys() >= {"lambda-global", "lambda-personal"}, table["experiment"]["name"]


@pytest.mark.process
@pytest.mark.parametrize("name", ["metr-la", "pems-bay"])
def test_sfl_is_below_fedavg_on_real_traffic(name, data_dir, run_experiment):
    if not (data_dir / name).is_dir():
        pytest.skip(f"no {name} in {data_dir}: set FEDGRAPH_DATA to a folder with it")
    error = {}
    for method in ("sfl", "fedavg"):
        overrides = [
            "experiment.rounds=5", "data.first-steps=6000", "model.hidden=16", "train.local-steps=20",
            "train.batch-size=64", "evaluation.every=5", 'evaluation.splits=["test"]',
        ]  # fmt: skip
        experiment = load_experiment(f"sfl/{name}.toml", overrides, method)
        folder = run_experiment(experiment.as_dict())
        summary = json.loads((folder.path / "summary.json").read_text())
        error[method] = summary["metrics"]["test"]["mae-60min"]["mean"]
        assert "sensors" in summary["data"]
        assert "not comparable" in summary["data"]
    assert error["sfl"] < error["fedavg"], error


@pytest.mark.process
def test_peers_of_ipa_learn_classes_that_only_the_other_has(run_experiment):
    overrides = ["experiment.rounds=60", "evaluation.every=20"]
    folder = run_experiment(load_experiment("ipa/digits.toml", overrides).as_dict())
    accuracy = folder.summary()["per_client"]["test"]["accuracy"]
    assert len(accuracy) == 2
    assert min(accuracy.values()) > 0.7, "alone none is above 0.5"
