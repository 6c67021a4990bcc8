import importlib.util
import json
import logging
import sys
import types
from dataclasses import replace
from importlib.machinery import PathFinder
from itertools import chain

import pytest

from fedgraph.experiment.experiment import parse_experiment
from fedgraph.runs.tracking import Tracker, flat, tracked
from fedgraph.runs.tracking.tracker import make_trackers, parameters
from fedgraph.support.errors import ExperimentError

OWN = "my_trackers:Own"


def test_numbers_of_clients_have_names_of_their_own():
    values = {"test/mae/mean": 1.0, "test/mae": {"a/b": 1.0, "a b": 2.0, "mean": 3.0, "a_b": 4.0, "..": 5.0}}
    assert flat(values) == {
        "test/mae/mean": 1.0,
        "test/mae/a_b": 1.0,
        "test/mae/a b": 2.0,
        "test/mae/mean-2": 3.0,
        "test/mae/a_b-3": 4.0,
        "test/mae/_": 5.0,
    }


def test_of_many_clients_none_has_a_number_of_its_own():
    values = {"test/mae/mean": 1.0, "test/mae": {f"client-{number}": 1.0 for number in range(51)}}
    assert flat(values) == {"test/mae/mean": 1.0}
    assert len(flat(values, most=51)) == 52


@pytest.mark.parametrize(
    ("name", "package"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow-skinny"), ("wandb", "wandb")]
)
def test_a_missing_package_is_named_before_anything_is_trained(run_tracked, monkeypatch, name, package):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda wanted, *more: None if wanted == name else found(wanted))
    with pytest.raises(ExperimentError, match=rf"pip install {package} \(or fedgraph with its extra \[{name}\]"):
        run_tracked([name])


def test_a_folder_that_has_the_name_of_a_package_is_none(run_tracked, monkeypatch, tmp_path):
    (tmp_path / "wandb").mkdir()
    folder = PathFinder.find_spec("wandb", [str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda wanted, *more: folder)
    with pytest.raises(ExperimentError, match="pip install"):
        run_tracked(["wandb"])


def test_other_names_are_refused(digits_tables):
    digits_tables["output"] = {"track": ["tensorbord"]}
    with pytest.raises(ExperimentError, match="a tracker is 'tensorboard', 'mlflow', 'wandb' or"):
        parse_experiment(digits_tables)


def unreachable(self, folder, experiment):
    raise ConnectionError("no answer from http://me:word@host:9/")


def test_what_is_no_tracker_is_refused(digits_tables, own_tracker, monkeypatch):
    module = types.ModuleType("others")
    module.__file__ = "others.py"
    whole = dict.fromkeys(("log_params", "log_metrics", "save", "finalize"), print)
    module.Half = type("Half", (), {"__init__": lambda *given: pytest.fail("made"), "log_params": print, "save": print})
    module.Broken = type("Broken", (), whole)
    monkeypatch.setitem(sys.modules, "others", module)

    def made(path):
        digits_tables["output"] = {"track": [path]}
        return make_trackers(parse_experiment(digits_tables), types.SimpleNamespace(name="run"))

    assert isinstance(made("my_trackers:Own")["my_trackers:Own"], Tracker)
    with pytest.raises(ExperimentError, match="'others:Half' has no function log_metrics, finalize"):
        made("others:Half")
    with pytest.raises(ExperimentError, match="'others:Broken' cannot be started: TypeError"):
        made("others:Broken")
    module.Away = type("Away", (), {**whole, "__init__": unreachable})
    with pytest.raises(ExperimentError, match="ConnectionError: no answer from http://host:9/") as error:
        made("others:Away")
    assert "word" not in str(error.value)
    with pytest.raises(ExperimentError, match="has no 'Missing'"):
        made("others:Missing")


def series(trackers, name):
    """Steps and values of a metric, over all parts of a run."""
    logged = chain.from_iterable(tracker.metrics for tracker in trackers)
    return [(step, values[name]) for step, values in logged if name in values]


def test_each_step_is_logged_once(run_tracked, own_tracker, digits_tables):
    digits_tables["train"]["api-token"] = 1  # refused: settings know their keys
    with pytest.raises(ExperimentError, match="api-token"):
        run_tracked([OWN])
    del digits_tables["train"]["api-token"]
    folder = run_tracked([OWN])
    (tracker,) = own_tracker.made
    summary = folder.summary()
    assert (tracker.name, tracker.experiment, tracker.status) == (folder.name, "small", ["finished"])
    assert tracker.params["train.learning-rate"] == 0.1
    assert tracker.params["model.hidden"] == "[16]"
    assert tracker.params["sfl.alpha"] == 1.0, "defaults of the method too"
    assert not any(key.startswith("output.") for key in tracker.params)
    means = series([tracker], "test/accuracy/mean")
    assert [step for step, _ in means] == [0, 1, 2]
    assert means[-1][1] == summary["metrics"]["test"]["accuracy"]["mean"]
    assert series([tracker], "test/accuracy")[-1] == (2, summary["per_client"]["test"]["accuracy"])
    assert [step for step, _ in series([tracker], "training/loss/std")] == [1, 2]
    assert all(value > 0 for _, value in series([tracker], "training/seconds"))
    bytes_up = [json.loads(line).get("bytes_up", 0) for line in folder.metrics.read_text().splitlines()]
    assert [value for _, value in series([tracker], "training/bytes-up")] == [count for count in bytes_up if count]
    final = series([tracker], "final/validation/loss/std")
    assert final == [(2, summary["metrics"]["validation"]["loss"]["std"])]
    assert series([tracker], "total/exchanges") == [(2, summary["exchanges"])]
    assert {"summary.json", "experiment.toml", "metrics.jsonl"} <= set(tracker.saved)


@pytest.mark.parametrize("every", [1, 3])
def test_a_resumed_run_goes_on_after_its_checkpoint(run_tracked, own_tracker, digits_tables, every):
    digits_tables["experiment"]["rounds"] = 6
    folder = run_tracked([OWN], stops=[3, 6], **{"checkpoint-every": every})
    assert [tracker.status for tracker in own_tracker.made] == [["failed"]] * 2 + [["finished"]]
    rounds = [[step for step, _ in series([part], "training/loss/mean")] for part in own_tracker.made]
    assert [part[0] - 1 for part in rounds] == [0, 2 // every * every, 5 // every * every]
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    written = [line for line in lines if line["phase"] == "evaluation" and line["split"] == "validation"]
    again = dict(series(own_tracker.made, "validation/loss/mean"))
    assert again == {line["round"]: line["metrics"]["loss"]["mean"] for line in written}


def test_restored_models_are_logged_as_results_only(run_tracked, own_tracker, digits_tables):
    digits_tables["experiment"]["rounds"] = 3
    digits_tables["evaluation"] = {"average-last": 2}
    folder = run_tracked([OWN])
    found = series(own_tracker.made, "test/loss/mean")
    assert [step for step, _ in found] == [0, 1, 2, 3]
    ((step, final),) = series(own_tracker.made, "final/test/loss/mean")
    assert (step, final) == (3, folder.summary()["metrics"]["test"]["loss"]["mean"])
    assert final != found[-1][1]


def test_epochs_of_methods_without_rounds_are_logged(run_tracked, own_tracker, patches_tables):
    patches_tables["f3"] |= {"learning-rates": [0.01, 0.02], "epochs": 3}
    folder = run_tracked([OWN], tables=patches_tables)
    losses = series(own_tracker.made, "fusion/training-loss")
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert [value for _, value in losses] == [line["training_loss"] for line in lines if line["phase"] == "fusion"]
    assert [step for step, _ in losses] == list(range(1, len(losses) + 1)), "counted on from rate to rate"
    assert len(losses) > 3
    accuracy = folder.summary()["metrics"]["test"]["accuracy"]["mean"]
    assert [value for _, value in series(own_tracker.made, "test/accuracy/mean")] == [accuracy]
    assert own_tracker.made[0].status == ["finished"]


def test_a_tracker_that_fails_does_not_stop_the_run(run_tracked, own_tracker, digits_tables, monkeypatch, caplog):
    digits_tables["experiment"]["rounds"] = 3
    called = []

    def log_metrics(self, values, step):
        called.append(step)
        if step == 2:
            raise ConnectionError("http://me:word@server/ is gone")

    monkeypatch.setattr(own_tracker, "log_metrics", log_metrics)
    with caplog.at_level(logging.WARNING, "fedgraph"):
        folder = run_tracked([OWN])
    warnings = [record.message for record in caplog.records if "tracker" in record.message]
    assert warnings == [
        "tracker my_trackers:Own failed, the run goes on without it: ConnectionError: http://server/ is gone"
    ]
    assert folder.summary()["rounds"] == 3
    assert called[-1] == 2
    assert called.count(2) == 1
    assert own_tracker.made[0].status == []


def test_nodes_are_not_told_of_trackers(digits_tables):
    digits_tables["output"] = {"track": ["my_trackers:Own"]}
    assert "my_trackers" not in parse_experiment(digits_tables).client_part({})


def test_secrets_are_no_parameters():
    tables = {
        "mine": {"api-token": "a", "password": "b", "rate": 1, "where": "https://me:c@host/", "token-length": 3},
        "model": {"variants": [{"private-key": "d", "hidden": [1]}]},
        "output": {"dir": "e"},
        "clients": {"public-keys": "f"},
    }
    assert parameters(tables) == {"mine.rate": 1, "mine.token-length": 3, "model.variants.0.hidden": "[1]"}


def test_files_with_secrets_are_not_handed_on(own_tracker, digits_tables, run_experiment):
    folder = run_experiment(digits_tables)
    experiment = parse_experiment(digits_tables | {"output": {"track": [OWN]}})
    secret = replace(experiment, method_tables={"sfl-per": {"api-token": "x"}})
    for each in (experiment, secret):
        with tracked(each, folder):
            pass
    plain, without = (set(tracker.saved) for tracker in own_tracker.made)
    assert plain - without == {"experiment.toml", "environment.json"}
    assert "summary.json" in without
