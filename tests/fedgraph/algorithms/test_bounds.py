import json

import pytest
import torch

from fedgraph.runs.result_files import load_models
from fedgraph.support.errors import ExperimentError

ONE_NODE = {"node_configs": [{"clients": "client-0,client-1,client-2"}]}


def rows(folder):
    clients, shared = load_models(folder.path / "models.safetensors")
    assert shared is None
    return {name: torch.cat([tensor.flatten() for tensor in state.values()]) for name, state in clients.items()}


@pytest.fixture
def alone(digits_tables):
    digits_tables["experiment"] = {"method": "local", "rounds": 3}
    return digits_tables


def test_nothing_is_shared(alone, run_experiment):
    together = rows(run_experiment(alone))
    one = rows(run_experiment(alone, node_configs=[{"clients": "client-2"}]))
    assert list(one) == ["client-2"]
    torch.testing.assert_close(one["client-2"], together["client-2"], rtol=1e-5, atol=1e-7)
    assert not torch.allclose(together["client-2"], together["client-3"])


def test_clients_learn_their_own_data(alone, run_experiment):
    alone["experiment"]["rounds"] = 8
    alone["train"]["local-epochs"] = 5
    summary = json.loads((run_experiment(alone).path / "summary.json").read_text())
    assert summary["metrics"]["test"]["accuracy"]["mean"] > 0.85
    assert summary["exchanges"] == 1 + 8 + 1


def test_whole_run_is_training_on_everybodys_examples(problem, close):
    """Three clients of three steps each: nine steps a round along the gradient of all examples."""
    folder = problem.run("centralised", **ONE_NODE)
    shares = problem.sizes / problem.sizes.sum()

    def gradient(v):
        return shares @ torch.stack([problem.gradient(client, v) for client in range(3)])

    v = problem.descend(gradient, problem.initial, steps=3 * 9)
    close(problem.global_model(folder), v)
    assert problem.measured(folder) == problem.losses([v] * 3)


def test_more_than_one_node_is_refused(problem):
    with pytest.raises(ExperimentError, match="2 nodes .*--nodes 1"):
        problem.run("centralised")


def test_beats_fedavg_where_clients_differ(digits_tables, run_experiment):
    digits_tables["train"]["learning-rate"] = 0.05
    means = {}
    for method in ("centralised", "fedavg"):
        folder = run_experiment({**digits_tables, "experiment": {"method": method, "rounds": 5}}, nodes=1)
        summary = json.loads((folder.path / "summary.json").read_text())
        means[method] = summary["metrics"]["test"]["accuracy"]["mean"]
    assert means["centralised"] > means["fedavg"] + 0.1, means
