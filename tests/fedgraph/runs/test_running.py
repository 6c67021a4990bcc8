import io
import sys

import pytest
from rich.console import Console

from fedgraph.experiment.experiment import parse_experiment
from fedgraph.runs import running
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.running import add_plugin_paths, run_one
from fedgraph.support.errors import RunError


@pytest.fixture
def folder(digits_tables, tmp_path):
    digits_tables["experiment"]["rounds"] = 1
    return RunFolder.create(parse_experiment(digits_tables), tmp_path / "runs")


def test_a_run_folder_is_brought_to_its_end_with_its_label_shown(folder):
    console = Console(file=io.StringIO(), width=120)
    summary = run_one(folder, "local", 2, None, console, label="the first of two")
    assert summary == folder.summary()
    assert (summary["rounds"], summary["clients"]) == (1, 6)
    assert "the first of two" in console.file.getvalue()


@pytest.mark.parametrize(
    ("method", "shown", "not_shown"),
    [("f3", "fusion epoch 2", "/"), ("vfl", "2/2", "0/10")],
)
def test_methods_without_rounds_count_none(patches_tables, tmp_path, monkeypatch, method, shown, not_shown):
    own = patches_tables.pop("f3")
    tables = {**patches_tables, "experiment": {"method": method}, method: {**own, "batch-size": 2000}}
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    seen = []
    monkeypatch.setattr(running.LiveDisplay, "on_evaluation", lambda self, evaluation: seen.append(evaluation))
    run_one(RunFolder.create(parse_experiment(tables), tmp_path / "runs"), "local", 2, None, console)
    text = console.file.getvalue()
    assert len(seen) == 1
    assert shown in text
    assert not_shown not in text


def test_without_a_label_the_method_is_shown(folder):
    console = Console(file=io.StringIO(), width=120)
    run_one(folder, "local", 3, None, console)
    assert "sfl " in console.file.getvalue()
    assert "6 clients on 3 nodes" in (folder.path / "logs" / "run.log").read_text()


def test_what_goes_wrong_names_the_folder_to_go_on_with(folder):
    console = Console(quiet=True)
    run_one(folder, "local", 2, None, console)
    with pytest.raises(RunError, match="is finished") as error:
        run_one(folder, "local", 2, None, console)
    assert f"Run folder: {folder.path}; once its experiment.toml is mended, go on with --resume" in str(error.value)


@pytest.mark.parametrize("asked", [True, False])
def test_nodes_on_flower_are_told_where_data_and_models_lie(folder, tmp_path, monkeypatch, asked):
    monkeypatch.setenv("FEDGRAPH_DATA", "/another")
    told = []

    def stand_in(run_config, nodes, log, places, on_wait):
        told.append((run_config, nodes, places))
        log.write_text("ended\n")

    monkeypatch.setattr(running, "run_on_flower", stand_in)
    data, models = (tmp_path / "data", tmp_path / "models") if asked else (None, None)
    with pytest.raises(RunError, match="did not finish"):
        run_one(folder, "flower", 2, data, Console(quiet=True), model_dir=models)
    ((run_config, nodes, places),) = told
    expected = {
        "FEDGRAPH_STATE": str(folder.path / "nodes"),
        "FEDGRAPH_DATA": str(data) if asked else "/another",
        "FEDGRAPH_FULL_ERRORS": "1",
    }
    assert places == expected | ({"FEDGRAPH_MODELS": str(models)} if asked else {})
    assert (run_config["data-dir"], nodes) == (expected["FEDGRAPH_DATA"], 2)


def test_folders_of_plug_ins_come_last_and_once(monkeypatch):
    monkeypatch.setattr(sys, "path", ["ours", "mine"])
    add_plugin_paths(["theirs", "mine", "theirs"])
    assert sys.path == ["ours", "mine", "theirs"]
