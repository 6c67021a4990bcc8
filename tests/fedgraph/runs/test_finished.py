"""Finished runs as Python values."""

import numpy as np
import pytest
import torch

import fedgraph
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.runs.folder import RunFolder
from fedgraph.support.errors import RunError


def test_metrics_are_those_of_the_summary(ran):
    run = ran()
    summary = run.summary
    last = run.metrics.query("round == 2 and split == 'test' and metric == 'accuracy'")
    assert len(last) == 1
    assert last["mean"].item() == summary["metrics"]["test"]["accuracy"]["mean"]
    assert set(run.metrics["split"]) == {"train", "validation", "test"}
    # Of every client, and their mean over again.
    each = run.client_metrics.query("round == 2 and split == 'test' and metric == 'accuracy'")
    assert len(each) == 6
    assert np.isclose(each["value"].mean(), last["mean"].item())
    assert run.clients.loc["client-3", "test/accuracy"] == summary["per_client"]["test"]["accuracy"]["client-3"]
    assert run.clients.index.name == "client"
    assert run.absences.empty


def test_models_and_graphs(ran):
    run = ran("sfl-star")
    assert list(run.models) == list(run.clients.index)
    first = next(iter(run.models.values()))
    assert all(isinstance(value, torch.Tensor) for value in first.values())
    assert run.global_model.keys() == first.keys()
    assert run.graph.names == run.learned_graph.names == tuple(run.models)
    assert ran("local").learned_graph is None
    assert run.method == "sfl-star"
    assert "sfl-star, 6 clients" in repr(run)


def test_a_model_as_a_module(ran):
    run = ran("sfl")
    module = run.module("client-2", raw=False)
    state = module.state_dict()
    assert all(torch.equal(state[name], value) for name, value in run.models["client-2"].items())
    assert not module.training
    assert module(torch.zeros(3, *run.summary["task"]["input_shape"])).shape == (3, 10)
    assert all(torch.equal(run.global_model[name], value) for name, value in run.module(raw=False).state_dict().items())
    with pytest.raises(RunError, match="no model of 'client-99'; clients: client-0, client-1"):
        run.module("client-99")
    with pytest.raises(RunError, match="no model of 'client-99'; clients: client-0, client-1, .*client-4, ..."):
        _ = run.models["client-99"]
    assert "client-99" not in run.models
    with pytest.raises(RunError, match="'local' has no global model: name a client"):
        ran("local").module()


def test_what_a_method_does_not_leave_is_said(patches_tables, run_experiment):
    run = fedgraph.load_run(run_experiment(patches_tables).path)
    with pytest.raises(RunError, match="'f3' does not train client models"):
        _ = run.models
    with pytest.raises(RunError, match="'f3' does not learn one"):
        _ = run.graphical_model
    assert run.graph is None
    assert run.learned_graph is not None
    # The epochs of the server's training.
    assert (run.metrics["split"] == "fusion").any()


def test_groups_and_absences(run_experiment):
    tables = {
        "experiment": {"name": "cold", "method": "local", "rounds": 1},
        "data": {"set": "synthetic-traffic", "sensors": 4, "days": 2, "cold-trains": False,
                 "cold-clients": ["sensor-002", "sensor-003"]},
        "model": {"name": "mlp", "hidden": [2]},
        "train": {"local-steps": 2, "batch-size": 8},
        "evaluation": {"splits": ["test"]},
    }  # fmt: skip
    folder = run_experiment(tables)
    run = fedgraph.load_run(folder.path)
    assert run.clients["group"].tolist() == ["warm", "warm", "cold", "cold"]
    line = {"round": 1, "phase": "evaluation", "split": "test", "metrics": {}, "per_client": {}}
    folder.append({**line, "absent": {"sensor-001": "no reply"}})
    assert fedgraph.load_run(folder.path).absences.to_dict("records") == [
        {"round": 1, "client": "sensor-001", "reason": "no reply"}
    ]


def test_only_finished_runs_are_read(digits_tables, tmp_path):
    with pytest.raises(RunError, match="is not a run folder"):
        fedgraph.load_run(tmp_path)
    unfinished = RunFolder.create(parse_experiment(digits_tables), tmp_path)
    with pytest.raises(RunError, match="is not finished"):
        fedgraph.load_run(unfinished.path)


def test_the_package_says_what_it_has():
    assert {"run", "resume", "run_methods", "load_run", "compare"} <= set(dir(fedgraph))
    assert not {"Any", "TYPE_CHECKING"} & set(dir(fedgraph))
    assert 'run.models["client-03"]' in fedgraph.__doc__, "as clients of sfl/digits.toml are called"
    with pytest.raises(AttributeError, match="no attribute 'ran'"):
        _ = fedgraph.ran
