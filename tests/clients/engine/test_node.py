import json
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict

from fedgraph.clients.engine import node as node_module
from fedgraph.clients.engine.assignment import Assignment
from fedgraph.clients.engine.node import Node
from fedgraph.data.own import OwnData
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.models.base import TaskSpec
from fedgraph.support.errors import ExperimentError, IdentityError


def context(run_config=None, **node_config):
    return Context(
        1, 1, {key.replace("_", "-"): value for key, value in node_config.items()}, RecordDict(), run_config or {}
    )


@pytest.fixture
def part(digits_tables):
    return parse_experiment(digits_tables).client_part({"hops": 1})


def test_data_folder_comes_from_node_then_environment_then_run(monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", "/environment")
    run = {"data-dir": "/run"}
    assert Node.of(context(run, data_dir="/node")).data_dir == Path("/node")
    assert Node.of(context(run)).data_dir == Path("/environment")
    monkeypatch.delenv("FEDGRAPH_DATA")
    assert Node.of(context(run)).data_dir == Path.home() / ".cache" / "fedgraph" / "data", "the run is another's"
    monkeypatch.setattr(node_module, "is_simulated", lambda: True)
    assert Node.of(context(run)).data_dir == Path("/run")
    assert Node.of(context({"data-dir": ""})).data_dir == Path.home() / ".cache" / "fedgraph" / "data"


def test_state_folder_comes_from_node_then_environment_then_home(monkeypatch):
    monkeypatch.setenv("FEDGRAPH_STATE", "/environment")
    assert Node.of(context(state_dir="~/x")).state_dir == Path.home() / "x"
    assert Node.of(context()).state_dir == Path("/environment")
    monkeypatch.delenv("FEDGRAPH_STATE")
    assert Node.of(context()).state_dir == Path.home() / ".fedgraph" / "state"


def test_ledgers_are_of_all_runs_but_in_simulations_in_the_home(monkeypatch, tmp_path):
    def place(run, **config):
        return Node.of(context(**config)).ledger(run, "a", "updates").path

    monkeypatch.delenv("FEDGRAPH_STATE", raising=False)
    assert place("one") == place("two")
    monkeypatch.setattr(node_module, "is_simulated", lambda: True)
    assert place("one") != place("two")
    assert place("one", state_dir=tmp_path) == place("two", state_dir=tmp_path)


def test_assignment_is_the_experiments_part_for_nodes(part):
    assignment = Assignment.of(part)
    assert (assignment.seed, assignment.method, assignment.model["name"]) == (0, {"hops": 1}, "mlp")
    assert assignment.train.batch_size == 32
    assert Assignment.of(part) is assignment
    assert Assignment.of(part.replace('"seed": 0', '"seed": 3')).seed == 3


@pytest.mark.parametrize(
    ("horizons", "steps", "expected"), [(None, 12, (3, 6, 12)), (None, 5, (3,)), (None, 2, ()), ([1, 2], 12, (1, 2))]
)
def test_horizons_of_a_forecast(part, horizons, steps, expected):
    tables = {**json.loads(part), "horizons": horizons}
    assert Assignment.of(json.dumps(tables)).horizons_of(TaskSpec("forecast", (12, 1), (steps,))) == expected


def test_other_tasks_have_no_horizons(part):
    assert Assignment.of(part).horizons_of(TaskSpec("regression", (3,), (1,))) == ()


def test_only_forecasts_have_missing_targets_that_count(part):
    tables = {**json.loads(part), "missing-as": 0.0}
    assignment = Assignment.of(json.dumps(tables))
    assert assignment.horizons_of(TaskSpec("forecast", (12, 1), (2,))) == ()
    with pytest.raises(ExperimentError, match="missing-as .*forecasts"):
        assignment.horizons_of(TaskSpec("regression", (3,), (1,)))


def test_clients_cohort_and_its_reuse(part):
    node = Node.of(context(partition_id=1, num_partitions=3))
    clients = node.hosted(Assignment.of(part))
    assert clients == ("client-2", "client-3")
    cohort = node.cohort(part, clients)
    assert cohort.data.names == clients
    assert node.cohort(part, clients) is cohort
    assert node.cohort(part, clients[:1]) is not cohort
    with pytest.raises(IdentityError, match="which clients it hosts"):
        Node.of(context()).hosted(Assignment.of(part))


def test_state_is_kept_in_the_folder_of_the_node(tmp_path):
    node = Node.of(context(state_dir=str(tmp_path)))
    node.state("run-1", "x").save(["a"], 1, {"x": torch.ones(1, 2)}, keep_from=1)
    (kept,) = tmp_path.rglob("*.safetensors")
    assert kept.parent.parent == tmp_path / "runs" / "run-1" / "x"
    assert kept.name.startswith("round-1-")


def test_model_folder_comes_from_node_then_environment_then_state_folder(monkeypatch):
    monkeypatch.setenv("FEDGRAPH_MODELS", "/environment")
    assert Node.of(context(model_dir="~/x", state_dir="/state")).model_dir == Path.home() / "x"
    assert Node.of(context(state_dir="/state")).model_dir == Path("/environment")
    monkeypatch.delenv("FEDGRAPH_MODELS")
    assert Node.of(context(state_dir="/state")).model_dir == Path("/state/local-models")


def test_partition_of_a_node_that_clients_are_dealt_out_to():
    assert Node.of(context(partition_id=1, num_partitions="3")).partition() == (1, 3)
    assert Node.of(context(partition_id=1, num_partitions=3, clients="a")).partition() is None


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        ({"model": ""}, {}),
        ({"model": "/m.pt2"}, {"a": "/m.pt2", "b": "/m.pt2"}),
        ({"models": "b=/m.pt2"}, {"b": "/m.pt2"}),
        ({"models": "a = x.y:z@w.safetensors , b=/m=1.pt2"}, {"a": "x.y:z@w.safetensors", "b": "/m=1.pt2"}),
        ({"models": '"a=/with, comma.pt2",b=/m.pt2'}, {"a": "/with, comma.pt2", "b": "/m.pt2"}),
        ({"model": "/m.pt2", "models": "a=/own.pt2"}, {"a": "/own.pt2", "b": "/m.pt2"}),
    ],
)
def test_models_that_clients_have_already(config, expected):
    assert Node.of(context(**config)).existing_models(("a", "b")) == expected


def test_names_with_an_equals_sign_in_them():
    found = Node.of(context(models="a=b=/m=1.pt2, a = /own.pt2")).existing_models(("a", "a=b"))
    assert found == {"a=b": "/m=1.pt2", "a": "/own.pt2"}


@pytest.mark.parametrize("models", ["c=/m.pt2", "a", "a=", "=/m.pt2", "a=/m.pt2,,"])
def test_models_for_nobody_and_nothing_are_refused(models):
    with pytest.raises(IdentityError, match="'models': .*a, b"):
        Node.of(context(models=models)).existing_models(("a", "b"))


# ---- data of the node's own


def series_part(**data):
    tables = {
        "experiment": {"method": "local", "rounds": 1},
        "data": {"set": "series", "input-steps": 3, "output-steps": 2, **data},
        "model": {"name": "gru", "hidden": 4},
        "train": {"local-steps": 1},
    }
    return Assignment.of(parse_experiment(tables).client_part({}))


def test_own_data_lies_where_the_node_config_says(monkeypatch):
    monkeypatch.delenv("FEDGRAPH_DATA", raising=False)
    own = Node.of(context(data_dir="/srv", data="a.csv", clients="mercy, st-olav")).own
    assert own == OwnData(Path("/srv/a.csv"), ("mercy", "st-olav"))
    assert Node.of(context(data_dir="/srv", data="/own/a.csv")).own == OwnData(Path("/own/a.csv"))
    assert Node.of(context(data_dir="/srv", data="~/a.csv")).own == OwnData(Path.home() / "a.csv")
    assert Node.of(context(data_dir="/srv", data="")).own is None


def test_own_data_says_whom_a_node_hosts_that_names_nobody(tmp_path):
    for name, columns in (("a.csv", "x,y"), ("b.csv", "y,z")):
        (tmp_path / name).write_text(f"{columns}\n" + "1,2\n" * 50)

    def hosted(assignment=series_part(), **config):  # noqa: B008
        return Node.of(context(data_dir=str(tmp_path), **config)).hosted(assignment)

    assert hosted(data="a.csv") == ("x", "y")
    assert hosted(data="b.csv") == ("y", "z")
    assert hosted(data="a.csv", clients="y") == ("y",)
    assert hosted(data="a.csv", aggregator="helper") == ("x", "y")
    assert hosted(series_part(clients=["z", "x"]), data="b.csv") == ("z",)
    assert hosted(series_part(path="a.csv"), data="b.csv") == ("y", "z")
    assert hosted(series_part(path="a.csv"), clients="x") == ("x",)
    assert Node.of(context(data="a.csv")).partition() is None
    with pytest.raises(IdentityError, match="names x, "):
        hosted(data="b.csv", clients="x")
    with pytest.raises(IdentityError, match="'clients' .*'partition-id'"):
        hosted(data="a.csv", partition_id=0, num_partitions=2)


def test_cohorts_of_two_nodes_of_one_process_are_of_their_own_data(tmp_path):
    for name, value in (("a.csv", 1), ("b.csv", 5)):
        (tmp_path / name).write_text("x\n" + f"{value}\n{value + 1}\n" * 40)
    part = parse_experiment(
        {
            "experiment": {"method": "local", "rounds": 1},
            "data": {"set": "series", "input-steps": 3, "output-steps": 2},
            "model": {"name": "gru", "hidden": 4},
            "train": {"local-steps": 1},
        }
    ).client_part({})
    means = [
        Node.of(context(data_dir=str(tmp_path), data=name)).cohort(part, ("x",)).data.mean.item()
        for name in ("a.csv", "b.csv", "a.csv")
    ]
    assert means == pytest.approx([1.5, 5.5, 1.5])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/srv/of jane/mercy.csv has no rows", "<data> has no rows"),
        ("no /srv/of jane/st olav.csv: put it there", "no <data>: put it there"),
        ("[data] path of mercy.csv", "[data] path of mercy.csv"),
        ("/srv/of jane/{client}.csv is for each", "<data> is for each"),
        ("/srv/x.csv", "<data-dir>/x.csv"),
    ],
)
def test_errors_do_not_tell_where_own_data_of_several_clients_lies(text, said):
    node = Node.of(context(data_dir="/srv", data="of jane/{client}.csv", clients="mercy,st olav", state_dir="/state"))
    assert node.without_places(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/srv/scans/cat/Jane Doe 1.1.png is no image (see '/srv/scans/cat/Jane Doe 1.1.png')", "<data> is no image"),
        ("/srv/scans/cat has nothing", "<data> has nothing"),
        ("/srv/scans has the sub-folder 'cow'", "<data> has the sub-folder 'cow'"),
        ("'/srv/scans/Jane Doe.npz': bad", "'<data>': bad"),
    ],
)
def test_errors_do_not_tell_how_files_of_an_own_folder_are_called(text, said):
    found = Node.of(context(data_dir="/srv", data="scans", clients="mercy", state_dir="/state")).without_places(text)
    assert found.startswith(said)
    assert "Jane" not in found
    assert "Doe" not in found


@pytest.mark.parametrize(
    ("folder", "text", "said"),
    [
        (
            ".",
            "[data.categories] of 3.5: ./jane.csv, no jane.csv",
            "[data.categories] of 3.5: <data-dir>/jane.csv, no jane",
        ),
        (
            "jane/data",
            "nodes with data: jane/data/a.csv and of jane/data",
            "nodes with data: <data-dir>/a.csv and of <data-dir>",
        ),
        ("data", "nodes with data of their own: data/a.csv", "nodes with data of their own: <data-dir>/a.csv"),
    ],
)
def test_a_relative_folder_is_no_other_word_of_an_error(folder, text, said):
    assert Node.of(context(data_dir=folder, state_dir="/state")).without_places(text).startswith(said)
