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
from fedgraph.data import open_source, parse_data
from fedgraph.experiment.experiment import load_experiment
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


def test_unknown_key_of_the_method_and_of_the_model(digits_tables, run_experiment):
    with pytest.raises(ExperimentError, match=r"\[sfl\] .*'hop'; .*hops"):
        run_experiment({**digits_tables, "sfl": {"hop": 1}})
    with pytest.raises(FedgraphError, match=r"\[model\] .*'hiden'; .*hidden"):
        run_experiment({**digits_tables, "model": {"name": "mlp", "hiden": [3]}})


def test_file_that_is_no_toml_and_no_file(tmp_path):
    (tmp_path / "x.toml").write_text("[experiment\n")
    with pytest.raises(ExperimentError, match=r"x\.toml is not a TOML file"):
        load_experiment(tmp_path / "x.toml")
    with pytest.raises(ExperimentError, match="no experiment file 'nowhere.toml'"):
        load_experiment("nowhere.toml")
    with pytest.raises(ExperimentError, match="by path or by name .*3$"):
        load_experiment(3)


def test_unknown_client_name_in_the_graph(tmp_path, run_experiment):
    write_series(tmp_path / "s.npz")
    (tmp_path / "g.csv").write_text("from,to,weight\na,b,1\nb,zebra,1\na,c,1\n")
    with pytest.raises(GraphError, match="zebra"):
        run_experiment(series_tables(tmp_path / "s.npz", source="file", path=str(tmp_path / "g.csv")))


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
    with pytest.raises(RunError, match="which clients failed"):
        run_experiment(tables, client=spoiled(absurd))


@pytest.mark.parametrize("theirs", ["clients", "strategies", "simulations"])
def test_folders_and_modules_of_users_may_be_called_as_ours(tmp_path, theirs):
    """As packages of the index are, too: nothing but ``fedgraph`` lies at the top level."""
    (tmp_path / f"{theirs}.py").write_text("raise RuntimeError('mine')\n")
    command = [sys.executable, "-m", "fedgraph", "run", "--quiet", "--set", "experiment.rounds=1", "--out", "runs"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def test_a_path_from_before_the_package_had_all_is_explained():
    with pytest.raises(ExperimentError, match=r"'fedgraph\.strategies\.sfl'"):
        plugins.load_object("strategies.sfl:Sfl", "[experiment] strategy", plugins.a_class())


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
    assert f"This runs the fedgraph of {ours}, not that of {other}: " in found.stderr
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
    with pytest.raises(IdentityError, match="steps 99"):
        run_experiment(tables)


NOISE = {"clip-norm": 1.0, "noise-multiplier": 2.0, "delta": 1e-4}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"alignment": "hard", "aligned-size": 3}, "aligned-size = 3, but alignment = 'hard'"),
        ({"alignment": "none", "aligned-size": 3}, "aligned-size = 3, but alignment = 'none'"),
        ({"graph": "given"}, r"'given' .*\[graph\]"),
        ({"reference": "Poisson"}, "Poisson"),
        ({"reference-options": {"rate": 1.0}}, "reference-options .*rate"),
        ({"device": "cuda"}, "no CUDA device"),
        ({"fusion": "vote", "noise": NOISE}, "fusion = 'vote' .*noise"),
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


@pytest.mark.parametrize(
    "data",
    [
        {"set": "table", "label": "ill", "client-column": "site"},
        {"set": "table", "label": "dose", "task": "regression", "client-column": "site"},
        {"set": "mixed-table", "client-column": "site"},
        {"set": "table-columns", "label": "ill", "key-column": "key", "owners": {"a": ["dose"], "b": ["age"]}},
        {"set": "series", "input-steps": 2, "output-steps": 1, "without": ["site", "ill", "key"]},
    ],
    ids=["classes", "numbers", "mixed", "owners", "series"],
)
def test_no_cell_of_a_file_is_in_what_an_error_tells_the_server(data, tmp_path):
    head, file, told = ["key", "time", "site", "dose", "age", "ill"], tmp_path / "own.csv", list[str]()
    rows = [
        [f"k{row}", f"2024-01-01 {row // 4:02d}:{15 * (row % 4):02d}", "ab"[row % 2], f"{row * 7 % 31}.5",
         f"{row * 3 % 17}", f"{row % 2}"]
        for row in range(60)
    ]  # fmt: skip
    for column in set(head) - {"site"}:
        for cell in ("SECRET", "SECRET,9", '"SECRET', "<7712345", "77.123,5", "7712345-13-45", "77123451e999"):
            spoilt = [list(row) for row in rows]
            spoilt[40][head.index(column)] = cell
            file.write_text("\n".join(",".join(row) for row in [head, *spoilt]) + "\n")
            try:
                source = open_source(parse_data({**data, "path": str(file)}), tmp_path)
                source.describe()
                load = getattr(source, "load", None) or getattr(source, "load_owners", None) or source.tables
                load(source.client_names())
            except FedgraphError as error:
                told.append(error.without_values)
    assert len(told) > 10
    assert not [text for text in told if "SECRET" in text or "7712345" in text]
