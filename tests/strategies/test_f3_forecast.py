"""Runs of F3 for forecasts: embeddings of windows go up once, and forecasts come down."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedgraph.clients.app import app as client_app
from fedgraph.data import open_source, parse_data
from fedgraph.fusion.forecasting import graph_weights
from fedgraph.graph import read_graph
from fedgraph.support.errors import FedgraphError
from fedgraph.training import Cohort

ROAD = ("upstream", "middle", "downstream", "far")


@pytest.fixture
def tables(road_tables):
    return road_tables


def errors(folder, metric="mae"):
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    return next(line for line in lines if line.get("phase") != "fusion")["metrics"]["test"][metric]


def test_a_learned_graph_tells_what_comes_down_the_road(tables, run_experiment):
    folder = run_experiment(tables)
    summary = folder.summary()
    test = summary["metrics"]["test"]
    assert test["mae"]["mean"] < 0.6 * test["mae-local"]["mean"]
    assert summary["exchanges"] == 3
    learned = read_graph(folder.path / "learned-graph.npz", names=sorted(ROAD))
    mixing = learned.dense()
    for sensor, before in zip(ROAD[1:], ROAD[:-1], strict=True):
        row = mixing[learned.names.index(sensor)].clone()
        row[learned.names.index(sensor)] = 0
        assert learned.names[int(row.argmax())] == before
    torch.testing.assert_close(mixing.sum(1), torch.ones(4))
    tables["f3-forecast"]["graph"] = "none"
    alone = run_experiment(tables).summary()["metrics"]["test"]
    assert alone["mae"]["mean"] > 0.9 * alone["mae-local"]["mean"]
    assert alone["mae-local"] == test["mae-local"]


def test_with_a_given_graph_neighbours_alone_are_mixed(tables, run_experiment, tmp_path):
    tables["graph"] = {"source": "file", "path": str(tmp_path / "edges.csv"), "symmetrise": True}
    tables["f3-forecast"] |= {"graph": "given", "mixes": 1}
    folder = run_experiment(tables)
    test = folder.summary()["metrics"]["test"]
    assert test["mae"]["mean"] < 0.8 * test["mae-local"]["mean"]
    assert not (folder.path / "learned-graph.npz").exists()
    assert "is not used" not in str(folder.summary().get("notes"))
    tables["f3-forecast"] |= {"graph": "none", "steps": 2}
    assert "the client graph of [graph] is not used" in str(run_experiment(tables).summary()["notes"])


@pytest.mark.process
def test_private_targets_stay_with_their_client(tables, run_experiment):
    tables["f3-forecast"] |= {"targets": "private", "controls": ["none"], "local-rounds": 4}
    sent = set()

    def client(message, context):
        reply = client_app(message, context)
        sent.update(reply.content.array_records.get("stacked", {}))
        return reply

    folder = run_experiment(tables, nodes=2, client=client)
    assert sent == {f"{part}/{split}" for part in ("starts", "embeddings") for split in ("train", "validation", "test")}
    test = folder.summary()["metrics"]["test"]
    # What comes down the road is in the embedding of the sensor before, and in what the server makes of it.
    assert test["mae"]["mean"] < 0.8 * test["mae-local"]["mean"]
    assert test["mae-no-graph"]["mean"] > 0.9 * test["mae-local"]["mean"]
    assert folder.summary()["exchanges"] == 3
    again = run_experiment(tables, nodes=4).summary()["metrics"]["test"]["mae"]
    assert again == pytest.approx(test["mae"], rel=0.02)


def test_controls_are_measured_beside_on_the_same_encoders(tables, run_experiment, tmp_path):
    tables["graph"] = {"source": "file", "path": str(tmp_path / "edges.csv"), "symmetrise": True}
    tables["f3-forecast"]["controls"] = ["none", "complete", "given", "learned"]
    summary = run_experiment(tables, nodes=2).summary()
    test, told = summary["metrics"]["test"], summary["measured"]
    assert "from the embeddings of all over a learned graph; own model (-local): by" in told
    assert "; no graph: without the embeddings of others; complete graph: from" in told
    assert "; given graph: from the embeddings of all over the given graph" in told
    assert {name.removeprefix("mae") for name in test if name.startswith("mae") and "min" not in name} == {
        "", "-local", "-no-graph", "-complete-graph", "-given-graph",
    }  # fmt: skip
    assert test["mae"]["mean"] < test["mae-given-graph"]["mean"] < 0.8 * test["mae-no-graph"]["mean"]
    tables["f3-forecast"] |= {"graph": "none", "controls": []}
    alone = run_experiment(tables, nodes=2).summary()["metrics"]["test"]
    assert alone["mae"] == test["mae-no-graph"]


def test_a_permuted_graph_is_the_same_graph_between_other_clients():
    given = torch.rand(5, 5)
    permuted = graph_weights("permuted", given, 5, seed=0)
    assert not torch.equal(permuted, given)
    assert sorted(permuted.flatten().tolist()) == sorted(given.flatten().tolist())
    assert sorted(permuted.diagonal().tolist()) == sorted(given.diagonal().tolist())
    assert torch.equal(permuted, graph_weights("permuted", given, 5, seed=0))


@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_the_models_of_another_run_can_be_the_encoders(tables, run_experiment, method):
    first = run_experiment({**tables, "experiment": {"name": "before", "method": method, "rounds": 2}}, nodes=2)
    before = first.summary()["metrics"]["test"]["mae"]
    tables["f3-forecast"]["encoders"] = str(first.path)
    folder = run_experiment(tables, nodes=2)
    test = folder.summary()["metrics"]["test"]
    # They are frozen, and so are as good as they were.
    assert test["mae-local"]["mean"] == pytest.approx(before["mean"], rel=1e-5)
    assert test["mae"]["mean"] < 0.7 * before["mean"]
    tables["data"]["shares"] = [0.6, 0.2, 0.2]
    with pytest.raises(FedgraphError, match=r"\[data\]: shares"):
        run_experiment(tables)
    del tables["data"]["shares"]
    tables["model"]["hidden"] = 8
    with pytest.raises(FedgraphError, match=r"does not fit \[model\]"):
        run_experiment(tables)
    first.models.unlink()
    with pytest.raises(FedgraphError, match="left no models"):
        run_experiment(tables)


@pytest.mark.parametrize("method", ["f3-forecast", "simple-forecast", "local"])
def test_missing_readings_can_count_beside(tables, run_experiment, method):
    tables["experiment"]["method"] = method
    # All that is missing is in the test part: 10 of the 90 readings that its windows forecast.
    tables["data"]["missing"] = 1234.0
    series = dict(np.load(tables["data"]["path"]))
    series["data"] = np.nan_to_num(series["data"], nan=50.0)
    series["data"][850:860, 1] = 1234.0
    np.savez(tables["data"]["path"], **series)
    tables["simple-forecast"] = {"forecaster": "last-reading"}
    tables["evaluation"]["missing-as"] = 1234.0
    metrics = run_experiment(tables, nodes=2).summary()["per_client"]
    assert metrics["validation"]["mae-unmasked"] == pytest.approx(metrics["validation"]["mae"])
    test = metrics["test"]
    assert test["mae-unmasked"]["upstream"] == pytest.approx(test["mae"]["upstream"])
    share = 30 / (82 * 3)
    expected = share * (1234 - 55) + (1 - share) * test["mae"]["middle"]
    assert test["mae-unmasked"]["middle"] == pytest.approx(expected, rel=0.03)
    assert test["mae-15min-unmasked"]["middle"] > 50
    assert "mape-unmasked" not in test


@pytest.mark.parametrize("method", ["f3-forecast", "simple-forecast"])
def test_a_split_without_windows_has_no_errors(tables, run_experiment, method):
    tables["data"]["shares"] = [0.7, 0.3, 0.0]
    tables["simple-forecast"] = {"forecaster": "trees"}
    tables["experiment"]["method"] = method
    metrics = run_experiment(tables).summary()["metrics"]
    assert metrics["test"]["mae"]["mean"] is None
    assert metrics["validation"]["mae"]["mean"] < 10


def test_moments_survive_from_round_to_round_if_they_are_to(tables, run_experiment):
    tables["f3-forecast"]["steps"] = 1
    found = {}
    for keep in (False, True):
        tables["train"]["keep-optimizer"] = keep
        found[keep] = run_experiment(tables, nodes=1).summary()["metrics"]["test"]["mae-local"]["mean"]
    assert found[True] != found[False]


def test_a_client_keeps_the_last_finite_encoder(tables, run_experiment, monkeypatch):
    trained = []
    train = Cohort.train

    def diverging(self, models, number, *rest):
        result = train(self, models, number, *rest)
        trained.append(number)
        return replace(result, parameters=result.parameters * torch.nan) if number > 1 else result

    monkeypatch.setattr(Cohort, "train", diverging)
    summary = run_experiment(tables, nodes=1).summary()
    assert trained == [1, 2]
    assert summary["metrics"]["test"]["mae-local"]["mean"] < 10


def test_readings_profiles_and_test_targets_stay_with_their_client(tables, run_experiment, data_dir):
    tables["data"]["covariates"] = ["weekly-profile"]
    sent = {}

    def client(message, context):
        reply = client_app(message, context)
        for name, array in reply.content.array_records.get("stacked", {}).items():
            sent.setdefault(name, []).append(array.numpy())
        return reply

    run_experiment(tables, nodes=1, client=client)
    assert set(sent) == {
        *(f"{part}/{split}" for part in ("starts", "embeddings") for split in ("train", "validation", "test")),
        *(f"{part}/{split}" for part in ("targets", "known") for split in ("train", "validation")),
    }
    data = open_source(parse_data(tables["data"]), data_dir).load(sorted(ROAD))
    split = data.splits["test"]
    batch = split.batch(torch.arange(int(split.num_examples[0])).expand(4, -1))
    private = [batch.targets, batch.inputs[..., 0], batch.inputs[..., 1], batch.inputs[..., 2]]
    values = np.unique(np.concatenate([part.numpy().ravel() for part in private]).round(4))
    values = values[np.abs(values) > 1e-3]
    for name, arrays in sent.items():
        told = np.concatenate([array.astype(np.float64).ravel() for array in arrays]).round(4)
        shared = np.isin(values, told).mean()
        # Rounded numbers meet by chance.
        assert shared < (0.5 if name.startswith("embeddings") else 0.2), name
    scales = {*np.round(data.mean.numpy(), 4).tolist(), *np.round(data.std.numpy(), 4).tolist()}
    everything = {round(float(value), 4) for arrays in sent.values() for array in arrays for value in array.ravel()}
    assert not scales & everything


def test_forecasts_over_other_graphs_than_those_asked_for_are_not_measured(tables, run_experiment):
    tables["f3-forecast"]["controls"] = ["none"]

    def client(message, context):
        stacked = message.content.array_records.get("stacked", {})
        if "forecasts-no-graph/test" in stacked:
            stacked["forecasts-17/test"] = stacked["forecasts-no-graph/test"]
        return client_app(message, context)

    with pytest.raises(FedgraphError, match="forecasts over graphs for which the method does not ask: '-17'"):
        run_experiment(tables, nodes=1, client=client)


def training_of(partition):
    """Messages that have the clients of a partition train."""
    return lambda message, context: (
        context.node_config["partition-id"] == partition and message.metadata.message_type == "train"
    )


def test_a_client_that_fails_is_left_out_if_that_is_tolerated(tables, run_experiment, caplog, spoiling):
    client = spoiling(training_of(3), "the disk is full")
    with pytest.raises(FedgraphError, match='far: the disk is full|the disk is full.*on-missing = "skip"'):
        run_experiment(tables, nodes=4, client=client)
    tables["experiment"]["on-missing"] = "skip"
    summary = run_experiment(tables, nodes=4, client=client).summary()
    assert summary["clients"] == 3
    assert "nothing usable from client far: the disk is full" in caplog.text


def test_a_client_whose_embeddings_are_no_numbers_is_left_out(tables, run_experiment, caplog, spoiling):
    tables["experiment"]["on-missing"] = "skip"

    def change(content):
        record = content.array_records["stacked"]
        spoiled = record["embeddings/train"].numpy().copy()
        spoiled[0, 0, 0] = np.nan
        record["embeddings/train"] = type(record["embeddings/train"])(spoiled)
        return content

    summary = run_experiment(tables, nodes=4, client=spoiling(training_of(0), change)).summary()
    assert summary["clients"] == 3
    assert "nothing usable from client upstream: array 'embeddings/train' holds NaN" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"f3-forecast": {"controls": ["permuted"]}}, r"needs a client graph: set source of \[graph\]"),
        ({"f3-forecast": {"targets": "private", "encoders": "runs/x"}}, "let clients train their own"),
        ({"data": {"scaling": "pooled"}}, "f3-forecast scales"),
        ({"data": {"set": "digits", "clients": 3}, "model": {"name": "mlp"}}, "forecasts time series"),
        ({"f3-forecast": {"local-rounds": 0}}, "local-rounds"),
    ],
)
def test_what_does_not_fit_is_refused(tables, run_experiment, change, message):
    for table, keys in change.items():
        tables[table] = keys if "set" in keys or "name" in keys else tables[table] | keys
    with pytest.raises(FedgraphError, match=message):
        run_experiment(tables)


def test_cold_and_warm_clients_are_told_apart(tables, run_experiment):
    tables["data"] |= {"cold-clients": ["far"], "cold-steps": 60, "cold-trains": True}
    tables["f3-forecast"] |= {"local-rounds": 1, "steps": 2}
    summary = run_experiment(tables).summary()
    assert summary["groups"] == {name: "cold" if name == "far" else "warm" for name in sorted(ROAD)}
    cold = summary["per_group"]["test"]["cold"]["mae-local"]["mean"]
    assert cold == summary["per_client"]["test"]["mae-local"]["far"]
