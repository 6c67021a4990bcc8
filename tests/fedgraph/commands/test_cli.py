import json
import os
import platform
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version

import pytest
import tomli_w
from typer.core import TyperArgument
from typer.main import get_command
from typer.testing import CliRunner

import fedgraph
from fedgraph.commands import cli
from fedgraph.experiment import built_ins
from fedgraph.runs.folder import RunFolder
from fedgraph.starting import running
from fedgraph.support.errors import ExperimentError, RunError

pytestmark = pytest.mark.usefixtures("leave_no_trace")


@pytest.fixture
def file(digits_tables, tmp_path):
    digits_tables["experiment"]["rounds"] = 1
    path = tmp_path / "small.toml"
    path.write_text(tomli_w.dumps(digits_tables))
    return path


def call(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def refused(*arguments):
    """The message of a command that must end with exit code 1, one message and no traceback."""
    result = call(*arguments)
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    assert result.stderr.startswith("Error: ")
    return result.stderr


def test_run_with_overrides(file, tmp_path):
    result = call(
        "run", file, "--out", tmp_path / "here", "--json", tmp_path / "r.json",
        "--set", "experiment.rounds=2", "--set", "experiment.name=other", "--set", "train.learning-rate=0.05",
        "--nodes", 3,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    (folder,) = (tmp_path / "here").iterdir()
    assert folder.name.startswith("other-")
    (summary,) = json.loads((tmp_path / "r.json").read_text())
    assert summary.pop("results"), "the table of the terminal"
    assert summary == json.loads((folder / "summary.json").read_text())
    assert (summary["rounds"], summary["clients"], summary["method"]) == (2, 6, "sfl")
    assert "learning-rate = 0.05" in (folder / "experiment.toml").read_text()
    assert "6 clients on 3 nodes" in (folder / "logs" / "run.log").read_text()
    assert f"Run folder: {folder}" in result.output
    assert f"{summary['metrics']['test']['accuracy']['mean']:.3f}" in result.output
    assert "6 clients, each measured on its own test data" in " ".join(result.output.split())


def test_more_nodes_than_clients(file, tmp_path):
    assert call("run", file, "--out", tmp_path / "out", "--nodes", 9).exit_code == 0


def test_compare_gives_one_table_and_a_folder_per_method(file, tmp_path):
    result = call(
        "run",
        file,
        "--out",
        tmp_path / "out",
        "--json",
        tmp_path / "r.json",
        "--compare",
        "fedavg",
        "--compare",
        "local",
        "--set",
        "graph.source=complete",
    )
    assert result.exit_code == 0, result.output
    summaries = json.loads((tmp_path / "r.json").read_text())
    assert [summary["method"] for summary in summaries] == ["sfl", "fedavg", "local"]
    assert len({summary["weights_sha256"] for summary in summaries}) == 3
    assert len(list((tmp_path / "out").iterdir())) == 3
    assert all(method in result.output for method in ("sfl", "fedavg", "local"))


def test_what_is_noted_of_several_runs_is_said_once(file, tmp_path):
    graph = tmp_path / "edges.csv"
    graph.write_text("from,to\nclient-0,client-1\nclient-2,client-3\nclient-4,client-5\n")
    result = call(
        "run", file, "--out", tmp_path / "out", "--set", "experiment.rounds=1", "--compare", "local",
        "--set", f'graph={{source = "file", path = "{graph}"}}',
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.output.count("each pair once and is read as directed") == 1
    pages = [path.read_text() for path in (tmp_path / "out").glob("*/report.html")]
    assert [text.count("<p>the list of the client graph has each pair once") for text in pages] == [1, 1]


def test_compare_with_an_experiment_that_names_a_strategy(file, tmp_path):
    result = call(
        "run", file, "--out", tmp_path / "out", "--json", tmp_path / "r.json",
        "--set", "experiment.strategy=fedgraph.algorithms.bounds:LocalOnly",
        "--set", "experiment.client=fedgraph.clients.engine.base:CohortClient", "--compare", "fedavg",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert [summary["method"] for summary in json.loads((tmp_path / "r.json").read_text())] == ["LocalOnly", "fedavg"]


def test_resume_of_a_run_that_lost_its_end(file, tmp_path):
    call("run", file, "--out", tmp_path / "out", "--json", tmp_path / "first.json")
    (folder,) = (tmp_path / "out").iterdir()
    (folder / "summary.json").unlink()
    result = call("run", "--resume", folder, "--json", tmp_path / "second.json")
    assert result.exit_code == 0, result.output
    first, second = (json.loads((tmp_path / name).read_text())[0] for name in ("first.json", "second.json"))
    for key in ("weights_sha256", "metrics", "per_client", "rounds"):
        assert first[key] == second[key]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "nowhere.toml"), "no experiment file 'nowhere.toml'"),
        (("run", "--grid", "cloud"), "the grid is 'local' or 'flower', not 'cloud'"),
        (("run", "--model", "owner-0"), "--model 'owner-0' must be key=value"),
        (("run", "--set", "rounds=3"), "override 'rounds=3' is not of the form table.key=value"),
        (("run", "--set", "experiment.round=3"), "[experiment] has no key 'round'; known keys: "),
        (("run", "--compare", "fedavgg"), "method 'fedavgg' is not a built-in"),
        (("run", "--resume", "."), "is not a run folder"),
        (("data", "--download", "digitz"), "unknown data set 'digitz'; known: "),
        (("data", "digitz"), "unknown data set 'digitz'; known: "),
        (("data", "digits", "--download", "mnist"), "not both"),
    ],
)
def test_what_cannot_be_done_is_one_message(arguments, message):
    assert message in refused(*arguments)


def test_what_goes_wrong_in_the_middle_is_one_message_too(file, tmp_path):
    too_many = ("--set", "experiment.min-clients=7", "--set", "experiment.wait=0")
    message = refused("run", file, "--out", tmp_path / "out", *too_many)
    assert "only 6 of at least 7 clients are hosted" in message
    message = refused("run", file, "--out", tmp_path / "out", "--set", "data.set=metr-la", "--data-dir", tmp_path / "d")
    assert "data" in message


def test_bad_number_of_nodes_is_refused_before_anything_is_made(file, tmp_path):
    assert call("run", file, "--out", tmp_path / "out", "--nodes", 0).exit_code == 2
    assert not (tmp_path / "out").exists()


def test_a_bad_method_to_compare_with_is_refused_before_anything_is_made(file, tmp_path):
    refused("run", file, "--out", tmp_path / "out", "--compare", "fedavgg")
    assert not (tmp_path / "out").exists()


def test_out_folder_whose_name_is_a_number(file, tmp_path):
    assert call("run", file, "--out", "2024").exit_code == 0
    assert len(list((tmp_path / "2024").iterdir())) == 1


def test_json_into_a_folder_that_is_not_there(file, tmp_path):
    result = call("run", file, "--out", tmp_path / "out", "--json", tmp_path / "no" / "r.json")
    assert result.exit_code == 0 or isinstance(result.exception, SystemExit)


def test_resume_refuses_what_it_would_ignore(file, tmp_path):
    call("run", file, "--out", tmp_path / "out")
    (folder,) = (tmp_path / "out").iterdir()
    (folder / "summary.json").unlink()
    assert "--set" in refused("run", "--resume", folder, "--set", "experiment.rounds=7")


def test_a_run_that_stopped_names_its_folder(file, tmp_path):
    wild = ("--set", "train.learning-rate=1e30", "--set", "experiment.rounds=3")
    message = refused("run", file, "--out", tmp_path / "out", *wild)
    (folder,) = (tmp_path / "out").iterdir()
    assert f"Run folder: {folder}; once its experiment.toml is mended, go on with --resume" in message


def test_a_run_that_never_began_leaves_no_folder(file, tmp_path):
    too_many = ("--set", "experiment.min-clients=7", "--set", "experiment.wait=0")
    message = refused("run", file, "--out", tmp_path / "out", "--compare", "fedavg", *too_many)
    assert "Run folder" not in message
    assert list((tmp_path / "out").iterdir()) == []


def test_a_comparison_keeps_the_runs_that_were_finished(file, tmp_path, monkeypatch):
    run_one = running.run_one

    def fails(folder, *given, **named):
        if "fedavg" in folder.name:
            try:
                raise ExperimentError("no such thing")
            except ExperimentError as error:
                raise RunError(f"{error}\nRun folder: {folder.path}") from error
        return run_one(folder, *given, **named)

    monkeypatch.setattr(running, "run_one", fails)
    others = ("--compare", "fedavg", "--compare", "local")
    said = refused("run", file, "--out", tmp_path / "out", *others)
    (folder,) = (tmp_path / "out").iterdir()
    assert said == f"Error: no such thing\nFinished: {folder}\n"
    assert folder.name.startswith("small-sfl-20")
    assert (folder / "report.html").exists()


def test_ctrl_c_tells_what_is_finished_and_how_to_go_on(file, tmp_path, monkeypatch):
    run_one, begun = running.run_one, []

    def stopped_at_the_second(folder, *rest, **named):
        begun.append(folder)
        if len(begun) == 2:
            (folder.path / "metrics.jsonl").write_text("{}\n")
            raise KeyboardInterrupt
        return run_one(folder, *rest, **named)

    monkeypatch.setattr(running, "run_one", stopped_at_the_second)
    result = call("run", file, "--compare", "local", "--compare", "fedavg", "--out", str(tmp_path / "runs"))
    assert result.exit_code == 130
    said = result.output.splitlines()
    assert said[-3:] == ["Stopped.", f"Finished: {begun[0].path}", f"Go on with: fedgraph run --resume {begun[1].path}"]
    assert {folder.path.name for folder in begun} == {path.name for path in (tmp_path / "runs").iterdir()}
    monkeypatch.setattr(running, "run_one", interrupted)
    result = call("run", file, "--out", str(tmp_path / "others"))
    assert result.exit_code == 130
    assert result.output.endswith("Stopped.\nNothing was computed yet, and no files are left.\n")
    assert not list((tmp_path / "others").iterdir())


def interrupted(*rest, **named):
    raise KeyboardInterrupt


def test_a_strategy_beside_the_experiment_file_is_found(file, digits_tables, tmp_path):
    name = f"beside_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text(
        "from fedgraph.algorithms.bounds import LocalOnly\n\n\nclass Mine(LocalOnly):\n    pass\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    os.chdir(elsewhere)
    result = call(
        "run", file, "--out", tmp_path / "out", "--json", "r.json", "--set", f"experiment.strategy={name}:Mine",
        "--set", "experiment.rounds=0",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert json.loads((elsewhere / "r.json").read_text())[0]["method"] == "Mine"


def test_plot_is_written(file, tmp_path):
    result = call("run", file, "--out", tmp_path / "out", "--plot", tmp_path / "p.png")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "p.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("resume", "unknown command 'resume': use `fedgraph run --resume RUN`"),
        ("predct", "unknown command 'predct'; did you mean 'predict'?\n"),
        ("rnu", "unknown command 'rnu'; did you mean 'run'?\n"),
        ("blah", "unknown command 'blah'\n"),
    ],
)
def test_a_command_that_is_not_there_says_what_is(given, told):
    result = call(given, "--anything")
    assert result.exit_code == 2
    assert told in result.output


def test_short_help():
    assert call("-h").output == call("--help").output
    for name in get_command(cli.app).commands:
        assert call(name, "-h").output == call(name, "--help").output


def test_the_list_of_methods_fits_a_screen(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    whole = call("methods").output.splitlines()
    assert any(len(line) > 80 for line in whole), "in a pipe nothing is cut"
    monkeypatch.setenv("FORCE_COLOR", "1")
    lines = call("methods").output.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert sum(line.endswith("…") for line in lines) == sum(len(line) > 80 for line in whole)
    assert {line.split(" ")[0] for line in lines} >= {*built_ins()}
    assert any("package.module:Class" in line for line in lines)


def test_a_method_in_full_with_an_address_that_is_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    shown = call("methods", "sfl-per").output
    assert "needs  a client graph ([graph])" in shown
    assert "paper  https://arxiv.org/abs/2203.00829\n" in shown
    assert "fedgraph keys sfl-per" in shown
    assert "paper" not in call("methods", "local").output
    assert "'fedavgg' is not a built-in method; known: fedavg," in refused("methods", "fedavgg")


def test_keys_of_a_method_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "a_method_with_keys.py").write_text(
        "from fedgraph.algorithms import Algorithm\nfrom fedgraph.support.settings import Settings\n"
        "from flwr.serverapp.strategy import FedAvg\n\n\nclass Own(Settings):\n"
        '    """trim_share : left out at either end."""\n\n    trim_share: float = 0.25\n\n\n'
        "class Mine(Algorithm[Own]):\n    pass\n\n\nclass Plain(Algorithm):\n    pass\n\n\n"
        "class Stock(FedAvg):\n    def __init__(self, beta: float = 0.5):\n        super().__init__()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    shown = call("keys", "a_method_with_keys:Mine").output
    assert shown.split("\n")[:4] == [
        "[Mine]",
        "    trim-share = 0.25   # number",
        "",
        "    trim-share : left out at either end.",
    ]
    assert "has no keys; " in call("keys", "a_method_with_keys:Plain").output
    assert "[Stock]\n    beta = 0.5" in call("keys", "a_method_with_keys:Stock").output
    assert "has no 'Other'" in refused("keys", "a_method_with_keys:Other")
    assert "is neither a method" in refused("keys", "a_method_with_keys:Own")


def test_data_has_a_line_for_each_set_that_says_whether_it_is_here(tmp_path):
    from fedgraph.data import catalogue_entries

    folder = tmp_path / "data"
    result = call("data", "--data-dir", folder)
    assert result.exit_code == 0
    assert "Your own data: series, table, mixed-table, table-columns, panel, images" in result.output
    assert f"Data folder: {folder}" in result.output
    lines = result.output.splitlines()[2 : 2 + len(catalogue_entries())]
    assert [line.split()[0] for line in lines] == [entry.name for entry in catalogue_entries()]
    there = {line.split()[0]: " not here " not in line for line in lines}
    assert (there["metr-la"], there["digits"]) == (False, True)
    entry = next(entry for entry in catalogue_entries() if entry.name == "metr-la")
    assert f"metr-la             not here  {entry.title}, {entry.size}" in lines
    for part in entry.alternatives[0]:
        (folder / part.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / part.path).write_bytes(b"")
    assert f"metr-la             here      {entry.title}, {entry.size}" in call("data", "--data-dir", folder).output


def test_data_by_name_says_where_the_files_are_looked_for(tmp_path):
    from fedgraph.data import catalogue_entries

    folder = tmp_path / "data"
    missing = call("data", "metr-la", "--data-dir", folder).output
    assert "licence: " in missing
    assert "get it: " in missing
    assert "pems-bay" not in missing
    entry = next(entry for entry in catalogue_entries() if entry.name == "metr-la")
    for part in entry.alternatives[0]:
        assert str(folder / part.path) in missing
        (folder / part.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / part.path).write_bytes(b"")
    assert "found: " in call("data", "metr-la", "--data-dir", folder).output
    assert "`fedgraph keys series`" in call("data", "series").output
    by_hand = call("data", "cora", "--data-dir", folder).output
    assert f"looked for: {folder}/cora/cora.content + {folder}/cora/cora.cites" in by_hand
    assert "get it: by hand from (https://linqs-data.soe.ucsc.edu/public/lbc/cora.tgz)" in by_hand
    told = call("data", "--download", "cora", "--data-dir", folder).output
    assert f"download it by hand to {folder}/cora/cora.cites" in " ".join(told.split())


def test_download_of_what_needs_none_and_of_what_is_there(tmp_path):
    result = call("data", "--download", "digits")
    assert result.exit_code == 0
    assert "digits needs no download" in result.output


def test_finished_run_on_flower_is_read_back_and_an_unfinished_one_shows_the_log(file, tmp_path, monkeypatch):
    calls = []

    def flower(run_config, nodes, log, places, **more):
        calls.append((run_config, nodes, places))
        log.write_text("somebody tripped over the cable\n")

    monkeypatch.setattr(running, "run_on_flower", flower)
    message = refused("run", file, "--out", tmp_path / "out", "--grid", "flower", "--nodes", 4, "--data-dir", tmp_path)
    assert "the run did not finish" in message
    assert "somebody tripped over the cable" in message
    (folder,) = (tmp_path / "out").iterdir()
    ((run_config, nodes, places),) = calls
    assert nodes == 4
    assert places["FEDGRAPH_STATE"] == str(folder / "nodes")
    assert run_config["set"] == f"output.resume={folder}"
    assert run_config["experiment"] == str(folder / "experiment.toml")
    assert run_config["data-dir"] == str(tmp_path)
    assert RunFolder.open(folder).path == folder


def test_compare_by_dotted_path(file, tmp_path):
    result = call(
        "run", file, "--out", tmp_path / "out", "--json", tmp_path / "r.json",
        "--compare", "flwr.serverapp.strategy:FedAdam", "--compare", "local",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    methods = [summary["method"] for summary in json.loads((tmp_path / "r.json").read_text())]
    assert methods == ["sfl", "FedAdam", "local"]


def test_keys_of_every_table():
    everything = call("keys").output
    for heading in (
        "[experiment]", "[train]", '[data] set = "metr-la"', '[model] name = "gru"', "[[model.variants]]", "[sfl]",
    ):  # fmt: skip
        assert heading in everything
    shown = call("keys", "metr-la").output
    assert "shares = [0.7, 0.2, 0.1]        # [number, number, number]" in shown
    assert 'covariates = []                 # list of "time-of-day"' in shown
    explained = call("keys", "train").output
    assert "local-epochs or local-steps : passes over" in explained
    assert "local_epochs" not in explained
    assert "# a table, see fedngm.merge" in call("keys", "fedngm").output
    assert "min-clients = 2 " in call("keys", "fedngm.merge").output
    # All of it can be copied into a file.
    for line in call("keys", "train").output.partition("\n\n")[0].splitlines():
        if " = " in line:
            tomllib.loads(line)
    assert not re.search(r"\b(None|True|tuple|Literal)\b", everything)
    assert "[data.table-schema]" in call("keys", "mixed-table.table-schema").output
    schema = call("keys", "mixed-table.table-schema").output
    for name in ("data.table-schema", "table-schema", "[data.table-schema]"):
        assert call("keys", name).output == schema, "once, though several data sets have it"
    assert call("keys", "model.variants").output == call("keys", "variants").output
    assert [word for word in call("keys", "recovery").output.split() if word[0] == "["] == ["[fedngm.recovery]"]
    assert "clip-norm          # number, above 0; needed" in call("keys", "ipa.privacy").output
    assert "trim = 0.2         # number, above 0 and below 0.5\n" in call("keys", "defence").output
    assert call("keys", "nothing").exit_code == 1
    # What a key chooses by name, and the arguments of Flower's own strategies.
    assert "fashion-mnist, cifar10" in call("keys", "data").output
    assert "resnet9, gcn, graphsage, gin, scikit-learn" in call("keys", "model").output
    assert "proximal-mu = 0.1" in call("keys", "fedprox").output
    assert "Arguments of flwr.serverapp.strategy.FedAvg." in call("keys", "fedavg").output
    assert "has no keys; " in call("keys", "local").output


def test_one_key():
    shown = call("keys", "train.learning-rate").output
    assert shown.splitlines()[0] == "[train]"
    assert shown.splitlines()[1].split("#") == ["    learning-rate = 0.1          ", " number, above 0"]
    assert "learning-rate-decay" not in shown
    factor = call("keys", "train.learning-rate-factor").output
    assert "further factor: a number, or by round" in factor
    assert '"ges"' in call("keys", "fedngm.recovery.method").output
    assert "[sfl] has no key 'alhpa'; known: alpha," in refused("keys", "sfl.alhpa")
    assert "unknown table 'tain'; known: train, " in refused("keys", "tain")


def test_every_key_is_explained():
    from fedgraph.algorithms.sfl import SFLSettings
    from fedgraph.experiment.tables import EvaluationTable, ExperimentTable, FairnessTable, OutputTable
    from fedgraph.graph.settings import GraphTable
    from fedgraph.models.choice import ModelTable, VariantTable
    from fedgraph.reproduce.table import ColumnTable, MetricTable, ProfileTable, RowTable, TableTable
    from fedgraph.support.settings import Settings
    from fedgraph.training.settings import TrainSettings

    kinds = [ExperimentTable, GraphTable, EvaluationTable, FairnessTable, OutputTable, TrainSettings, SFLSettings]
    kinds += [ModelTable, VariantTable, TableTable, ColumnTable, RowTable, ProfileTable, MetricTable]
    for kind in kinds:
        explained = " ".join(base.__doc__ or "" for base in kind.__mro__ if issubclass(base, Settings))
        assert [key for key in kind.model_fields if key not in explained] == [], kind


def test_a_wrong_method_table_leaves_no_run_folder(file, tmp_path):
    result = call("run", file, "--out", tmp_path / "out", "--set", "sfl.hop=1", "--compare", "fedavg")
    assert result.exit_code == 1
    assert "[sfl] has no key 'hop'" in result.output
    result = call("run", file, "--out", tmp_path / "out", "--set", "fedavg.foo=1", "--compare", "fedavg")
    assert "[fedavg] has no key 'foo'" in result.output
    assert not (tmp_path / "out").exists()


def test_results_that_have_nowhere_to_go_are_refused_before_the_run(file, tmp_path):
    for arguments, message in (
        (("--plot", tmp_path / "w.xyz"), "must be one of .png, .svg"),
        (("--json", tmp_path), "it is a folder"),
        (("--json", "/proc/nope/x.json"), "cannot write"),
    ):
        result = call("run", file, "--out", tmp_path / "out", *arguments)
        assert result.exit_code == 1
        assert message in result.output.replace("\n", " ")
    assert not (tmp_path / "out").exists()


def test_a_stock_strategy_over_another_method_gets_its_own_client(file, tmp_path):
    path = "experiment.strategy=flwr.serverapp.strategy:FedAdam"
    result = call("run", file, "--out", tmp_path / "out", "--set", path)
    assert result.exit_code == 0, result.output


def test_a_table_can_be_replaced_whole(file, tmp_path):
    result = call(
        "run", file, "--out", tmp_path / "out", "--set", 'model={name = "cnn"}', "--set", "experiment.rounds=1"
    )
    assert result.exit_code == 0, result.output


def test_wrong_types_are_explained(file):
    for override, message in (("data.set=[1]", "set is [1]"), ("model.name=[1]", "no model [1]")):
        result = call("run", file, "--set", override)
        assert result.exit_code == 1
        assert message in result.output


def test_quiet_leaves_only_the_results(file, tmp_path):
    loud, quiet = (call("run", file, "--out", tmp_path / "out", *more).output for more in ((), ("--quiet",)))
    assert "1/1" in loud
    assert "1/1" not in quiet
    assert quiet.startswith("On each client's own test data")
    for text in ("accuracy", "6 clients, each measured", "Run folder: "):
        assert text in quiet


def test_help_has_the_commands_under_headings():
    told = call("--help").output
    sections = {}
    for line in told.partition("First steps")[2].splitlines():
        if line.endswith(":") and not line.startswith(" "):
            heading = line.removesuffix(":") or "First steps"
            sections[heading] = []
        elif line.startswith("  ") and line[2] != " ":
            sections[heading].append(line.split()[0])
    assert sections == {
        "First steps": [
            *("tour", "run", "runs", "compare", "report", "predict", "export", "peers"),
            *("worth", "sweep", "reproduce"),
        ],
        "Your own methods": ["new", "check"],
        "Your own Flower apps": ["simulate"],
        "Look things up": ["methods", "keys", "data"],
        "Real machines": ["node", "server", "supervise", "test-credentials"],
    }
    assert "--install-completion" in told


def test_help_explains_arguments_too():
    told = call("runs", "--help").output
    assert "  [FOLDER]  Folder with run folders, or a run folder.  [default: runs]" in told.splitlines()
    assert told.count("[FOLDER]") == 2
    for name, command in get_command(cli.app).commands.items():
        explained = " ".join(call(name, "--help").output.split())
        for argument in (each for each in command.params if isinstance(each, TyperArgument)):
            assert f" {argument.help} " in explained


def test_version():
    result = call("--version")
    assert result.exit_code == 0
    first, second = result.output.splitlines()
    assert first == f"fedgraph {fedgraph.__version__}"
    known = f"flwr {version('flwr')}, torch {version('torch')}, python {platform.python_version()}"
    assert second == known


def test_help_version_and_lists_load_nothing_heavy(tmp_path):
    """In a process of its own, as this one has loaded everything."""
    for name in ("methods", "keys", "data"):
        assert call(name).exit_code == 0
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "experiment.toml").write_text(
        tomli_w.dumps({"experiment": {"method": "sfl"}, "data": {"set": "a"}})
    )
    program = """
import sys
from fedgraph.commands import cli
lists = [["methods"], ["keys", "sfl"], ["data"], ["data", "metr-la"]]
wanted = [["--help"], ["--version"], ["runs", sys.argv[1]], *lists]
for command in [*wanted, *([info.name, "--help"] for info in cli.app.registered_commands)]:
    cli.app(command, standalone_mode=False)
    print("LOADED", *command, *{"torch", "flwr", "ray", "sklearn", "scipy", "numpy", "matplotlib"} & set(sys.modules))
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    loaded = [line.split()[1:] for line in found.stdout.splitlines() if line.startswith("LOADED")]
    lists = [["methods"], ["keys", "sfl"], ["data"], ["data", "metr-la"]]
    assert loaded[:7] == [["--help"], ["--version"], ["runs", str(tmp_path)], *lists]
    assert all(len(line) == 2 and line[1] == "--help" for line in loaded[7:]), loaded
    assert len(loaded) == 7 + len(cli.app.registered_commands)


@pytest.mark.process
def test_the_package_is_the_command():
    found = subprocess.run([sys.executable, "-m", "fedgraph", "--help"], capture_output=True, text=True, check=False)
    assert found.returncode == 0
    assert "Usage: fedgraph [OPTIONS] COMMAND" in found.stdout
