"""A rehearsal of a deployment: a node and a file for each site, in one process."""

import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch
from typer.testing import CliRunner

import fedgraph
from fedgraph.commands.cli import app
from fedgraph.starting.node_config import node_configs
from fedgraph.support.errors import DataError, ExperimentError, RunError

SITES = ("county", "mercy", "north")


@pytest.fixture
def hospitals(tmp_path):
    """One table of three hospitals, and a file of each."""
    random = np.random.default_rng(0)
    age, ward = random.normal(50, 10, 150), random.choice(["a", "b"], 150)
    frame = pd.DataFrame({"age": age, "ward": ward, "stay": 3 + 0.1 * age + (ward == "a") + random.normal(0, 0.2, 150)})
    frame["hospital"] = np.resize(SITES, 150)
    frame.to_csv(tmp_path / "all.csv", index=False)
    for name, rows in frame.groupby("hospital"):
        rows.drop(columns="hospital").to_csv(tmp_path / f"{name}.csv", index=False)
    return frame


def tables(**data):
    return {
        "experiment": {"name": "sites", "method": "sfl", "rounds": 2},
        "data": {"set": "table", "label": "stay", "task": "regression", "categories": {"ward": ["a", "b"]}, **data},
        "model": {"name": "mlp", "hidden": [4]},
        "train": {"learning-rate": 0.05},
        "graph": {"source": "complete"},
    }


def test_files_of_sites_are_as_one_file_over_as_many_nodes(hospitals, tmp_path):
    sites = {name: tmp_path / f"{name}.csv" for name in SITES}
    run = fedgraph.run(tables(), sites=sites, out=tmp_path / "runs", progress=False)
    assert list(run.clients.index) == list(SITES)
    assert run.summary["nodes"] == 3
    assert "own data" in run.summary["data"]
    one = fedgraph.run(
        tables(path=str(tmp_path / "all.csv"), **{"client-column": "hospital", "features": ["age", "ward"]}),
        nodes=3, out=tmp_path / "runs", progress=False,
    )  # fmt: skip
    assert run.summary["weights_sha256"] == one.summary["weights_sha256"]
    frames = {name: hospitals[hospitals.hospital == name].drop(columns="hospital") for name in SITES}
    given = fedgraph.run(tables(), sites=frames, out=tmp_path / "runs", progress=False)
    assert given.summary["weights_sha256"] == run.summary["weights_sha256"]
    # What nodes keep is there for predictions.
    assert len(run.predict(frames["mercy"], client="mercy")) == 50


def test_a_file_of_series_that_names_no_client_is_its_sites(tmp_path):
    random = np.random.default_rng(1)
    index = pd.date_range("2024-01-01", periods=200, freq="h", name="time")
    sites = {name: pd.DataFrame({"load": random.normal(10, 1, 200)}, index=index) for name in ("north", "south")}
    given = tables()
    given["data"] = {"set": "series", "target": "load", "input-steps": 4, "output-steps": 2}
    given["model"] = {"name": "gru", "hidden": 4}
    run = fedgraph.run(given, sites=sites, out=tmp_path / "runs", progress=False)
    assert list(run.clients.index) == ["north", "south"]
    # One site has times with a zone, which would be hours apart from the others'.
    sites["south"].index = index.tz_localize("Europe/Berlin")
    with pytest.raises(DataError, match="times of 'south' have a zone .* of 'north' have no zone"):
        fedgraph.run(given, sites=sites, out=tmp_path / "runs", progress=False)
    with pytest.raises(DataError, match="times have a zone .* those of training have no zone"):
        run.predict(sites["south"], client="south")


def test_a_file_that_names_its_clients(tmp_path):
    random = np.random.default_rng(1)
    index = pd.date_range("2024-01-01", periods=200, freq="h", name="time")
    for site, columns in (("north", "ab"), ("south", "c")):
        frame = pd.DataFrame({name: random.normal(10, 1, 200) for name in columns}, index=index)
        frame.to_csv(tmp_path / f"{site}.csv")
    given = tables()
    given["data"] = {"set": "series", "input-steps": 4, "output-steps": 2}
    given["model"] = {"name": "gru", "hidden": 4}
    sites = {site: tmp_path / f"{site}.csv" for site in ("north", "south")}
    run = fedgraph.run(given, sites=sites, out=tmp_path / "runs", progress=False)
    assert list(run.clients.index) == ["a", "b", "c"]
    assert run.summary["nodes"] == 2


def test_keys_and_models_of_single_sites(hospitals, tmp_path):
    """A node with an agreement refuses another experiment; one with a model of its own brings it."""
    sites = {name: tmp_path / f"{name}.csv" for name in SITES}
    (tmp_path / "agreed.toml").write_text(tomli_w.dumps({**tables(), "train": {"batch-size": 7}}))
    config = {"mercy": {"agreement": str(tmp_path / "agreed.toml")}}
    with pytest.raises(Exception, match="this site has agreed to another experiment: train.batch-size is 7"):
        fedgraph.run(tables(), sites=sites, node_config=config, out=tmp_path / "runs", progress=False)
    for given, message in (
        (
            {"node_config": {"mercey": {"full-errors": 1}}},
            "--node-config is given for the site 'mercey'; sites are county",
        ),
        ({"models": {"mercey": "x.pt2"}}, "--model is given for the site 'mercey'"),
        ({"sites": {**sites, "mercy": "gone.csv"}}, "--site mercy: there is no .*gone.csv"),
        ({"grid": "flower"}, "sites are rehearsed in this process"),
    ):
        with pytest.raises(ExperimentError, match=message):
            fedgraph.run(tables(), **{"sites": sites, "out": tmp_path / "runs", "progress": False, **given})


def test_a_site_that_cannot_take_part_is_seen_before_anybody_starts_a_server(hospitals, tmp_path):
    bad = pd.read_csv(tmp_path / "mercy.csv").replace({"ward": {"a": "c"}})
    sites = {"county": tmp_path / "county.csv", "mercy": bad}
    with pytest.raises(Exception, match="'ward' .*'c'"):
        fedgraph.run(tables(), sites=sites, out=tmp_path / "runs", progress=False)


def test_a_model_that_one_site_brings(tmp_path):
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(50, 10, (240, 4)), columns=["age", "weight", "income", "debt"])
    frame.insert(0, "id", [f"p{row:03d}" for row in range(240)])
    frame["label"] = np.where(frame.age + frame.income > 100, "yes", "no")
    parts = {"bank": ["id", "income", "debt", "label"], "clinic": ["id", "age", "weight", "label"]}
    for name, columns in parts.items():
        frame[columns].to_csv(tmp_path / f"{name}.csv", index=False)
    module = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    program = torch.export.export(module, (torch.zeros(4, 2),), dynamic_shapes=({0: torch.export.Dim("n")},))
    torch.export.save(program, tmp_path / "bank.pt2")
    given = {
        "experiment": {"name": "owners", "method": "f3"},
        "data": {"set": "table-columns", "label": "label", "key-column": "id", "categories": {"label": ["no", "yes"]}},
        "model": {"name": "mlp", "hidden": [4]},
        "train": {"local-epochs": 5, "learning-rate": 0.05},
        "f3": {"epochs": 2, "hidden": 4, "draws": 2},
    }
    sites = {name: tmp_path / f"{name}.csv" for name in parts}
    run = fedgraph.run(
        given, sites=sites, models={"bank": tmp_path / "bank.pt2"}, out=tmp_path / "runs", progress=False
    )
    assert run.summary["nodes"] == 2
    assert run.folder.node_config["sites"]["bank"]["model"] == str(tmp_path / "bank.pt2")
    with pytest.raises(RunError, match=r"no-such\.pt2"):
        fedgraph.run(given, sites=sites, models={"bank": "no-such.pt2"}, out=tmp_path / "runs", progress=False)


@pytest.mark.usefixtures("leave_no_trace")
def test_the_command_and_going_on(hospitals, tmp_path):
    import tomli_w

    (tmp_path / "sites.toml").write_text(tomli_w.dumps({**tables(), "output": {"report": False}}))
    options = [word for name in SITES for word in ("--site", f"{name}={name}.csv")]
    told = CliRunner().invoke(app, ["run", "sites.toml", "--quiet", *options, "--node-config", "mercy:state-dir=mine"])
    assert told.exit_code == 0, told.output
    assert "MB in all, 3 nodes" in told.output
    assert (tmp_path / "mine").is_dir()
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if path.name[0] != ".")
    digest = fedgraph.load_run(folder).summary["weights_sha256"]
    # A run that was stopped goes on with the same sites.
    (folder / "summary.json").unlink()
    assert fedgraph.resume(folder, progress=False).summary["weights_sha256"] == digest
    twice = CliRunner().invoke(app, ["run", "sites.toml", "--site", "a=county.csv", "--site", "a=mercy.csv"])
    assert "--site has a repeated name" in " ".join(twice.output.split())


def test_methods_are_compared_over_sites(hospitals, tmp_path):
    sites = {name: tmp_path / f"{name}.csv" for name in ("county", "mercy")}
    call = {"sites": sites, "progress": False}
    both = fedgraph.run_methods(tables(), [None, "local"], out=tmp_path / "both", **call)
    assert [run.method for run in both] == ["sfl", "local"]
    for run, method in zip(both, (None, "local"), strict=True):
        assert list(run.clients.index) == ["county", "mercy"]
        alone = fedgraph.run(tables(), method=method, out=tmp_path / "alone", **call)
        assert run.summary["weights_sha256"] == alone.summary["weights_sha256"]
    # The data of every site are looked at, not only those of the first.
    bad = pd.read_csv(tmp_path / "mercy.csv").replace({"ward": {"a": "c"}})
    with pytest.raises(DataError, match="sfl cannot run here: .*'ward' .*'c'"):
        fedgraph.run_methods(
            tables(), [None, "local"], out=tmp_path / "bad", **{**call, "sites": {**sites, "mercy": bad}}
        )
    # A site that the run does not expect is no obstacle, as in a run of one method.
    one = fedgraph.run_methods(
        tables(), [None, "local"], set={"clients.expect": ["mercy"]}, out=tmp_path / "one", **call
    )
    assert [list(run.clients.index) for run in one] == [["mercy"], ["mercy"]]


@pytest.mark.usefixtures("leave_no_trace")
def test_the_command_compares_over_sites(hospitals, tmp_path):
    import tomli_w

    (tmp_path / "sites.toml").write_text(tomli_w.dumps(tables()))
    options = ["--site", "county=county.csv", "--site", "mercy=mercy.csv", "--compare", "fedavg", "--quiet"]
    told = CliRunner().invoke(app, ["run", "sites.toml", *options, "--node-config", "mercy:state-dir=mine"])
    assert told.exit_code == 0, told.output
    assert "MB in all, 2 nodes" in told.output
    lines = [line for line in told.output.splitlines() if line.startswith("Run folder: ")]
    assert len(lines) == 2


def test_options_become_a_node_config_for_each_node():
    common = {"state-dir": "here", "full-errors": "1"}
    sites = {"model": "own.pt2", "sites": {"a": {"data": "a.csv"}, "b": {"data": "b.csv", "state-dir": "own"}}}
    assert node_configs(sites, 5, common) == [
        {"model": "own.pt2", **common, "data": "a.csv"},
        {"model": "own.pt2", **common, "data": "b.csv", "state-dir": "own"},
    ]
    assert node_configs({"least_rows": 3}, 2, common) == [
        {"partition-id": place, "num-partitions": 2, "least-rows": 3, **common} for place in range(2)
    ]


@pytest.mark.usefixtures("leave_no_trace")
def test_data_without_a_path_say_what_to_do_and_it_helps(hospitals, tmp_path):
    import tomli_w

    (tmp_path / "sites.toml").write_text(tomli_w.dumps(tables()))
    for command in (["run"], ["worth", "--seeds", "0,1"], ["sweep", "--over", "sfl.alpha=0,1"]):
        told = CliRunner().invoke(app, [command[0], "sites.toml", "--quiet", *command[1:]])
        said = " ".join(told.output.split())
        assert told.exit_code == 1
        for advice in (
            "`fedgraph node --client mercy --data mercy.csv`",
            "in `fedgraph run` --site mercy=mercy.csv",
            "set path in [data] (--set data.path=all.csv)",
        ):
            assert advice in said
    helped = ["--set", "data.path=all.csv", "--set", "data.client-column=hospital"]
    over = ["--over", "sfl.alpha=0,1", "--metric", "validation/mae", "--trials", "1"]
    for command in (["run"], ["sweep", *over], ["worth", "--seeds", "0,1", "--rates", "1"]):
        told = CliRunner().invoke(app, [command[0], "sites.toml", "--quiet", *command[1:], *helped])
        assert told.exit_code == 0, told.output


def test_columns_in_another_order_are_told_and_can_be_put_in_one(hospitals, tmp_path):
    frames = {name: rows.drop(columns="hospital") for name, rows in hospitals.groupby("hospital")}
    frames["mercy"] = frames["mercy"][["ward", "stay", "age"]]
    with pytest.raises(DataError, match=r"another order; list the columns in one order, \[data\] features"):
        fedgraph.run(tables(), sites=frames, out=tmp_path / "runs", progress=False)
    run = fedgraph.run(tables(features=["age", "ward"]), sites=frames, out=tmp_path / "runs", progress=False)
    assert len(run.clients) == 3
