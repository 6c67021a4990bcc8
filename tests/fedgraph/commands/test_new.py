import re
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedgraph
from fedgraph.algorithms.f3_settings import F3Settings
from fedgraph.algorithms.sfl import SFLSettings
from fedgraph.commands import cli
from fedgraph.commands.keys import inner_tables, meanings
from fedgraph.commands.new import class_files, experiment_file, method_table
from fedgraph.experiment import built_ins, parse_experiment
from fedgraph.strategies.engine.chosen import ChosenMethod
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import parse

REPOSITORY = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.usefixtures("leave_no_trace")


def call(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def no_modules_stay():
    yield
    sys.modules.pop("trimmed_mean", None)


@pytest.mark.process
def test_a_new_strategy_runs_and_keeps_the_contract(tmp_path):
    told = call("new", "strategy", "trimmed-mean")
    assert told.exit_code == 0, told.output
    assert {path.name for path in tmp_path.iterdir()} == {"trimmed_mean.py", "trimmed_mean.toml"}
    commands = [line.split()[1:] for line in told.output.splitlines() if line.startswith("    fedgraph ")]
    assert commands == [["run", "trimmed_mean.toml"], ["check", "trimmed_mean:TrimmedMean"]]
    ran = call(*commands[0], "--quiet", "--json", "out.json")
    assert ran.exit_code == 0, ran.output
    assert tomllib.loads((tmp_path / "trimmed_mean.toml").read_text())["TrimmedMean"] == {"share": 0.5, "momentum": 0.2}
    checked = call(*commands[1])
    assert checked.exit_code == 0, checked.output
    assert "10 passed" in checked.output
    assert not {"fail", "skipped", "expected"} & {
        line.split()[0] for line in checked.output.splitlines() if line.strip()
    }


def test_a_new_data_set_runs_and_keeps_the_contract(tmp_path):
    told = call("new", "dataset", "ward-stays")
    assert told.exit_code == 0, told.output
    assert {path.name for path in tmp_path.iterdir()} == {"ward_stays.py", "ward_stays.toml"}
    text = (tmp_path / "ward_stays.py").read_text()
    assert "class WardStays(DataSet[WardStaysSettings])" in text
    assert "MyData" not in text
    assert "my_data_set" not in text
    commands = [line.split()[1:] for line in told.output.splitlines() if line.startswith("    fedgraph ")]
    assert commands == [["run", "ward_stays.toml"], ["check", "ward_stays:WardStays"]]
    ran = call(*commands[0], "--quiet")
    assert ran.exit_code == 0, ran.output
    assert "mae and rmse are in days" in " ".join(ran.output.split())
    checked = call(*commands[1])
    assert checked.exit_code == 0, checked.output
    assert "8 passed, 1 skipped" in checked.output
    keys = call("keys", "ward_stays:WardStays").output
    assert '[data] set = "ward_stays:WardStays"' in keys
    assert "patients : number of patients of each ward" in keys
    wrong = call(*commands[1], "--set", "data.patients=3")
    assert wrong.exit_code == 1
    assert "patients: Input should be greater than or equal to 10" in wrong.stderr
    sys.modules.pop("ward_stays")


def test_a_new_data_set_of_graphs_runs_and_keeps_the_contract(tmp_path):
    told = call("new", "dataset", "town-habits", "--graphs")
    assert told.exit_code == 0, told.output
    assert {path.name for path in tmp_path.iterdir()} == {"town_habits.py", "town_habits.toml"}
    text = (tmp_path / "town_habits.py").read_text()
    assert "class TownHabits(GraphDataSet[TownHabitsSettings])" in text
    assert "MyGraphs" not in text
    ran = call("run", "town_habits.toml", "--quiet")
    assert ran.exit_code == 0, ran.output
    assert "4 clients with a graph of 80 nodes each, classes of nodes" in " ".join(ran.output.split())
    checked = call("check", "town_habits:TownHabits")
    assert checked.exit_code == 0, checked.output
    assert "8 passed, 1 skipped" in checked.output
    sys.modules.pop("town_habits")
    assert "--graphs needs a dataset" in call("new", "strategy", "mine", "--graphs").stderr


def test_what_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "mine.toml").write_text("mine")
    told = call("new", "strategy", "mine")
    assert told.exit_code == 1
    assert "mine.toml already exists" in told.stderr
    assert (tmp_path / "mine.toml").read_text() == "mine"
    assert not (tmp_path / "mine.py").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("strategy",), "a strategy needs a name"),
        (("strategy", "3x"), "'3x' is not a valid name for a strategy: use words of letters and digits"),
        (("strategy", "../evil"), "is not a valid name for a strategy"),
        (("strategy", "class"), "is not a valid name for a strategy"),
        (("strategy", "random"), "'random' is the name of an existing module or class"),
        (("strategy", "Algorithm"), "is the name of an existing module or class"),
        (("dataset",), "a dataset needs a name: fedgraph new dataset wards"),
        (("dataset", "3x"), "'3x' is not a valid name for a dataset: use words of letters and digits"),
        (("experiment", "a/b"), "'a/b' is not a valid name for an experiment"),
        (("experiment", "--method", "slf"), "'slf' is not a built-in method; known: centralised, "),
        (
            ("experiment", "--method", "f3-secret"),
            "'f3-secret' continues a finished run .*predict RUN_FOLDER --secret",
        ),
        (("project",), "a project needs a name: fedgraph new project groups"),
        (
            ("project", "my_groups"),
            "'my_groups' is not a valid name for a project: use a letter, then letters, digits and dashes",
        ),
        (("method",), "unknown kind 'method'; known: strategy, dataset, experiment, project"),
    ],
)
def test_what_cannot_be_written_is_one_message(arguments, message, tmp_path):
    told = call("new", *arguments)
    assert told.exit_code == 1, told.output
    assert re.search(message, told.stderr)
    assert list(tmp_path.iterdir()) == []


def test_a_project_has_what_the_guide_shows_and_an_experiment(tmp_path):
    told = call("new", "project", "groups")
    assert told.exit_code == 0, told.output
    assert {path.name for path in tmp_path.iterdir()} == {"pyproject.toml", ".gitignore", "groups.toml"}
    assert "flwr run . --stream" in told.output
    guide = (REPOSITORY / "docs" / "guides" / "simulation.md").read_text()
    assert f"```toml\n# pyproject.toml\n{(tmp_path / 'pyproject.toml').read_text()}```" in guide
    ChosenMethod(parse_experiment(tomllib.loads((tmp_path / "groups.toml").read_text())))


def test_a_project_of_an_experiment_that_is_there(tmp_path):
    (tmp_path / "stays.toml").write_text("mine")
    assert call("new", "project", "stays.toml").exit_code == 0
    assert (tmp_path / "stays.toml").read_text() == "mine"
    config = tomllib.loads((tmp_path / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config["experiment"] == "stays.toml"


def test_names_of_modules_and_classes():
    assert list(class_files("strategy", "TrimmedMean")) == list(class_files("strategy", "trimmed-mean"))
    text = class_files("strategy", "trimmed-mean")["trimmed_mean.py"]
    assert "class TrimmedMean(Algorithm[TrimmedMeanSettings])" in text
    assert "class TrimmedMeanSettings(Settings)" in text
    assert "MyStrategy" not in text
    assert "my_strategy" not in text


@pytest.mark.parametrize("name", built_ins())
def test_an_experiment_of_every_method_is_valid(name):
    if name.endswith("-inference") or name == "f3-secret":
        with pytest.raises(ExperimentError, match=f"'{name}' continues a finished run"):
            experiment_file("x", name)
        return
    (text,) = experiment_file("x", name).values()
    experiment = parse_experiment(tomllib.loads(text))
    assert (experiment.method.name, experiment.experiment.name) == (name, "x")
    ChosenMethod(experiment)
    if name == "centralised":
        assert text.startswith("# fedgraph run x.toml --nodes 1\n")


def test_an_experiment_runs(tmp_path):
    told = call("new", "experiment", "mine", "--method", "ipa")
    assert told.exit_code == 0, told.output
    assert call("run", "mine.toml", "--quiet", "--set", "experiment.rounds=1").exit_code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("mine-")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sfl", "f3", "vfl", "f3-forecast", "simple-forecast", "fedngm"])
def test_experiments_run_within_seconds(method):
    call("new", "experiment", "--method", method)
    told = call("run", f"{method}.toml", "--quiet")
    assert told.exit_code == 0, told.output


def test_the_table_of_a_method_has_every_key_with_its_meaning():
    text = method_table("sfl", SFLSettings)
    table = tomllib.loads(text)["sfl"]
    assert parse(SFLSettings, table, "[sfl]") == SFLSettings()
    assert list(table) == SFLSettings.keys()
    assert "# alpha: share of the graph in the aggregation; 0 leaves every client its own model.\nalpha = 1.0\n" in text
    assert all(len(line) <= 120 for line in text.splitlines())
    commented = {line.partition(":")[0] for line in text.splitlines() if line.startswith("# ")}
    assert {f"# {key}" for key in table} <= commented


def test_what_a_preset_fills_in_is_commented_out():
    text = method_table("f3", F3Settings)
    assert parse(F3Settings, tomllib.loads(text)["f3"], "[f3]") == F3Settings(epochs=20)
    text = text.replace('preset = "paper"', 'preset = "practical"')
    assert parse(F3Settings, tomllib.loads(text)["f3"], "[f3]") == F3Settings(preset="practical", epochs=20)
    assert '# scaling = "none"\n' in text


def test_the_graph_of_a_template_has_edges():
    """Otherwise what is done over the graph changes nothing, and nobody would notice."""
    for arguments, file in ((("strategy", "trimmed-mean"), "trimmed_mean.toml"), (("experiment", "mine"), "mine.toml")):
        assert call("new", *arguments).exit_code == 0
        run = fedgraph.run(file, set={"experiment.rounds": 1, "output.report": False}, progress=False)
        assert (run.graph.degree() > 0).sum() > run.graph.num_clients / 2


@pytest.mark.parametrize("name", ["fedngm", "sfl", "f3", "f3-forecast", "ipa"])
def test_tables_within_a_method_are_each_explained_without_marks_of_the_documentation(name):
    kind = built_ins()[name].settings_type
    explained = meanings(kind)
    of_tables = [explained[key] for key in inner_tables(kind)]
    assert len(set(of_tables)) == len(of_tables)
    text = method_table(name, kind)
    assert not re.search(r":[a-z]+:`", text + "".join(explained.values()))
    assert "their own tables" not in text
