"""What goes wrong at the start of a run, and what the person who started it is told."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message

import fedgraph
from fedgraph.clients.app import app as client_app
from fedgraph.experiment.experiment import load_experiment, parse_experiment
from fedgraph.support import plugins
from fedgraph.support.errors import ExperimentError, FedgraphError, GraphError, IdentityError, RunError


def series_tables(file, **graph):
    return {
        "experiment": {"method": "sfl", "rounds": 1},
        "data": {"set": "series", "path": str(file), "missing": 0.0, "input-steps": 3, "output-steps": 2},
        "model": {"name": "gru", "hidden": 4},
        "train": {"local-steps": 1},
        "graph": graph or {"source": "complete"},
    }


def write_series(path, names=("a", "b", "c"), spoil=None):
    values = np.random.default_rng(0).uniform(1, 9, size=(60, len(names))).astype(np.float32)
    if spoil is not None:
        values[:, spoil] = 0.0
    np.savez(path, data=values, names=np.array(names))
    return path


@pytest.mark.parametrize(
    ("table", "key", "message"),
    [
        (
            "train",
            "learning-rat",
            r"\[train\] has no key 'learning-rat'; known keys: .*learning-rate.*; did you mean 'learning-rate' for",
        ),
        ("experiment", "round", r"\[experiment\] has no key 'round'; known keys: .*rounds"),
        ("data", "shard", r"\[data\] \(set digits\) has no key 'shard'; known keys: .*shards"),
        ("graph", "kind", r"\[graph\] has no key 'kind'; known keys: .*source"),
    ],
)
def test_unknown_key(digits_tables, table, key, message):
    digits_tables[table][key] = 1
    with pytest.raises(ExperimentError, match=message):
        parse_experiment(digits_tables)


def test_unknown_key_of_the_method_and_of_the_model(digits_tables, run_experiment):
    with pytest.raises(ExperimentError, match=r"\[sfl\] has no key 'hop'; known keys: alpha, .*hops"):
        run_experiment({**digits_tables, "sfl": {"hop": 1}})
    with pytest.raises(FedgraphError, match=r"\[model\] has no key 'hiden'; known keys: .*hidden"):
        run_experiment({**digits_tables, "model": {"name": "mlp", "hiden": [3]}})


def test_unknown_table_and_unknown_method(digits_tables):
    with pytest.raises(
        ExperimentError,
        match=r"no table \[trian\]; known tables: experiment, data, model, train.*; did you mean 'train' for 'trian'",
    ):
        parse_experiment({**digits_tables, "trian": {}})
    with pytest.raises(ExperimentError, match="method 'slf' is not a built-in; known: .*fedavg, .*local, .*sfl"):
        parse_experiment({**digits_tables, "experiment": {"method": "slf"}})


def test_file_that_is_no_toml_and_no_file(tmp_path):
    (tmp_path / "x.toml").write_text("[experiment\n")
    with pytest.raises(ExperimentError, match=r"x\.toml is not a TOML file"):
        load_experiment(tmp_path / "x.toml")
    with pytest.raises(ExperimentError, match="no experiment file 'nowhere.toml'"):
        load_experiment("nowhere.toml")
    with pytest.raises(ExperimentError, match="an experiment is a file, by path or by name .*, not 3"):
        load_experiment(3)


def test_overrides(digits_tables, tmp_path):
    import tomli_w

    (tmp_path / "x.toml").write_text(tomli_w.dumps(digits_tables))
    experiment = load_experiment(
        tmp_path / "x.toml", ["train.learning-rate=0.05", "experiment.name=other", "sfl.hops=2"]
    )
    assert (experiment.train.learning_rate, experiment.experiment.name) == (0.05, "other")
    assert experiment.method_table == {"hops": 2}
    assert load_experiment(tmp_path / "x.toml", "experiment.rounds=5").experiment.rounds == 5
    with pytest.raises(ExperimentError, match="is not of the form table.key=value"):
        load_experiment(tmp_path / "x.toml", ["rounds=3"])


def test_dotted_path_that_leads_nowhere(digits_tables, run_experiment):
    for path, message in (
        ("no_such_package:X", "cannot import 'no_such_package'.*PYTHONPATH"),
        ("fedgraph.strategies.sfl:Sfl", "has no 'Sfl'"),
        ("fedgraph.strategies.sfl", "is not a dotted path"),
        ("fedgraph.federation.grids.in_process:LocalGrid", "is not a Flower Strategy class"),
    ):
        with pytest.raises(ExperimentError, match=message):
            run_experiment({**digits_tables, "experiment": {"strategy": path}})


def test_unknown_client_name_in_the_graph(tmp_path, run_experiment):
    write_series(tmp_path / "s.npz")
    (tmp_path / "g.csv").write_text("from,to,weight\na,b,1\nb,zebra,1\na,c,1\n")
    with pytest.raises(GraphError, match="zebra"):
        run_experiment(series_tables(tmp_path / "s.npz", source="file", path=str(tmp_path / "g.csv")))


def test_client_that_the_graph_lacks(tmp_path, run_experiment):
    write_series(tmp_path / "s.npz")
    (tmp_path / "g.csv").write_text("from,to,weight\na,b,1\n")
    tables = series_tables(tmp_path / "s.npz", source="file", path=str(tmp_path / "g.csv"))
    with pytest.raises(GraphError, match="c"):
        run_experiment(tables)
    tables["graph"]["missing"] = "isolate"
    assert run_experiment(tables).is_finished


@pytest.mark.parametrize(("weight", "word"), [("-1", "negative"), ("nan", "finite|NaN|nan")])
def test_bad_weights(tmp_path, run_experiment, weight, word):
    write_series(tmp_path / "s.npz")
    (tmp_path / "g.csv").write_text(f"from,to,weight\na,b,{weight}\na,c,1\n")
    with pytest.raises(GraphError, match=word):
        run_experiment(series_tables(tmp_path / "s.npz", source="file", path=str(tmp_path / "g.csv")))


def test_asymmetric_weights_where_symmetric_ones_are_asked_for(tmp_path, run_experiment):
    write_series(tmp_path / "s.npz")
    (tmp_path / "g.csv").write_text(",a,b,c\na,0,1,0\nb,0.5,0,1\nc,0,1,0\n")
    tables = series_tables(tmp_path / "s.npz", source="file", path=str(tmp_path / "g.csv"), directed=False)
    with pytest.raises(GraphError, match=r"(?s)a.*b.*symmetris"):
        run_experiment(tables)


def test_all_missing_sensor(tmp_path, run_experiment):
    write_series(tmp_path / "s.npz", spoil=1)
    with pytest.raises(IdentityError, match=r"^s\.npz: no valid reading .* b .*missing"):
        run_experiment(series_tables(tmp_path / "s.npz"))


def test_empty_client(tmp_path, run_experiment):
    rows = ["x,label,site", *(f"{i},{i % 2},one" for i in range(30)), "1,,two"]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    tables = {
        "experiment": {"method": "local", "rounds": 1},
        "data": {"set": "table", "path": str(tmp_path / "t.csv"), "label": "label", "client-column": "site"},
        "model": {"name": "mlp", "hidden": [4]},
    }
    names = run_experiment(tables, node_configs=[{"clients": "one"}])
    assert names.is_finished
    with pytest.raises(FedgraphError, match="two"):
        run_experiment(tables, node_configs=[{"clients": "one"}, {"clients": "two"}])


def test_client_hosted_twice(digits_tables, run_experiment):
    configs = [{"clients": "client-0,client-1"}, {"clients": "client-1,client-2"}]
    with pytest.raises(IdentityError, match="client 'client-1' is hosted twice"):
        run_experiment(digits_tables, node_configs=configs)


def test_node_with_no_identity(digits_tables, run_experiment):
    with pytest.raises(IdentityError, match="does not know which clients it hosts: .*node config key 'clients'"):
        run_experiment(digits_tables, node_configs=[{"data-dir": "x"}])


def test_partition_hosted_by_nobody(digits_tables, run_experiment):
    with pytest.raises(IdentityError, match="'partition-id' 1 of 3 is hosted by nobody"):
        run_experiment(
            digits_tables,
            node_configs=[{"partition-id": 0, "num-partitions": 3}, {"partition-id": 2, "num-partitions": 3}],
        )


def test_too_few_clients(digits_tables, run_experiment):
    digits_tables["experiment"] |= {"min-clients": 7}
    with pytest.raises(IdentityError, match="only 6 of at least 7 clients are hosted"):
        run_experiment(digits_tables)


def test_unreadable_data_file(tmp_path, run_experiment):
    (tmp_path / "s.npz").write_bytes(b"not a zip")
    with pytest.raises(FedgraphError, match=r"s\.npz"):
        run_experiment(series_tables(tmp_path / "s.npz"))


def test_missing_data_file_names_file_address_and_place(tmp_path, run_experiment, monkeypatch):
    tables = series_tables("x")
    tables["data"] = {"set": "metr-la"}
    configs = [{"partition-id": 0, "num-partitions": 1, "data-dir": str(tmp_path)}]
    with pytest.raises(FedgraphError) as raised:
        run_experiment(tables, node_configs=configs)
    text = str(raised.value)
    assert "metr-la.h5" in text
    assert "http" in text
    assert str(tmp_path / "metr-la") in text


def spoiled(spoil, at_round=1):
    """The ClientApp, with the replies of node 0 spoiled from a round on."""

    def serve(message: Message, context):
        reply = client_app(message, context)
        config = message.content["config"]
        if message.metadata.message_type == "train" and context.node_config.get("partition-id") == 0:
            spoil(reply, int(config["server-round"]) - at_round)
        return reply

    return serve


def put_nan(reply, rounds):
    from flwr.app import Array

    if rounds >= 0:
        record = reply.content["stacked"]
        values = record["parameters"].numpy().copy()
        values[0] = np.nan
        record["parameters"] = Array(values)


def put_wrong_shape(reply, rounds):
    from flwr.app import Array

    if rounds >= 0:
        reply.content["stacked"]["parameters"] = Array(np.zeros((3, 2), np.float32))


def last_line(folder, phase="training"):
    lines = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["phase"] == phase][-1]


def test_nan_reply_costs_one_client_its_part(digits_tables, run_experiment):
    digits_tables["experiment"] |= {"on-missing": "skip", "rounds": 2}
    folder = run_experiment(digits_tables, client=spoiled(put_nan))
    assert list(last_line(folder)["absent"]) == ["client-0"]
    assert last_line(folder)["absent"]["client-0"].startswith("array 'parameters' holds NaN or infinite values")
    assert folder.is_finished
    assert "no usable reply from client-0" in (folder.path / "logs" / "run.log").read_text()


def test_wrong_shape_costs_the_whole_node_its_part(digits_tables, run_experiment):
    digits_tables["experiment"] |= {"on-missing": "keep-last", "rounds": 3}
    folder = run_experiment(digits_tables, client=spoiled(put_wrong_shape, at_round=2))
    absent = last_line(folder)["absent"]
    assert set(absent) == {"client-0", "client-1", "client-2"}
    assert all("has the shape (3, 2)" in reason for reason in absent.values())


def test_bad_reply_ends_the_run_by_default(digits_tables, run_experiment):
    with pytest.raises(RunError, match="round 1: no usable reply from 1 clients .*client-0: array.*on-missing"):
        run_experiment(digits_tables, client=spoiled(put_nan))


def test_fewer_clients_than_allowed_end_the_run(digits_tables, run_experiment):
    digits_tables["experiment"] |= {"on-missing": "skip", "min-clients": 4}
    with pytest.raises(RunError, match="only 3 of at least 4 clients"):
        run_experiment(digits_tables, client=spoiled(put_wrong_shape))


def test_bad_stock_reply_never_reaches_the_average(digits_tables, run_experiment):
    from flwr.app import Array

    def put_nan_everywhere(reply, rounds):
        record = reply.content.array_records.get("shared", {})
        for name in record:
            record[name] = Array(np.full(record[name].shape, np.nan, np.float32))

    tables = {**digits_tables, "experiment": {"method": "fedavg", "rounds": 2, "on-missing": "skip"}}
    folder = run_experiment(tables, client=spoiled(put_nan_everywhere))
    assert set(last_line(folder)["absent"]) == {"client-0", "client-1", "client-2"}
    summary = json.loads((folder.path / "summary.json").read_text())
    assert summary["metrics"]["test"]["loss"]["mean"] is not None


def test_a_node_cannot_say_how_much_its_clients_weigh(digits_tables, run_experiment):
    """The server counts the examples that it was told at the beginning."""

    def cheat(reply, rounds):
        reply.content.metric_records["metrics"]["num-examples"] = [1e9] * 3

    tables = {**digits_tables, "experiment": {"method": "fedavg", "rounds": 1}}
    usual, cheated = (run_experiment(tables, **more).summary() for more in ({}, {"client": spoiled(cheat)}))
    assert cheated["weights_sha256"] == usual["weights_sha256"]


def test_failures_that_a_node_tells_are_read_with_care(digits_tables, run_experiment):
    def absurd(reply, rounds):
        reply.content.config_records["config"]["failed"] = "[1]"

    tables = {**digits_tables, "experiment": {"method": "fedavg", "rounds": 1}}
    with pytest.raises(RunError, match="the reply does not say which clients failed"):
        run_experiment(tables, client=spoiled(absurd))


def test_pickle_that_executes_code_is_not_executed(tmp_path, run_experiment):
    import os
    import pickle

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    (tmp_path / "g.pkl").write_bytes(pickle.dumps([["a"], {"a": 0}, Evil()]))
    write_series(tmp_path / "s.npz")
    with pytest.raises(GraphError, match="mkdir"):
        run_experiment(series_tables(tmp_path / "s.npz", source="file", path=str(tmp_path / "g.pkl")))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("theirs", ["clients", "strategies", "simulations"])
def test_folders_and_modules_of_users_may_be_called_as_ours(tmp_path, theirs):
    """As packages of the index are, too: nothing but ``fedgraph`` lies at the top level."""
    (tmp_path / f"{theirs}.py").write_text("raise RuntimeError('mine')\n")
    command = [sys.executable, "-m", "fedgraph", "run", "--quiet", "--set", "experiment.rounds=1", "--out", "runs"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def test_a_path_from_before_the_package_had_all_is_explained():
    with pytest.raises(ExperimentError, match=r"fedgraph's own module is called 'fedgraph\.strategies\.sfl'"):
        plugins.load_object("strategies.sfl:Sfl", "[experiment] strategy")


def checkout(folder, *packages):
    for name in packages:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("")
    return folder


@pytest.mark.process
@pytest.mark.parametrize("within", ["", "docs/guides"])
def test_a_checkout_whose_code_does_not_run_is_named(tmp_path, within):
    """As when one stands in it, and another one is installed."""
    other = checkout(tmp_path / "other", "strategies", "clients", "fedgraph")
    (other / "docs" / "guides").mkdir(parents=True)
    ours = Path(fedgraph.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(ours), "PYTHONSAFEPATH": "1"}
    found = subprocess.run(
        [sys.executable, "-m", "fedgraph", "keys", "output"],
        cwd=other / within, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert f"The code of {ours} runs, and not that of {other}, where fedgraph is too." in found.stderr
    assert "checkpoint-every" in found.stdout


def test_one_checkout_is_no_other(monkeypatch):
    ours = Path(fedgraph.__file__).parents[1]
    monkeypatch.chdir(ours / "tests")
    monkeypatch.setattr("sys.path", [str(ours), "", str(ours / "tests")])
    assert plugins.other_checkouts() == []


def test_client_class_and_horizons_are_checked_before_the_first_round(tmp_path, digits_tables, run_experiment):
    digits_tables["experiment"]["client"] = "nomod:X"
    with pytest.raises(IdentityError, match="cannot import 'nomod'"):
        run_experiment(digits_tables)
    tables = series_tables(write_series(tmp_path / "s.npz"))
    tables["evaluation"] = {"horizons": [99]}
    with pytest.raises(IdentityError, match="steps 99 are beyond forecasts of 2 steps"):
        run_experiment(tables)


def test_client_names_with_commas_stand_in_quotes():
    from fedgraph.federation.identity import hosted_clients

    assert hosted_clients({"clients": '"x,y", z'}, ["x,y", "z"]) == ("x,y", "z")


@pytest.mark.parametrize("method", ["f3", "vfl"])
def test_data_whose_clients_have_the_same_features(digits_tables, run_experiment, method):
    tables = {key: value for key, value in digits_tables.items() if key not in ("sfl", "graph")}
    with pytest.raises(IdentityError, match="^method 'f3' needs clients.*sets that do: .*image-patch"):
        run_experiment({**tables, "experiment": {"method": method}})


def test_a_model_that_a_node_was_to_bring_along(patches_tables, run_experiment, tmp_path):
    def run(**config):
        return run_experiment(patches_tables, node_configs=[{"partition-id": 0, "num-partitions": 1, **config}])

    with pytest.raises(IdentityError, match="entry 'patch-9-9=x' of node config 'models'.* patch-0-0, patch-0-1"):
        run(models="patch-9-9=x")
    with pytest.raises(IdentityError, match=r"^local model .*gone\.pt2"):
        run(model=str(tmp_path / "gone.pt2"))
    with pytest.raises(IdentityError, match="local model 'weights.pkl' is a pickle, which can execute code"):
        run(models="patch-0-1=weights.pkl")


NOISE = {"clip-norm": 1.0, "noise-multiplier": 2.0, "delta": 1e-4}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"alignment": "hard", "aligned-size": 3}, "aligned-size = 3, but alignment = 'hard'"),
        ({"alignment": "none", "aligned-size": 3}, "aligned-size = 3, but alignment = 'none'"),
        ({"graph": "given"}, "requires a client graph: set the table \\[graph\\]"),
        ({"reference": "Poisson"}, "Poisson"),
        ({"reference-options": {"rate": 1.0}}, "reference-options .*rate"),
        ({"device": "cuda"}, "no CUDA device"),
        ({"fusion": "vote", "noise": NOISE}, "fusion = 'vote' needs the predictions.*not sent with noise"),
        ({"fusion": "best-owner", "noise": NOISE}, "fusion = 'best-owner' needs"),
    ],
)
def test_fusion_that_does_not_fit_is_refused_before_owners_are_asked(
    patches_tables, run_experiment, monkeypatch, table, message
):
    def refuse(message, context):
        raise AssertionError("nothing may be asked")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    own = patches_tables.pop("f3") | table
    for method in ("f3",) if "noise" in table else ("f3", "vfl"):
        patches_tables["experiment"]["method"] = method
        with pytest.raises(ExperimentError, match=message):
            run_experiment({**patches_tables, method: own}, client=refuse)
