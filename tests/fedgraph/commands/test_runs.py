"""`fedgraph runs` and `fedgraph compare`."""

import json
import os

import pytest
import tomli_w
from typer.testing import CliRunner

from fedgraph.commands.cli import app
from fedgraph.commands.runs import list_runs, look_at_run
from fedgraph.experiment import parse_experiment
from fedgraph.runs import RunFolder
from fedgraph.support.errors import IdentityError, RunError

pytestmark = pytest.mark.usefixtures("leave_no_trace")


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def folder(digits_tables, tmp_path):
    """A new run folder of 20 rounds, as `fedgraph run` makes it."""
    digits_tables["experiment"]["rounds"] = 20
    return RunFolder.create(parse_experiment(digits_tables), tmp_path / "runs")


@pytest.fixture
def ran(digits_tables, run_experiment):
    """`ran(method="fedavg", cold=0.1)`: the folder of a run of one round."""

    def run(method, **data):
        head = digits_tables["experiment"] | {"rounds": 1, "method": method}
        return run_experiment(digits_tables | {"experiment": head, "data": digits_tables["data"] | data})

    return run


def line(number, phase="training"):
    return {"round": number, "phase": phase, "split": "test", "metrics": {}}


def log(folder, *lines):
    (folder.path / "logs").mkdir(exist_ok=True)
    text = "".join(f"2026-11-23 17:37:16,478 {line}\n" for line in lines)
    (folder.path / "logs" / "run.log").write_text(text)


def test_a_finished_run_has_its_first_metric_on_test_data_and_its_time(ran):
    folder = ran("sfl")
    summary = folder.summary()
    found = look_at_run(folder.path)
    assert (found.name, found.path) == (folder.name, str(folder.path))
    assert (found.method, found.data, found.state, found.reason) == ("sfl", "digits", "finished", "")
    assert found.metric == f"test/{next(iter(summary['metrics']['test']))}" == "test/accuracy"
    assert found.value == summary["metrics"]["test"]["accuracy"]["mean"]
    assert found.seconds == summary["seconds"]
    table = call("runs", folder.path.parent).output
    (row,) = [row for row in table.splitlines() if folder.name in row]
    assert row.split()[1:] == ["sfl", "digits", "finished", "accuracy", f"{found.value:.3f}", f"{found.seconds:.1f}"]


def test_without_test_data_the_last_split_is_shown_with_its_name(folder):
    folder.write_summary(
        {"seconds": 1.0, "metrics": {"train": {"loss": {"mean": 3}}, "validation": {"f1": {"mean": 2}}}}
    )
    found = look_at_run(folder.path)
    assert (found.metric, found.value) == ("validation/f1", 2)
    assert "validation/f1 2.000" in call("runs", folder.path).output
    folder.write_summary({"seconds": 1.0, "metrics": {}})
    assert (look_at_run(folder.path).metric, look_at_run(folder.path).value) == (None, None)


def test_a_run_that_was_stopped_says_where(folder):
    assert look_at_run(folder.path).state == "stopped before its first round"
    folder.append(line(1))
    folder.append(line(3))
    assert look_at_run(folder.path).state == "stopped after round 3 of 20"
    with folder.metrics.open("a") as stream:
        stream.write('{"round": 4, "pha')
    assert look_at_run(folder.path).state == "stopped after round 3 of 20"
    with folder.metrics.open("a") as stream:
        stream.write("\n")
    folder.append(line(57, "fusion"))
    assert look_at_run(folder.path).state == "stopped in fusion, epoch 57"


def test_a_run_that_a_process_holds_is_running(folder):
    folder.append(line(2))
    with folder.locked():
        assert look_at_run(folder.path).state == "running, after round 2 of 20"
    assert look_at_run(folder.path).state == "stopped after round 2 of 20"


def test_a_run_that_failed_says_why_until_it_is_tried_again(folder):
    folder.append(line(2))
    failed = "ERROR the run stopped: nothing usable from 3 clients"
    log(folder, f"INFO run folder {folder.path}", failed)
    found = look_at_run(folder.path)
    assert (found.state, found.reason) == ("failed after round 2 of 20", "nothing usable from 3 clients")
    assert f"{folder.name} failed: nothing usable from 3 clients" in call("runs", folder.path).output
    log(folder, f"INFO run folder {folder.path}", failed, f"INFO run folder {folder.path}")
    assert look_at_run(folder.path).state == "stopped after round 2 of 20"


def test_a_run_that_really_failed(digits_tables, run_experiment, tmp_path):
    digits_tables["experiment"] |= {"min-clients": 7, "wait": 0}
    with pytest.raises(IdentityError):
        run_experiment(digits_tables)
    ((found,), _) = list_runs(tmp_path / "runs")
    assert found.state == "failed"
    assert "only 6 of at least 7 clients are hosted" in found.reason


def test_newest_first_and_what_is_no_run_is_told(digits_tables, tmp_path):
    made = []
    for name, age in (("old", 300), ("new", 100), ("middle", 200)):
        digits_tables["experiment"]["name"] = name
        made.append(RunFolder.create(parse_experiment(digits_tables), tmp_path / "runs"))
        began = (made[-1].path / "experiment.toml").stat().st_mtime - age
        os.utime(made[-1].path / "experiment.toml", (began, began))
    broken, damaged, foreign = (tmp_path / "runs" / name for name in ("broken", "damaged", "foreign"))
    for path in (broken, damaged, foreign, tmp_path / "runs" / ".locks"):
        path.mkdir()
    (tmp_path / "runs" / "notes.txt").write_text("a file")
    (broken / "experiment.toml").write_text("not = [toml")
    (damaged / "experiment.toml").write_bytes((made[0].path / "experiment.toml").read_bytes())
    (damaged / "summary.json").write_text('{"metrics": {')
    found, problems = list_runs(tmp_path / "runs")
    assert [run.name.partition("-")[0] for run in found] == ["new", "middle", "old"]
    told = dict(zip(("broken", "damaged", "foreign"), problems, strict=True))
    assert "invalid experiment.toml" in told["broken"]
    assert "invalid summary.json" in told["damaged"]
    assert told["foreign"] == f"{foreign} is not a run folder: it has no experiment.toml"
    result = call("runs")
    assert result.exit_code == 0
    assert [f"Left out: {problem}" for problem in problems] == result.stderr.splitlines()


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"experiment": {"method": "sfl"}}, "it has no 'data'"),
        ({"experiment": 3, "data": {"set": "digits"}}, "invalid experiment.toml"),
        ({"experiment": {}, "data": {"set": "digits"}}, "it has no 'strategy'"),
    ],
)
def test_other_files_called_experiment(tables, message, tmp_path):
    (tmp_path / "experiment.toml").write_text(tomli_w.dumps(tables))
    with pytest.raises(RunError, match=message):
        look_at_run(tmp_path)


def test_a_strategy_by_dotted_path_is_listed_by_its_class(digits_tables, tmp_path):
    digits_tables["experiment"] = {"strategy": "package.module:Mine"}
    (tmp_path / "experiment.toml").write_text(tomli_w.dumps(digits_tables))
    assert look_at_run(tmp_path).method == "Mine"


def test_json_on_standard_output(folder, tmp_path):
    (tmp_path / "runs" / "foreign").mkdir()
    result = call("runs", "--json")
    (told,) = json.loads(result.stdout)
    assert (told["name"], told["state"], told["value"]) == (folder.name, "stopped before its first round", None)
    assert "foreign is not a run folder" in result.stderr


def test_no_folder_and_no_runs(tmp_path):
    result = call("runs")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: no folder runs")
    (tmp_path / "empty").mkdir()
    assert call("runs", "empty").output == "No runs in empty.\n"
    assert call("runs", "empty", "--json").output == "[]\n"


def test_compare_shows_what_run_shows(ran, digits_tables, tmp_path):
    folders = [ran("fedavg"), ran("local")]
    result = call("compare", *(folder.path for folder in folders))
    assert result.exit_code == 0, result.output
    (tmp_path / "small.toml").write_text(tomli_w.dumps(digits_tables))
    other = call("run", "small.toml", "--set", "experiment.rounds=1", "--set", "experiment.method=fedavg",
                 "--compare", "local", "--quiet")  # fmt: skip
    rows = [
        [row for row in each.output.splitlines() if "│" in row and "seconds" not in row] for each in (result, other)
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) > 5
    assert "6 clients, each measured on its own test data" in " ".join(result.output.split())
    for folder in folders:
        assert f"{folder.summary()['method']}: {folder.path}" in result.output


def test_compare_tells_runs_of_one_method_apart(ran):
    folders = [ran("fedavg"), ran("local"), ran("fedavg")]
    result = call("compare", *(folder.path for folder in folders))
    (heads,) = [row for row in result.output.splitlines() if "mean ± std" in row]
    assert [head.strip() for head in heads.strip("┃").split("┃")][1:] == ["fedavg #1", "local", "fedavg #3"]
    assert f"fedavg #3: {folders[2].path}" in result.output


def test_compare_refuses_what_cannot_be_compared(ran, folder, tmp_path):
    finished, other = ran("local"), ran("local", shards=1)
    for arguments, message in (
        ((finished.path, folder.path), f"{folder.path} is not finished: leave it out"),
        ((finished.path, other.path), "cannot be compared"),
        ((finished.path, other.path), f"shards is 1 in {other.path.name} and 2 in {finished.path.name}"),
        ((finished.path, tmp_path), "is not a run folder"),
    ):
        result = call("compare", *arguments)
        assert result.exit_code == 1
        assert message in result.stderr
    (finished.path / "summary.json").write_text("{")
    assert "summary.json is damaged" in call("compare", finished.path).stderr


def test_report_of_one_run_and_of_several(ran, tmp_path):
    one, other = ran("local"), ran("fedavg")
    result = call("report", one.path)
    assert result.exit_code == 0, result.output
    assert (one.path / "report.html").is_file()
    assert f"Report: {one.path / 'report.html'}" in result.output
    call("report", one.path, other.path, "--out", tmp_path / "both.html")
    assert "fedavg" in (tmp_path / "both.html").read_text()
    call("report", one.path, other.path)
    assert (one.path / "comparison.html").is_file()
    result = call("report", tmp_path)
    assert (result.exit_code, "is not a run folder" in result.stderr) == (1, True)
