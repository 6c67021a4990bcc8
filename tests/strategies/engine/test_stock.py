import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAdam, FedAvg

from fedgraph.data import open_source, parse_data
from fedgraph.methods import built_ins
from fedgraph.runs.result_files import load_models
from fedgraph.support.errors import ExperimentError
from strategies.engine.phases import PhasedStrategy
from strategies.engine.stock import build_stock, load_stock_state, stock_state
from strategies.fedprox import FedProx


class Refuses(FedAvg):
    """A strategy that checks what it is given."""

    def __init__(self, some_value: float = 1.0) -> None:
        if some_value < 0:
            raise ValueError("must not be negative")
        super().__init__()


def summary(folder):
    return json.loads((folder.path / "summary.json").read_text())


def stock(tables, name, **table):
    head = {**tables["experiment"], "strategy": f"flwr.serverapp.strategy:{name}"}
    head.pop("method")
    return {**tables, "experiment": head, name: table}


def test_table_keys_are_checked_against_the_constructor():
    with pytest.raises(
        ExperimentError, match=r"\[FedAdam\] has no key 'etta'; known keys: arrayrecord-key, .*eta, eta-l"
    ):
        build_stock(FedAdam, {"etta": 1}, "[FedAdam]", nodes=2)
    with pytest.raises(ExperimentError, match="Refuses refuses these settings"):
        build_stock(Refuses, {"some-value": -1.0}, "[Refuses]", nodes=2)


def test_stock_minimum_of_nodes_never_exceeds_the_nodes_there_are():
    assert build_stock(FedAvg, {}, "[fedavg]", nodes=1).min_available_nodes == 1
    assert build_stock(FedAvg, {}, "[fedavg]", nodes=9).min_available_nodes == 2
    assert build_stock(FedAvg, {"min-available-nodes": 5}, "[fedavg]", nodes=9).min_available_nodes == 5


def test_fedavg_is_the_weighted_mean_for_every_packing(digits_tables, run_experiment):
    digits_tables["train"] |= {"batch-size": 8, "local-epochs": 4}
    tables = {**digits_tables, "experiment": {"method": "fedavg", "rounds": 3}}
    one, three = (run_experiment(tables, nodes=nodes) for nodes in (1, 3))
    first, second = (torch_models(folder) for folder in (one, three))
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)
    assert summary(one)["exchanges"] == 1 + 3 + 3
    assert summary(one)["metrics"]["test"]["accuracy"]["mean"] > 0.3


def torch_models(folder):
    from safetensors.torch import load_file

    tensors = load_file(str(folder.path / "models.safetensors"))
    return torch.cat([tensors[name].flatten() for name in sorted(tensors) if name.startswith("global/")])


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("FedAdam", {"eta": 0.01}),
        ("FedAvgM", {"server-momentum": 0.5}),
        ("FedMedian", {}),
        ("FedProx", {"proximal-mu": 0.1}),
        ("FedTrimmedAvg", {"beta": 0.1}),
    ],
)
def test_stock_strategies_run_by_dotted_path(digits_tables, run_experiment, name, table):
    result = summary(run_experiment(stock(digits_tables, name, **table), nodes=3))
    assert result["method"] == name
    assert set(result["per_client"]["test"]["accuracy"]) == {f"client-{i}" for i in range(6)}
    assert result["metrics"]["test"]["loss"]["mean"] < 2.4


def test_fedprox_pulls_clients_to_the_global_model(digits_tables, run_experiment):
    digits_tables["train"]["local-epochs"] = 5
    start = torch_models(run_experiment({**stock(digits_tables, "FedProx", **{"proximal-mu": 0.0}), "train": {
        **digits_tables["train"], "local-epochs": 0}}))  # fmt: skip
    moved = []
    for mu in (0.0, 5.0):
        folder = run_experiment(stock(digits_tables, "FedProx", **{"proximal-mu": mu}))
        moved.append((torch_models(folder) - start).norm())
    assert moved[1] < 0.7 * moved[0]


def test_drawing_nodes_depends_on_seed_and_round_alone(digits_tables, run_experiment):
    tables = stock(digits_tables, "FedAvg", **{"fraction-train": 0.5, "min-train-nodes": 1})
    tables["experiment"]["rounds"] = 4
    random.seed(1)
    first = summary(run_experiment(tables, nodes=6))
    random.seed(2)
    again = summary(run_experiment(tables, nodes=6))
    assert first["weights_sha256"] == again["weights_sha256"]
    tables["experiment"]["seed"] = 1
    assert summary(run_experiment(tables, nodes=6))["weights_sha256"] != first["weights_sha256"]


def test_keep_last_is_refused(digits_tables, run_experiment):
    tables = {**digits_tables, "experiment": {"method": "fedavg", "rounds": 1, "on-missing": "keep-last"}}
    with pytest.raises(ExperimentError, match="not for stock Flower strategies"):
        run_experiment(tables)


def test_state_of_a_stock_strategy_round_trips():
    before, after = FedAdam(eta=0.5), FedAdam(eta=0.1)
    before.current_arrays = {"w": np.arange(3.0)}
    before.v_t = {"w": np.ones(3)}
    load_stock_state(after, stock_state(before))
    assert after.eta == 0.5
    assert np.array_equal(after.current_arrays["w"], before.current_arrays["w"])
    assert np.array_equal(after.v_t["w"], before.v_t["w"])


def test_fedadam_resumes_to_the_same_weights(digits_tables, run_experiment):
    from fedgraph.experiment.experiment import parse_experiment
    from fedgraph.runs.folder import RunFolder

    tables = stock(digits_tables, "FedAdam", eta=0.02)
    tables["experiment"]["rounds"] = 6
    whole = run_experiment(tables)
    tables["experiment"]["rounds"] = 3
    part = run_experiment(tables)
    (part.path / "summary.json").unlink()
    tables["experiment"]["rounds"] = 6
    (part.path / "experiment.toml").write_text(parse_experiment(tables).as_toml())
    resumed = run_experiment(tables, folder=RunFolder.open(part.path))
    assert summary(resumed)["weights_sha256"] == summary(whole)["weights_sha256"]


def test_optimiser_moments_are_kept_for_stock_strategies_too(digits_tables, run_experiment):
    tables = {**digits_tables, "experiment": {"method": "fedavg", "rounds": 3}}
    digits = {}
    for keep in (False, True):
        tables["train"] = {**digits_tables["train"], "momentum": 0.9, "keep-optimizer": keep}
        folder = run_experiment(tables)
        digits[keep] = summary(folder)["weights_sha256"]
        kept = list((folder.path / "nodes").rglob("*.safetensors")) if (folder.path / "nodes").exists() else []
        assert bool(kept) == keep
    assert digits[True] != digits[False]


def test_a_node_of_untrained_clients_has_no_part_in_the_average(run_experiment, digits_tables):
    data = {"set": "synthetic-traffic", "sensors": 4, "days": 3}
    names = open_source(parse_data(data), Path()).client_names()
    experiment = {"name": "cold", "strategy": "flwr.serverapp.strategy:FedMedian", "rounds": 2}
    tables = {**digits_tables, "experiment": experiment, "model": {"name": "rnn", "hidden": 4}}
    tables |= {"graph": {"source": "none"}}
    del tables["sfl"]
    cold = {**data, "cold-clients": names[:2], "cold-trains": False, "cold-steps": 60}
    nodes = [{"clients": ",".join(names[:2])}, {"clients": ",".join(names[2:])}]
    with_cold = run_experiment({**tables, "data": cold}, node_configs=nodes)
    without = run_experiment({**tables, "data": {**data, "clients": names[2:]}}, node_configs=nodes[1:])
    (_, model), (_, other) = load_models(with_cold.models), load_models(without.models)
    assert model is not None
    for name, tensor in model.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=0)
    assert all(value is not None for value in with_cold.summary()["per_client"]["test"]["mae"].values())


def test_fedprox_has_a_proximal_term_unless_told_otherwise(digits_tables, run_experiment):
    """With Flower's default of 0 it was FedAvg, under another name."""
    del digits_tables["graph"]

    def run(**changes):
        tables = {**digits_tables, **changes, "experiment": {**digits_tables["experiment"], "method": "fedprox"}}
        return run_experiment(tables).path

    usual, without = run(), run(fedprox={"proximal-mu": 0.0})
    assert FedProx().proximal_mu == 0.1
    told = [json.loads((path / "summary.json").read_text()) for path in (usual, without)]
    assert told[0]["weights_sha256"] != told[1]["weights_sha256"]
    assert [summary.get("remark") for summary in told] == [None, "mu 0: the same as fedavg"]
    digits_tables["experiment"]["method"] = "fedavg"
    assert run_experiment(digits_tables).summary()["weights_sha256"] == told[1]["weights_sha256"]


def test_no_built_in_method_is_another_one_by_default(digits_tables, run_experiment):
    """All that are of rounds, as ``--compare`` runs them: what clients are measured with is nowhere the same."""
    digits_tables["graph"] = {"source": "complete"}
    measured = {}
    for name, strategy in built_ins().items():
        phases = issubclass(strategy, PhasedStrategy)
        if phases or getattr(strategy, "own_models", False) or name in ("cnfgnn", "sfl-cold-start"):
            continue
        digits_tables["experiment"] |= {"method": name, "rounds": 3}
        summary = run_experiment(digits_tables, nodes=1).summary()
        measured[name] = json.dumps(summary["per_client"]["test"]["loss"], sort_keys=True)
    same = [(a, b) for a, b in itertools.combinations(measured, 2) if measured[a] == measured[b]]
    assert len(measured) >= 15
    assert not same
