import json
import math
import sys
import tomllib
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAdam

from fedgraph import load_run
from fedgraph.algorithms.global_model import DittoSettings
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.models.mlp import MLPSettings
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.result_files import load_models
from fedgraph.strategies.app import from_run_config
from fedgraph.support.errors import ExperimentError, IdentityError
from fedgraph.training import TrainSettings

METHODS = ["sfl", "local", "fedavg"]


def summary_of(folder):
    return json.loads((folder.path / "summary.json").read_text())


def lines(folder, phase="evaluation", split="test"):
    read = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    return [
        line
        for line in read
        if (line["phase"] == phase and line["split"] == split) or phase == line["phase"] == "training"
    ]


def models(folder):
    clients, _ = load_models(folder.path / "models.safetensors")
    return torch.stack([torch.cat([tensor.flatten() for tensor in state.values()]) for state in clients.values()])


def of(method, tables, **experiment):
    return {**tables, "experiment": {**tables["experiment"], "method": method, **experiment}}


# ---- what the run config asks for


def test_run_config(tmp_path, digits_tables, monkeypatch):
    (tmp_path / "x.toml").write_text(parse_experiment(digits_tables).as_toml())
    config = {"experiment": str(tmp_path / "x.toml"), "set": "", "data-dir": "", "output-dir": "", "seed": -1}
    monkeypatch.setenv("FEDGRAPH_DATA", "/from/environment")
    experiment, data_dir = from_run_config(config)
    assert (experiment.experiment.seed, experiment.output.dir, str(data_dir)) == (0, "runs", "/from/environment")
    config |= {"set": "experiment.rounds=7 'output.dir=a b'", "data-dir": "/given", "seed": 5}
    experiment, data_dir = from_run_config(config)
    assert (experiment.experiment.rounds, experiment.output.dir, experiment.experiment.seed) == (7, "a b", 5)
    assert str(data_dir) == "/given"
    experiment, _ = from_run_config({**config, "output-dir": "/else where"})
    assert experiment.output.dir == "/else where"


def test_an_experiment_of_the_app_is_that_which_was_submitted(tmp_path, digits_tables, monkeypatch):
    """Wherever the server was started: Flower puts the app's folder on the search path of modules."""
    for place, rounds in (("app", 3), ("server", 4)):
        (tmp_path / place).mkdir()
        tables = of("sfl", digits_tables, rounds=rounds)
        (tmp_path / place / "groups.toml").write_text(parse_experiment(tables).as_toml())
    monkeypatch.chdir(tmp_path / "server")
    config = {"experiment": "groups.toml"}
    assert from_run_config(config)[0].experiment.rounds == 4
    monkeypatch.setattr(sys, "path", [str(tmp_path / "app"), *sys.path])
    assert from_run_config(config)[0].experiment.rounds == 3
    assert from_run_config({"experiment": str(tmp_path / "server" / "groups.toml")})[0].experiment.rounds == 4


def test_a_strategy_that_is_none(digits_tables, run_experiment):
    with pytest.raises(ExperimentError, match="is not a Flower Strategy class"):
        run_experiment(of(None, digits_tables, strategy="torch.nn:Linear"))


# ---- packing


def write_table(path, sites):
    random = np.random.default_rng(0)
    rows = ["x,y,label,site"]
    for number, site in enumerate(sites):
        for _ in range(30 + number):
            x, y = random.normal(size=2)
            rows.append(f'{x:.4f},{y:.4f},{int(x > y)},"{site}"')
    path.write_text("\n".join(rows) + "\n")


def test_clients_with_odd_names(tmp_path, run_experiment):
    sites = ["St. Olav's / north", "Ärzte-haus", "zz", "A b", "10", "9"]
    write_table(tmp_path / "t.csv", sites)
    tables = {
        "experiment": {"method": "sfl", "rounds": 2},
        "data": {"set": "table", "path": str(tmp_path / "t.csv"), "label": "label", "client-column": "site"},
        "model": {"name": "mlp", "hidden": [4]},
        "train": {"momentum": 0.5, "keep-optimizer": True},
        "graph": {"source": "complete"},
    }
    by_name = [{"clients": "zz,St. Olav's / north"}, {"clients": " 9 ,Ärzte-haus,10"}, {"clients": "A b"}]
    one, several = run_experiment(tables, nodes=1), run_experiment(tables, node_configs=by_name)
    assert list(summary_of(several)["per_client"]["test"]["loss"]) == sorted(sites)
    torch.testing.assert_close(models(several), models(one), rtol=1e-5, atol=1e-6)


# ---- rounds, splits, evaluation


@pytest.mark.parametrize(("method", "exchanges"), [("sfl", 1 + 2 + 1), ("local", 1 + 2 + 1), ("fedavg", 1 + 2 + 2)])
def test_exchanges(digits_tables, run_experiment, method, exchanges):
    assert summary_of(run_experiment(of(method, digits_tables)))["exchanges"] == exchanges


HEADER = 128
"""Bytes that Flower's encoding puts before the numbers of an array."""


@pytest.mark.parametrize(("nodes", "lambda_global"), [(1, 0.1), (2, 0.1), (2, 0.0)])
def test_bytes_are_those_of_the_arrays_that_were_sent(digits_tables, run_experiment, nodes, lambda_global):
    digits_tables["sfl"] = {"lambda-global": lambda_global}
    folder = run_experiment(of("sfl", digits_tables, rounds=3), nodes=nodes)
    summary, parameters = summary_of(folder), models(folder).shape[1]
    clients, numbers = 6, 4 * parameters
    # Every client's own model and, to each node that uses it, the read-out; the last exchange only measures.
    readout = HEADER + numbers if lambda_global else 0
    round_down = clients * numbers + nodes * (HEADER + readout)
    round_up = clients * numbers + nodes * HEADER
    label_counts = clients * 10 * 8 + nodes * HEADER
    assert (summary["bytes_down"], summary["bytes_up"]) == (4 * round_down, label_counts + 3 * round_up)
    recorded = [(line["bytes_down"], line["bytes_up"]) for line in lines(folder, phase="training")]
    assert recorded == [(round_down, round_up)] * 3


@pytest.mark.parametrize("method", ["fedavg", "sfl", "scaffold", "fedper"])
def test_bytes_of_a_client_are_those_with_a_node_to_itself_however_clients_are_packed(
    digits_tables, run_experiment, method
):
    """All but the 128 bytes that stand before the numbers of an array, once for a node."""
    digits_tables["model"]["hidden"] = [64]
    packed, apart = (summary_of(run_experiment(of(method, digits_tables), nodes=nodes)) for nodes in (2, 6))
    assert (packed["nodes"], apart["nodes"]) == (2, 6)
    for way in ("down", "up"):
        assert apart[f"bytes_{way}_per_client"] == pytest.approx(apart[f"bytes_{way}"] / 6)
        assert packed[f"bytes_{way}_per_client"] == pytest.approx(apart[f"bytes_{way}"] / 6, rel=0.05)
    assert packed["models_per_round"] == pytest.approx(apart["models_per_round"], rel=0.05)


def test_models_that_a_round_moves(digits_tables, run_experiment):
    """2 N with FedAvg and 2 N^2 with IPA, each of whose N peers is sent the models of all and sends them back."""
    digits_tables["model"]["hidden"] = [64]
    moved = {m: summary_of(run_experiment(of(m, digits_tables)))["models_per_round"] for m in ("fedavg", "ipa")}
    assert moved == {"fedavg": pytest.approx(2 * 6, rel=0.05), "ipa": pytest.approx(2 * 6**2, rel=0.05)}


def test_what_a_run_sent_until_its_target_is_what_its_rounds_sent(digits_tables, run_experiment):
    digits_tables["evaluation"] = {"targets": {"test/accuracy": 0.6}}
    folder = run_experiment(of("sfl", digits_tables, rounds=12))
    summary = summary_of(folder)
    rounds = summary["rounds_to_target"]["test/accuracy"]["mean"]
    rows = lines(folder, phase="training")[:rounds]
    sent = sum(line["bytes_down_alone"] + line["bytes_up_alone"] for line in rows)
    assert summary["bytes_to_target"]["test/accuracy"]["mean"] == pytest.approx(sent / summary["clients"])
    assert 0 < summary["seconds_to_target"]["test/accuracy"]["mean"] < summary["seconds"]
    assert summary["core_seconds"] > 0


def test_bytes_of_a_stock_strategy(digits_tables, run_experiment):
    """One model to the node and back, whatever its clients; evaluations are exchanges of their own."""
    del digits_tables["graph"]
    folder = run_experiment(of("fedavg", digits_tables, rounds=3), nodes=1)
    summary, (_, model) = summary_of(folder), load_models(folder.path / "models.safetensors")
    one_model = sum(4 * tensor.numel() for tensor in model.values()) + HEADER
    assert (summary["bytes_down"], summary["bytes_up"]) == (6 * one_model, 3 * one_model)
    recorded = [(line["bytes_down"], line["bytes_up"]) for line in lines(folder, phase="training")]
    assert recorded == [(one_model, one_model)] * 3


def test_splits_and_how_often(digits_tables, run_experiment):
    digits_tables["evaluation"] = {"splits": ["train", "test"], "every": 2}
    for method, rounds in (("local", [0, 2, 3]), ("fedavg", [2, 3])):
        folder = run_experiment(of(method, digits_tables, rounds=3))
        assert [line["round"] for line in lines(folder)] == rounds
        assert list(summary_of(folder)["metrics"]) == ["train", "test"]
    digits_tables["evaluation"] = {"splits": []}
    assert summary_of(run_experiment(of("local", digits_tables)))["metrics"] == {}


@pytest.mark.parametrize("method", METHODS)
def test_no_rounds_measure_the_initial_model(digits_tables, run_experiment, method):
    folder = run_experiment(of(method, digits_tables, rounds=0))
    summary = summary_of(folder)
    assert summary["rounds"] == 0
    assert (models(folder) == models(folder)[0]).all()
    assert summary["metrics"]["test"]["accuracy"]["mean"] is not None


@pytest.mark.parametrize("method", METHODS)
def test_early_stopping_restores_the_best_and_measures_it(digits_tables, run_experiment, method):
    digits_tables["train"] |= {"learning-rate": 0.3, "momentum": 0.9, "local-epochs": 2}
    digits_tables["evaluation"] = {"monitor": "test/loss", "patience": 2}
    digits_tables["sfl"] |= {"lambda-global": 0.0, "lambda-personal": 0.0}
    folder = run_experiment(of(method, digits_tables, rounds=60))
    summary = summary_of(folder)
    measured = [line["metrics"]["loss"]["mean"] for line in lines(folder)]
    assert summary["rounds"] < 60, "it did not stop"
    first = 0 if method != "fedavg" else 1
    best = int(np.argmin(measured[:-1]))
    assert summary["rounds"] == first + best + 2
    assert summary["metrics"]["test"]["loss"]["mean"] == pytest.approx(measured[best], rel=1e-6)
    found = {"monitor": "test/loss", "stopped": True, "best": pytest.approx(measured[best]), "best_round": first + best}
    assert summary["early_stopping"] == found
    note = f"stopped after round {summary['rounds']}: test/loss was best after round {first + best}; "
    assert any(text.startswith(note) for text in summary["notes"])
    metrics = load_run(folder.path).metrics.query("split == 'test' and metric == 'loss'")
    assert metrics["round"].is_unique
    assert metrics["mean"].tolist() == pytest.approx(measured[:-1])
    digits_tables["evaluation"] = {}
    short = run_experiment(of(method, digits_tables, rounds=first + best))
    assert summary_of(short)["weights_sha256"] == summary["weights_sha256"]


@pytest.mark.parametrize("method", METHODS)
def test_a_run_ends_when_its_target_is_reached(digits_tables, run_experiment, method):
    digits_tables["evaluation"] = {"targets": {"test/accuracy": 0.6}}
    tables = of(method, digits_tables, rounds=12)
    whole = run_experiment(tables)
    means = [line["metrics"]["accuracy"]["mean"] for line in lines(whole)]
    firsts = [max(line["per_client"]["accuracy"].values()) for line in lines(whole)]
    rounds = {
        who: next(line["round"] for line, value in zip(lines(whole), values, strict=True) if value >= 0.6)
        for who, values in (("mean", means), ("first", firsts))
    }
    assert summary_of(whole)["rounds_to_target"] == {"test/accuracy": {"target": 0.6, **rounds}}
    tables["evaluation"]["stop-at-targets"] = "mean"
    short = summary_of(run_experiment(tables))
    assert short["rounds_to_target"] == summary_of(whole)["rounds_to_target"]
    assert 0 < short["rounds"] == rounds["mean"] < 12


# ---- resume of what was left


@pytest.mark.parametrize("method", METHODS)
def test_killed_between_the_last_checkpoint_and_the_end(digits_tables, run_experiment, method):
    folder = run_experiment(of(method, digits_tables))
    whole = summary_of(folder)
    (folder.path / "summary.json").unlink()
    again = summary_of(run_experiment(None, folder=RunFolder.open(folder.path)))
    for key in ("weights_sha256", "metrics", "per_client", "rounds"):
        assert again[key] == whole[key]


def go_on(run_experiment, tables, first, rounds):
    """A run of ``first`` rounds that is made to go on to ``rounds``."""
    part = run_experiment({**tables, "experiment": {**tables["experiment"], "rounds": first}})
    (part.path / "summary.json").unlink()
    tables = {**tables, "experiment": {**tables["experiment"], "rounds": rounds}}
    (part.path / "experiment.toml").write_text(parse_experiment(tables).as_toml())
    return run_experiment(None, folder=RunFolder.open(part.path))


@pytest.mark.parametrize("method", METHODS)
def test_what_was_sent_survives_a_resume(digits_tables, run_experiment, method):
    """All of it is there once, but for the opening query, which was asked twice."""
    digits_tables["graph"] = {"source": "complete"}
    whole = summary_of(run_experiment(of(method, digits_tables, rounds=4)))
    resumed = summary_of(go_on(run_experiment, of(method, digits_tables), 2, 4))
    assert resumed["exchanges"] == whole["exchanges"] + 1
    assert (resumed["bytes_down"], resumed["bytes_up"]) == (whole["bytes_down"], whole["bytes_up"])
    assert whole["bytes_up"] > 0


@pytest.mark.parametrize("optimizer", [{"momentum": 0.9}, {"optimizer": "adam"}])
def test_kept_optimiser_moments_survive_a_resume(digits_tables, run_experiment, optimizer):
    digits_tables["train"] |= {"keep-optimizer": True, "learning-rate": 0.02, **optimizer}
    tables = of("local", digits_tables)
    whole = summary_of(run_experiment(of("local", digits_tables, rounds=4)))
    assert summary_of(go_on(run_experiment, tables, 2, 4))["weights_sha256"] == whole["weights_sha256"]
    tables["train"]["keep-optimizer"] = False
    fresh = summary_of(run_experiment({**tables, "experiment": {"method": "local", "rounds": 4}}))
    assert fresh["weights_sha256"] != whole["weights_sha256"]


def test_fedavgm_resumes_to_the_same_weights(digits_tables, run_experiment):
    tables = {**digits_tables, "experiment": {"strategy": "flwr.serverapp.strategy:FedAvgM"}}
    tables["FedAvgM"] = {"server-momentum": 0.9}
    whole = run_experiment({**tables, "experiment": {**tables["experiment"], "rounds": 4}})
    resumed = go_on(run_experiment, tables, 2, 4)
    assert summary_of(resumed)["weights_sha256"] == summary_of(whole)["weights_sha256"]


def with_other_defaults(monkeypatch):
    """Defaults of a later version: of a method, of local training (from none, too), of a model and a stock strategy."""
    for kind, field, value in (
        (DittoSettings, "lambda_personal", 2.0),
        (TrainSettings, "momentum", 0.9),
        (TrainSettings, "clip_norm", 1e-3),
        (MLPSettings, "hidden", (3,)),
    ):
        monkeypatch.setattr(kind.model_fields[field], "default", value)
        kind.model_rebuild(force=True)
    monkeypatch.setitem(FedAdam.__init__.__kwdefaults__, "eta", 0.01)


@pytest.fixture
def later(monkeypatch):
    """``with later():`` is run by a version with other defaults."""

    @contextmanager
    def patched():
        try:
            with monkeypatch.context() as patch:
                with_other_defaults(patch)
                yield
        finally:
            for kind in (DittoSettings, TrainSettings, MLPSettings):
                kind.model_rebuild(force=True)

    return patched


@pytest.mark.parametrize("head", [{"method": "ditto"}, {"strategy": "flwr.serverapp.strategy:FedAdam"}])
def test_a_run_keeps_the_defaults_that_it_began_with(digits_tables, run_experiment, later, head):
    """Where it is resumed, and where its experiment is run again, by a version with other defaults."""
    tables = {**digits_tables, "experiment": {**head, "rounds": 2}, "model": {"name": "mlp"}}
    tables["train"] = {"local-epochs": 1, "batch-size": 16}
    first = run_experiment(tables)
    weights = summary_of(first)["weights_sha256"]
    file = first.path / "experiment.toml"
    (first.path / "summary.json").unlink()
    text = file.read_text()
    file.write_text(text.replace("rounds = 2\n", "rounds = 4\n"))
    with later():
        assert summary_of(run_experiment(tables))["weights_sha256"] != weights
        again = run_experiment(tomllib.loads(text))
        resumed = run_experiment(None, folder=RunFolder.open(first.path))
    assert summary_of(again)["weights_sha256"] == weights
    whole = run_experiment({**tables, "experiment": {**head, "rounds": 4}})
    assert summary_of(resumed)["weights_sha256"] == summary_of(whole)["weights_sha256"]


def test_other_clients_cannot_go_on_with_a_run(digits_tables, run_experiment):
    folder = run_experiment(of("local", digits_tables))
    (folder.path / "summary.json").unlink()
    with pytest.raises(IdentityError, match="of the clients that took part before .*, nobody hosts client-2, "):
        run_experiment(None, folder=folder, node_configs=[{"clients": "client-0,client-1"}])


def test_a_run_that_stopped_says_why_in_its_log(digits_tables, run_experiment, tmp_path):
    digits_tables["experiment"] |= {"min-clients": 7}
    with pytest.raises(IdentityError, match="only 6 of at least 7"):
        run_experiment(digits_tables)
    (folder,) = (tmp_path / "runs").iterdir()
    assert "the run stopped: only 6 of at least 7 clients" in (folder / "logs" / "run.log").read_text()
    assert not RunFolder.open(folder).is_finished


def test_a_strategy_of_ones_own_in_one_class(digits_tables, run_experiment, tmp_path, monkeypatch):
    (tmp_path / "one_class.py").write_text(
        "from fedgraph.algorithms import Algorithm\n\n\nclass Mean(Algorithm):\n"
        "    def aggregate(self, clients, state, answers):\n"
        "        return answers.parameters.mean(dim=0).expand_as(answers.parameters)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    folder = run_experiment({**digits_tables, "experiment": {"strategy": "one_class:Mean", "rounds": 2}})
    assert summary_of(folder)["method"] == "Mean"
    assert (models(folder) == models(folder)[0]).all()
    assert math.isfinite(float(models(folder).sum()))


def test_a_learned_graph_is_kept_with_the_run(digits_tables, run_experiment, tmp_path, monkeypatch):
    from fedgraph.graph import read_graph

    code = (
        "from fedgraph.graph import ClientGraph\n"
        "from fedgraph.algorithms.bounds import LocalOnly\n\n"
        "class Learns(LocalOnly):\n"
        "    def learned_graph(self, clients, state):\n"
        "        return ClientGraph.complete(clients.names)\n"
    )
    (tmp_path / "learns_a_graph.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    tables = {**digits_tables, "experiment": {"strategy": "learns_a_graph:Learns", "rounds": 1}}
    folder = run_experiment(tables)
    learned = read_graph(folder.path / "learned-graph.npz")
    assert learned.names == tuple(f"client-{i}" for i in range(6))
    assert learned.num_edges == read_graph(folder.path / "learned-graph.json").num_edges > 0
