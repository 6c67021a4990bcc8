import csv
import json

import pytest
import tomli_w
from rich.console import Console

import fedgraph
from fedgraph.clients.engine import node
from fedgraph.experiment import load_experiment, parse_experiment
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.resuming import MAY_CHANGE, changes, code_of
from fedgraph.starting.running import run_one
from fedgraph.support.errors import ExperimentError, RunError


def summary_of(folder):
    return json.loads((folder.path / "summary.json").read_text())


def changed(folder, **keys):
    """Edit keys of the folder's experiment.toml; ``table__key`` stands for ``table.key``."""
    tables = folder.tables
    for name, value in keys.items():
        table, key = name.replace("_", "-").split("--")
        tables.setdefault(table, {})[key] = value
    (folder.path / "experiment.toml").write_text(tomli_w.dumps(tables))


@pytest.fixture
def begun(digits_tables, tmp_path):
    """A run folder in which something was trained."""
    digits_tables["train"]["clip-norm"] = 1.0
    experiment = parse_experiment(digits_tables)
    folder = RunFolder.create(experiment, tmp_path)
    folder.begin_or_go_on(experiment)
    folder.checkpoint.touch()
    return folder


def check(folder, own=()):
    return folder.check_goes_on(load_experiment(folder.path / "experiment.toml"), own)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"experiment__seed": 7}, "experiment.seed was 0 and is 7. Restore the old value in"),
        ({"data__normalise": "standard"}, "data.normalise was 'unit' and is 'standard'"),
        ({"data__clients": 5}, "data.clients was 6 and is 5"),
        ({"train__learning_rate": 0.2}, "train.learning-rate was 0.1 and is 0.2"),
        ({"train__batch_size": 8}, "train.batch-size was 32 and is 8"),
        ({"train__optimizer": "adam"}, "train.optimizer was 'sgd' and is 'adam'"),
        ({"model__hidden": [8]}, r"model.hidden was \[16\] and is \[8\]"),
        ({"graph__source": "complete"}, "graph.source was 'labels' and is 'complete'"),
        ({"defence__clip": 2.0}, "defence.clip was 0.0 and is 2.0"),
        ({"evaluation__every": 2}, "evaluation.every was 1 and is 2"),
        ({"sfl__hops": 3}, "sfl.hops was 1 and is 3"),
        (
            {"sfl__hops": 3, "experiment__seed": 1},
            "seed was 0 and is 1; sfl.hops was 1 and is 3. Restore the old values",
        ),
        ({"experiment__method": "local"}, "experiment.method was 'sfl' and is 'local'. Restore the old value in"),
        ({"experiment__client": "a.b:C"}, "experiment.client was not given and is 'a.b:C'"),
    ],
)
def test_another_experiment_is_refused_key_by_key(begun, keys, told):
    changed(begun, **keys)
    with pytest.raises(
        ExperimentError, match=rf"{begun.path} cannot be resumed with another experiment: .*{told}"
    ) as error:
        check(begun)
    assert "may change: experiment.name, experiment.rounds, " in str(error.value)


def test_a_value_that_is_taken_away_is_refused(begun):
    tables = begun.tables
    tables["train"]["unset"].append("clip-norm")
    del tables["train"]["clip-norm"]
    (begun.path / "experiment.toml").write_text(tomli_w.dumps(tables))
    with pytest.raises(ExperimentError, match="train.clip-norm was 1.0 and is not given"):
        check(begun)


def test_what_may_change(begun):
    changed(
        begun, experiment__rounds=9, experiment__on_missing="skip", experiment__timeout=5.0, train__workers=1,
        output__report=False, output__checkpoint_every=5, clients__expect=["client-0"], sfl_per__hops=2,
    )  # fmt: skip
    assert check(begun)["experiment.rounds"] == ("2", "9")
    experiment = load_experiment(begun.path / "experiment.toml")
    begun.begin_or_go_on(experiment)
    assert "experiment.rounds was 2 when the run began, and 9 since it was resumed" in begun.notes
    assert not any("timeout" in note for note in begun.notes)


def test_keys_that_a_method_declares_may_change(begun):
    changed(begun, sfl__hops=3)
    assert set(check(begun, ["hops"])) == {"sfl.hops"}


def test_every_key_that_may_change_is_one(digits_tables):
    resolved = parse_experiment(digits_tables)
    for table, keys in MAY_CHANGE.items():
        assert {*keys} <= {*type(getattr(resolved, table)).keys()}, table


def test_rounds_stay_where_the_last_ones_are_averaged(digits_tables):
    digits_tables["evaluation"] = {"average-last": 2}
    before = parse_experiment(digits_tables)
    digits_tables["experiment"]["rounds"] = 5
    assert set(changes(before, parse_experiment(digits_tables))) == {"experiment.rounds"}


def test_nothing_is_held_to_what_it_has_not_trained_with(begun):
    begun.checkpoint.unlink()
    changed(begun, experiment__method="local", train__learning_rate=0.5)
    experiment = load_experiment(begun.path / "experiment.toml")
    begun.begin_or_go_on(experiment)
    assert load_experiment(begun.begun_with).as_dict() == experiment.as_dict()


def test_the_folder_says_what_an_override_changed(begun):
    experiment = load_experiment(begun.path / "experiment.toml", "experiment.rounds=12")
    begun.begin_or_go_on(experiment)
    assert begun.tables["experiment"]["rounds"] == 12


def test_code_that_was_changed_is_noted(digits_tables, tmp_path, monkeypatch, caplog):
    file = tmp_path / "a_loop_of_ones_own.py"
    file.write_text("def train(model, examples, **others):\n    return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    digits_tables["train"]["function"] = "a_loop_of_ones_own:train"
    digits_tables["model"] = {"name": "nowhere_to_be_found:Model"}
    experiment = parse_experiment(digits_tables)
    assert list(code_of(experiment)) == ["a_loop_of_ones_own"]
    folder = RunFolder.create(experiment, tmp_path / "runs")
    folder.begin_or_go_on(experiment)
    folder.checkpoint.touch()
    folder.begin_or_go_on(experiment)
    assert folder.notes == []
    file.write_text("def train(model, examples, **others):\n    return 1.0\n")
    folder.begin_or_go_on(experiment)
    told = "the code of 'a_loop_of_ones_own' has changed since the run began"
    assert [note.partition(":")[0] for note in folder.notes] == [told]
    assert told in caplog.text


def test_code_that_a_strategy_imports_from_its_folder_is_noted_too(digits_tables, tmp_path, monkeypatch):
    package = tmp_path / "a_package_of_ones_own"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "inner" / "__init__.py").touch()
    (package / "method.py").write_text(
        "import torch, fedgraph\nfrom . import helper\n\n\ndef train(model, examples, **others):\n"
        "    from a_module_beside_it import rate\n"
    )
    (package / "helper.py").write_text("from .inner import deep\n")
    (package / "inner" / "deep.py").write_text("import helper_that_is_nowhere\n")
    (package / "unused.py").touch()
    (tmp_path / "a_module_beside_it.py").write_text("rate = 0.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    digits_tables["train"]["function"] = "a_package_of_ones_own.method:train"
    experiment = parse_experiment(digits_tables)
    before = code_of(experiment)
    assert list(before) == [
        "a_module_beside_it",
        "a_package_of_ones_own",
        "a_package_of_ones_own.helper",
        "a_package_of_ones_own.inner",
        "a_package_of_ones_own.inner.deep",
        "a_package_of_ones_own.method",
    ]
    (package / "inner" / "deep.py").write_text("rate = 0.2\n")
    assert [name for name, digest in code_of(experiment).items() if digest != before[name]] == [
        "a_package_of_ones_own.inner.deep"
    ]
    (package / "helper.py").write_text("not Python\n")
    assert "a_package_of_ones_own.method" in code_of(experiment)


def test_installed_packages_are_noted_by_the_named_module_alone(digits_tables, tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "an_installed_loop.py").write_text("import an_installed_helper\n")
    (folder / "an_installed_helper.py").touch()
    monkeypatch.syspath_prepend(folder)
    digits_tables["train"]["function"] = "an_installed_loop:train"
    assert list(code_of(parse_experiment(digits_tables))) == ["an_installed_loop"]


def test_what_is_not_an_experiment_any_more_says_which_file(begun):
    begun.begun_with.write_text("[experiment]\nmethod = 'gone'\n")
    with pytest.raises(ExperimentError, match=r"begun-with.toml, with which the run began, is invalid now"):
        check(begun)


# ---- whole runs


@pytest.fixture
def stopped(run_experiment):
    """A run of fedavg that was killed after two of four rounds."""

    def make(tables, **head):
        folder = run_experiment({**tables, "experiment": {"method": "fedavg", "rounds": 2, **head}})
        (folder.path / "summary.json").unlink()
        changed(folder, experiment__rounds=4)
        return RunFolder.open(folder.path)

    return make


@pytest.mark.parametrize("method", ["local", "fedprox"])
def test_a_changed_method_is_an_error_in_words(digits_tables, stopped, data_dir, method):
    folder = stopped(digits_tables)
    changed(folder, experiment__method=method)
    with pytest.raises(ExperimentError, match=rf"experiment.method was 'fedavg' and is '{method}'"):
        fedgraph.resume(folder.path, progress=False, data_dir=data_dir)
    # And so it is at the server, which reads the file itself.
    with pytest.raises(RunError, match=r"(?s)'fedavg' and is .* go on with --resume, from its last checkpoint"):
        run_one(folder, "local", 2, data_dir, Console(quiet=True))


def test_a_folder_of_an_older_version_with_another_method_is_an_error_in_words(digits_tables, stopped, run_experiment):
    folder = stopped(digits_tables)
    folder.begun_with.unlink()
    changed(folder, experiment__method="local")
    with pytest.raises(RunError, match="the checkpoint of this run does not match the method or model"):
        run_experiment(None, folder=folder)


def test_a_run_that_is_resumed_says_what_changed(digits_tables, stopped, run_experiment):
    folder = stopped(digits_tables)
    changed(folder, experiment__on_missing="skip")
    notes = summary_of(run_experiment(None, folder=folder))["notes"]
    assert "experiment.on-missing was 'fail' when the run began, and 'skip' since it was resumed" in notes


def test_fewer_rounds_than_were_trained_are_refused(digits_tables, stopped, run_experiment):
    folder = stopped(digits_tables)
    changed(folder, experiment__rounds=1)
    with pytest.raises(RunError, match=r"\[experiment\] rounds = 1, but this run has trained 2 already"):
        run_experiment(None, folder=folder)


def test_other_rows_in_the_file_are_refused(stopped, run_experiment, tmp_path):
    file = tmp_path / "rows.csv"

    def write(last):
        with file.open("w", newline="") as stream:
            rows = [[number % 3, number % 2, "ab"[number % 2]] for number in range(last)]
            csv.writer(stream).writerows([["x", "y", "site"], *rows])

    write(120)
    data = {"set": "table", "path": str(file), "label": "y", "client-column": "site", "task": "regression"}
    folder = stopped({"data": data, "model": {"name": "mlp", "hidden": [2]}})
    write(100)
    node.forget_cohorts()
    node._source.cache_clear()
    with pytest.raises(RunError, match=r"client 'a' has \d+ train examples, but had \d+ when this run was stopped"):
        run_experiment(None, folder=folder)
