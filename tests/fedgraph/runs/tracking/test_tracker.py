import importlib.util
import sys
import types
from importlib.machinery import PathFinder

import pytest

from fedgraph.experiment.experiment import parse_experiment
from fedgraph.runs.tracking import Tracker, flat
from fedgraph.runs.tracking.tracker import make_trackers
from fedgraph.support.errors import ExperimentError


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
    module.Half = type("Half", (), {"__init__": lambda self, *given: None, "log_params": print, "save": print})
    module.Broken = type("Broken", (), {})
    monkeypatch.setitem(sys.modules, "others", module)

    def made(path):
        digits_tables["output"] = {"track": [path]}
        return make_trackers(parse_experiment(digits_tables), types.SimpleNamespace(name="run"))

    assert isinstance(made("my_trackers:Own")["my_trackers:Own"], Tracker)
    with pytest.raises(ExperimentError, match="it lacks log_metrics, finalize"):
        made("others:Half")
    with pytest.raises(ExperimentError, match="'others:Broken' cannot be started: TypeError"):
        made("others:Broken")
    module.Away = type("Away", (), {"__init__": unreachable})
    with pytest.raises(ExperimentError, match="ConnectionError: no answer from http://host:9/") as error:
        made("others:Away")
    assert "word" not in str(error.value)
    with pytest.raises(ExperimentError, match="has no 'Missing'"):
        made("others:Missing")
