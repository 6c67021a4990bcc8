import errno
import io
import os
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import fedgraph
from fedgraph.data import open_source, parse_data
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.runs.callbacks import Callback
from fedgraph.runs.folder import RunFolder
from fedgraph.starting import running
from fedgraph.starting.running import run_one
from fedgraph.support.errors import ExperimentError, IdentityError, RunError
from fedgraph.support.plugins import add_plugin_paths


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


class Failing(Callback):
    """Fails in a round, before its checkpoint is written."""

    def __init__(self, at):
        self.at = at

    def on_training(self, training):
        if training.round == self.at:
            raise RunError("it failed")


def test_what_goes_wrong_names_the_folder_to_go_on_with(digits_tables, tmp_path):
    console = Console(quiet=True)
    folder = RunFolder.create(parse_experiment(digits_tables), tmp_path / "runs")
    told = f"Run folder: {folder.path}"
    with pytest.raises(RunError) as error:
        run_one(folder, "local", 2, None, console, model_dir=None, listeners=[Failing(at=1)])
    assert f"{told}; once its experiment.toml is mended, go on with --resume" in str(error.value)
    with pytest.raises(RunError) as error:
        run_one(folder, "local", 2, None, console, listeners=[Failing(at=2)])
    assert f"{told}; go on with --resume, from its last checkpoint: [experiment] rounds, " in str(error.value)
    run_one(folder, "local", 2, None, console)
    with pytest.raises(RunError, match="is finished") as error:
        run_one(folder, "local", 2, None, console)
    assert str(error.value).endswith(told)


@pytest.mark.parametrize("file", ["checkpoint", "metrics"])
def test_a_full_disk_is_an_error_that_says_so_and_the_run_goes_on_after_it(digits_tables, tmp_path, monkeypatch, file):
    opened = Path.open

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def full_for_metrics(path, *arguments, **options):
        return full() if path.name == "metrics.jsonl" else opened(path, *arguments, **options)

    folder = RunFolder.create(parse_experiment(digits_tables), tmp_path / "runs")
    if file == "checkpoint":
        monkeypatch.setattr("fedgraph.support.files.os.replace", full)
    else:
        monkeypatch.setattr(Path, "open", full_for_metrics)
    words = r"cannot write .*: No space left on device; make room .*\nRun folder: .*; then go on with --resume$"
    with pytest.raises(RunError, match=words):
        run_one(folder, "local", 2, None, Console(quiet=True))
    monkeypatch.undo()
    assert run_one(folder, "local", 2, None, Console(quiet=True))["rounds"] == 2
    assert not list(folder.path.rglob(".*.part"))


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
        "FEDGRAPH_STATUS_FILE": str(folder.path / "logs" / "nodes.jsonl"),
    }
    assert places == expected | ({"FEDGRAPH_MODELS": str(models)} if asked else {})
    assert (run_config["data-dir"], nodes) == (expected["FEDGRAPH_DATA"], 2)


def test_folders_of_plug_ins_come_last_and_once(monkeypatch):
    monkeypatch.setattr(sys, "path", ["ours", "mine"])
    add_plugin_paths(["theirs", "mine", "theirs"])
    assert sys.path == ["ours", "mine", "theirs"]


@pytest.fixture
def tables(digits_tables, tmp_path, leave_no_trace):
    digits_tables["experiment"]["rounds"] = 2
    digits_tables["output"] = {"dir": str(tmp_path / "runs")}
    return digits_tables


def test_run_from_python(tables, tmp_path):
    run = fedgraph.run(tables, set={"train.learning-rate": 0.05, "experiment.seed": 3}, progress=False)
    assert run.experiment.train.learning_rate == 0.05
    assert run.experiment.experiment.seed == 3
    assert run.path.parent == tmp_path / "runs"
    assert run.summary["rounds"] == 2
    assert (run.path / "report.html").is_file()
    # As on the command line, and into another folder.
    again = fedgraph.run(
        tables, set=["train.learning-rate=0.05", "experiment.seed=3"], out=tmp_path / "x", progress=False
    )
    assert again.path.parent == tmp_path / "x"
    assert again.summary["weights_sha256"] == run.summary["weights_sha256"]


def test_run_without_a_report(tables):
    tables["output"]["report"] = False
    assert not (fedgraph.run(tables, progress=False).path / "report.html").exists()


def test_several_methods_from_python(tables):
    changed = iter(["experiment.seed=3", "graph.source=complete"])
    compared = fedgraph.run_methods(tables, [None, "fedavg", "local"], set=changed, progress=False)
    assert [run.experiment.experiment.seed for run in compared] == [3, 3, 3]
    assert compared.labels == ["sfl", "fedavg", "local"]
    assert (compared[0].path / "comparison.html").is_file()
    assert len({run.summary["weights_sha256"] for run in compared}) == 3


def test_nothing_is_run_when_one_of_the_methods_is_unknown(tables, tmp_path):
    with pytest.raises(ExperimentError, match="nonsense"):
        fedgraph.run_methods(tables, ["sfl", "nonsense"], progress=False)
    assert not (tmp_path / "runs").exists()


def test_classes_of_a_notebook_run(tables):
    from fedgraph.algorithms.sfl import SFL
    from fedgraph.clients.sfl import SFLClient

    class MyClient(SFLClient):
        asked = 0

        @classmethod
        def handle(cls, message, node):
            MyClient.asked += 1
            return super().handle(message, node)

    class Mine(SFL):
        default_client = MyClient

    def of(table, **which):
        run = fedgraph.run(tables, set={f"{table}.alpha": 0.5}, progress=False, **which)
        return run.method, run.summary["weights_sha256"]

    method, own = of("Mine", strategy=Mine)
    assert method == "Mine"
    asked = MyClient.asked
    assert asked > 0
    assert of("sfl", method="sfl") == ("sfl", own)
    assert MyClient.asked == asked
    assert of("sfl", method="sfl", client=MyClient) == ("sfl", own)
    assert MyClient.asked > asked
    with pytest.raises(ExperimentError, match="this process alone"):
        fedgraph.run(tables, strategy=Mine, grid="flower", progress=False)
    with pytest.raises(ExperimentError, match="a method or a strategy, not both"):
        fedgraph.run(tables, strategy=Mine, method="sfl")


def test_a_run_of_a_class_of_this_process_says_how_it_goes_on(tables, monkeypatch):
    from fedgraph.algorithms.sfl import SFL

    class Mine(SFL):
        faulty = True

        def round(self, clients, state, number):
            if self.faulty and number == 2:
                raise RunError("a mistake of the user's")
            return super().round(clients, state, number)

    with pytest.raises(RunError, match="a mistake of the user's") as error:
        fedgraph.run(tables, strategy=Mine, progress=False)
    assert "--resume" not in str(error.value)
    said = re.search(r'Run folder: (.*?); go on with fedgraph.resume\("(.*?)"\), where', str(error.value))
    assert said[1] == said[2]
    monkeypatch.setattr(Mine, "faulty", False)
    assert fedgraph.resume(said[2], progress=False).method == "Mine"


def test_a_mistake_in_code_of_ones_own_keeps_its_traceback_and_says_where_the_run_is(tables):
    from fedgraph.algorithms.sfl import SFL

    class Mine(SFL):
        def round(self, clients, state, number):
            answers = yield self.ask(clients, state)
            return {"models": answers.modles}

    with pytest.raises(AttributeError, match="modles") as error:
        fedgraph.run(tables, strategy=Mine, progress=False)
    (note,) = error.value.__notes__
    assert re.search(
        r"Run folder: (.*?); once its experiment.toml, or .*Mine, is mended, go on with fedgraph.resume", note
    )


def test_all_code_of_ones_own_is_named_where_a_run_has_failed(tables, tmp_path):
    from fedgraph.starting import running

    folder = running.RunFolder.create(running.load_experiment(tables), tmp_path, [])
    for code, told in ((["a:Set", "b:Net"], "its experiment.toml, or a:Set, or b:Net, is mended"), ([], "toml is")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(running, "_named_code", lambda folder, code=code: (code, ""))
            assert told in running._how_to_go_on(folder)


def test_an_error_of_code_that_is_named_does_not_blame_the_experiment_alone(digits_tables, tmp_path, monkeypatch):
    (tmp_path / "a_faulty_method.py").write_text(
        "from fedgraph.algorithms.sfl import SFL\n\n\nclass Mine(SFL):\n"
        "    def round(self, *given):\n        return iter(())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    del digits_tables["experiment"]["method"]
    digits_tables["experiment"]["strategy"] = "a_faulty_method:Mine"
    folder = RunFolder.create(parse_experiment(digits_tables), tmp_path / "runs")
    with pytest.raises(RunError, match=r"experiment\.toml, .*a_faulty_method:Mine.* --res"):
        run_one(folder, "local", 2, None, Console(quiet=True))


def test_going_on_from_python(tables, monkeypatch):
    whole = fedgraph.run(tables, progress=False)

    def stop(self, evaluation):
        if evaluation.round == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(running.LiveDisplay, "on_evaluation", stop)
        with pytest.raises(KeyboardInterrupt):
            fedgraph.run(tables, progress=False)
    (stopped,) = [path for path in whole.path.parent.iterdir() if not (path / "summary.json").exists()]
    run = fedgraph.resume(RunFolder.open(stopped), progress=False)
    assert run.summary["weights_sha256"] == whole.summary["weights_sha256"]
    with pytest.raises(RunError, match="is finished"):
        fedgraph.resume(stopped)


@pytest.fixture
def stopped(digits_tables, run_experiment):
    """A run of 3 rounds that was to have 4."""
    folder = run_experiment(digits_tables | {"experiment": digits_tables["experiment"] | {"rounds": 3}})
    file = folder.path / "experiment.toml"
    file.write_text(re.sub(r"(?m)^rounds = 3$", "rounds = 4", file.read_text()))
    (folder.path / "summary.json").unlink()
    return folder


@pytest.mark.parametrize("content", [None, "", "{"])
def test_a_damaged_file_of_a_run_is_named(stopped, content):
    file = stopped.path / "environment.json"
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(
        RunError, match=r"cannot read .*environment\.json \(.*: put a copy of it back, or start a new run"
    ):
        fedgraph.resume(stopped.path)


def test_a_damaged_line_of_metrics_is_named(stopped):
    lines = stopped.metrics.read_text().splitlines()
    stopped.metrics.write_text("\n".join([lines[0], lines[1][:-9], *lines[2:]]))
    (stopped.path / "summary.json").write_text("{}")
    with pytest.raises(RunError, match=r"metrics\.jsonl, line 2, is damaged \(.*\): remove this line"):
        _ = fedgraph.load_run(stopped.path).metrics


@pytest.mark.parametrize("cut", [0, 0.4, None])
def test_a_run_goes_on_without_measurements_that_are_lost_and_says_so(stopped, cut, caplog):
    whole = list(stopped.lines())
    if cut is None:
        stopped.metrics.unlink()
    else:
        os.truncate(stopped.metrics, int(cut * stopped.metrics.stat().st_size))
    run = fedgraph.resume(stopped.path, progress=False)
    assert "lacks measurements of rounds before the run was resumed" in " ".join(run.summary["notes"])
    found = list(run.folder.lines())
    assert found[0] == (whole[0] if cut else found[0])
    assert {line["round"] for line in found if line["phase"] == "training"} >= {4}


def test_a_damaged_checkpoint_is_named_with_what_to_do(stopped):
    os.truncate(stopped.checkpoint, 100)
    with pytest.raises(RunError, match="remove this file, and the run begins anew") as error:
        fedgraph.resume(stopped.path, progress=False)
    assert "from its last checkpoint" not in str(error.value)
    stopped.checkpoint.unlink()
    assert fedgraph.resume(stopped.path, progress=False).summary["rounds"] == 4


@pytest.mark.parametrize("start", [fedgraph.run, fedgraph.resume])
def test_the_grid_has_a_known_name(tables, start):
    with pytest.raises(ExperimentError, match="'flower', .*'cloud'"):
        start(tables, grid="cloud")


def test_a_test_set_that_all_share_is_said_to_be_shared(tmp_path):
    tables = {
        "experiment": {"method": "ipa", "rounds": 1},
        "data": {"set": "wine", "clients": 3, "partition": "classes", "test": "shared"},
        "model": {"name": "mlp"},
        "evaluation": {"compare-peers": True},
    }
    finished = running.run(tables, out=tmp_path, progress=False)
    assert finished.folder.name.startswith("experiment-ipa-")
    assert finished.summary["measured"].startswith("3 clients, all measured on the same test data with the model each")
    assert finished.summary["data"].endswith("disjoint classes in equal parts, tested on the same 36 rows")
    assert "peers" in finished.summary


def test_models_that_owners_have_already_are_used_by_every_way_to_say_so(tmp_path):
    io = pytest.importorskip("skops.io")
    tables = {
        "experiment": {"method": "f3"},
        "data": {"set": "table-columns", "bundled": "breast-cancer", "num-owners": 3},
        "model": {"name": "mlp", "hidden": [4]},
        "train": {"local-epochs": 3},
        "f3": {"epochs": 2},
    }
    data = open_source(parse_data(tables["data"]), tmp_path).load_owners(("owner-0",))
    training = data.present[0] & (data.split == 0)
    fitted = make_pipeline(PCA(4), LogisticRegression()).fit(data.inputs[0][training], data.labels[training])
    io.dump(fitted, tmp_path / "own.skops")

    def run(**given):
        return running.run(tables, out=tmp_path, progress=False, **given)

    # All on one node: with another packing, models that are trained agree up to rounding only.
    plain, brought = run(nodes=1), run(models={"owner-0": tmp_path / "own.skops"}, nodes=1)
    told = run(node_config={"models": f"owner-0={tmp_path / 'own.skops'}"}, nodes=1)
    assert brought.summary["weights_sha256"] == told.summary["weights_sha256"] != plain.summary["weights_sha256"]
    local = [each.clients["test/auc-local"] for each in (plain, brought)]
    assert (local[0] != local[1]).tolist() == [True, False, False]
    (brought.path / "summary.json").unlink()
    again = running.resume(brought.path, nodes=1, progress=False)
    assert again.summary["weights_sha256"] == told.summary["weights_sha256"]
    # What is wrong is not in its experiment.toml.
    advice = "or what is wrong with a file of --model, is mended, go on with --resume; to change what --model says, run"
    with pytest.raises(
        RunError, match=f"local model {tmp_path}/gone.skops cannot be read(.|\n)*{advice} again$"
    ) as error:
        run(models={"owner-0": tmp_path / "gone.skops"})
    stopped = RunFolder.open(re.search("Run folder: (.*?);", str(error.value))[1])
    (tmp_path / "own.skops").rename(tmp_path / "gone.skops")
    again = running.resume(stopped.path, progress=False)
    (tmp_path / "gone.skops").rename(tmp_path / "own.skops")
    # On two nodes, as the run that stopped: one of them had trained the models of its owners.
    assert again.summary["weights_sha256"] == run(models={"owner-0": tmp_path / "own.skops"}).summary["weights_sha256"]
    with pytest.raises(IdentityError, match="'owner-7=.*'models'"):
        run(models={"owner-7": tmp_path / "own.skops"})


def test_a_file_that_has_changed_since_the_last_run_is_read_again(tmp_path):
    random = np.random.default_rng(0)
    inputs = random.normal(size=(60, 2))
    given = {
        "experiment": {"method": "sfl", "rounds": 1},
        "data": {
            "set": "table", "path": str(tmp_path / "t.csv"), "label": "y", "task": "regression", "client-column": "c",
        },
        "model": {"name": "mlp", "hidden": [4]},
        "graph": {"source": "complete"},
    }  # fmt: skip
    runs = []
    for factor in (1, 1000):
        rows = pd.DataFrame(inputs, columns=["a", "b"]).assign(y=factor * inputs[:, 0], c=np.resize(["p", "q"], 60))
        rows.to_csv(tmp_path / "t.csv", index=False)
        run = fedgraph.run(given, out=tmp_path / "runs", progress=False)
        runs.append(run)
    errors = [run.summary["metrics"]["test"]["mae"]["mean"] for run in runs]
    assert errors[1] > 100 * errors[0]
    with pytest.raises(ExperimentError, match=r"the file of data\.path has changed between"):
        fedgraph.compare(runs)
