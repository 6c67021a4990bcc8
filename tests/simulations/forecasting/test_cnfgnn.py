"""Runs of CNFGNN: models are averaged, hidden states go up, graph embeddings come down, and gradients go up."""

import json

import numpy as np
import pytest
import torch
from flwr.app import Message

import fedgraph
from fedgraph.clients.app import app as client_app
from fedgraph.data import open_source, parse_data
from fedgraph.messages import error_content
from fedgraph.runs.folder import RunFolder
from fedgraph.support.errors import FedgraphError, RunError


@pytest.fixture
def tables(road_tables, tmp_path):
    del road_tables["experiment"]["method"]
    road_tables["experiment"] |= {"strategy": "fedgraph.simulations.forecasting.cnfgnn:CNFGNN", "rounds": 3}
    road_tables["train"] |= {"local-steps": 10, "workers": 1}
    # A sensor listens to the one before it.
    (tmp_path / "listens.csv").write_text("from,to,weight\nmiddle,upstream,1\ndownstream,middle,1\nfar,downstream,1\n")
    road_tables["graph"] = {"source": "file", "path": str(tmp_path / "listens.csv"), "directed": True}
    road_tables["CNFGNN"] = {"windows": 64, "server-steps": 3, "server-batch-size": 16, "hidden": 8}
    return road_tables


def errors(folder, metric="mae"):
    return folder.summary()["metrics"]["test"][metric]["mean"]


def test_the_graph_network_tells_what_comes_down_the_road(tables, run_experiment):
    tables["experiment"]["rounds"] = 6
    tables["train"]["local-steps"] = 30
    tables["evaluation"]["every"] = 6
    tables["CNFGNN"] |= {"windows": 500, "server-steps": 20, "server-learning-rate": 0.02}
    folder = run_experiment(tables)
    summary = folder.summary()
    # The opening query and one for the starts of windows, windows of the first round, and two to evaluate.
    assert summary["exchanges"] == 3 + 6 * (2 + 20) + 2
    assert summary["parameters_at_server"] > 100
    tables["experiment"] = {**tables["experiment"], "method": "local"}
    del tables["experiment"]["strategy"], tables["CNFGNN"]
    assert errors(folder) < 0.9 * errors(run_experiment(tables))


def test_results_do_not_depend_on_packing(tables, run_experiment):
    found = [run_experiment(tables, nodes=nodes).summary() for nodes in (1, 4)]
    first, second = (one["per_client"]["test"]["mae"] for one in found)
    assert first == pytest.approx(second, rel=1e-4)
    assert found[0]["exchanges"] == found[1]["exchanges"]
    assert run_experiment(tables, nodes=4).summary()["weights_sha256"] == found[1]["weights_sha256"]


def test_a_clients_model_is_no_module_without_the_server(tables, run_experiment):
    tables["experiment"]["rounds"] = 1
    run = fedgraph.load_run(run_experiment(tables).path)
    with pytest.raises(RunError, match="no model to load as a module: a client forecasts with what the graph network"):
        run.module("middle")
    assert all(torch.is_tensor(value) for value in run.models["middle"].values())


def test_a_resumed_run_ends_with_the_same_weights(tables, run_experiment, tmp_path):
    whole = run_experiment(tables).summary()
    seen = []

    def lost(message, context):
        seen.append(message.content["config"].get("server-round"))
        reply = client_app(message, context)
        # Its graph network has taken one of the steps of the third round.
        if seen.count(3) > 2 * 3:
            return Message(error_content("lost"), reply_to=message)
        return reply

    with pytest.raises(RunError, match="lost"):
        run_experiment(tables, client=lost)
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if not (path / "summary.json").exists())
    again = run_experiment(tables, folder=RunFolder.open(folder)).summary()
    assert again["weights_sha256"] == whole["weights_sha256"]
    assert again["per_client"] == whole["per_client"]


def test_no_reading_is_sent(tables, run_experiment, data_dir):
    tables["data"]["covariates"] = ["weekly-profile"]
    sent = {}

    def client(message, context):
        reply = client_app(message, context)
        for name, array in reply.content.array_records.get("stacked", {}).items():
            sent.setdefault(name, []).append(array.numpy())
        return reply

    run_experiment(tables, nodes=2, client=client)
    splits = ("train", "validation", "test")
    assert set(sent) == {
        "parameters", "gradients", *(f"starts/{split}" for split in splits), *(f"hidden/{split}" for split in splits)
    }  # fmt: skip
    data = open_source(parse_data(tables["data"]), data_dir).load(sorted(tables["data"]["names"]))
    split = data.splits["train"]
    batch = split.batch(torch.arange(int(split.num_examples[0])).expand(4, -1))
    values = np.unique(torch.cat([batch.targets.flatten(), batch.inputs.flatten()]).numpy().round(5))
    values = values[np.abs(values) > 1e-3]
    assert len(values) > 2000
    for name, arrays in sent.items():
        told = np.concatenate([array.astype(np.float64).ravel() for array in arrays]).round(5)
        # Rounded numbers meet by chance.
        assert np.isin(values, told).mean() < 0.1, name


def test_each_round_has_other_windows_that_are_the_same_for_all(tables, run_experiment):
    tables["graph"] = {"source": "none"}
    asked = []

    def client(message, context):
        stacked = message.content.array_records.get("stacked", {})
        if "windows/train" in stacked and "graph/train" not in stacked:
            asked.append(stacked["windows/train"].numpy())
        return client_app(message, context)

    run_experiment(tables, nodes=1, client=client)
    assert [len(np.unique(one, axis=0)) for one in asked] == [1] * 4
    assert len({tuple(sorted(one[0])) for one in asked}) == 4
    assert all(len(set(one[0])) == 64 for one in asked)


def test_a_client_without_an_answer_is_left_out_if_that_is_tolerated(tables, run_experiment):
    def client(message, context):
        reply = client_app(message, context)
        config = message.content["config"]
        if context.node_config["partition-id"] == 3 and config.get("server-round", 0) >= 2:
            return Message(error_content("the disk is full"), reply_to=message)
        return reply

    with pytest.raises(FedgraphError, match="the disk is full"):
        run_experiment(tables, nodes=4, client=client)
    tables["experiment"]["on-missing"] = "skip"
    folder = run_experiment(tables, nodes=4, client=client)
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert len([line for line in lines if line.get("phase") == "training"]) == 3
    measured = folder.summary()["per_client"]["test"]["mae"]
    assert [name for name, value in measured.items() if value is None] == ["far"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"name": "mlp"}}, "a hidden state to be sent is that of a recurrent model"),
        ({"data": {"set": "digits", "clients": 3}, "model": {"name": "mlp"}, "graph": {}}, "forecasts time series"),
        ({"CNFGNN": {"layers": 0}}, "layers"),
        ({"evaluation": {"monitor": "validation/mae", "patience": 2}}, "set restore-best = false"),
    ],
)
def test_what_does_not_fit_is_refused(tables, run_experiment, change, message):
    tables |= change
    with pytest.raises(FedgraphError, match=message):
        run_experiment(tables)
