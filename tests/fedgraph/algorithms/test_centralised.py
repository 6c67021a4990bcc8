import json

import pytest
import torch

from fedgraph.support.errors import ExperimentError

ONE_NODE = {"node_configs": [{"clients": "client-0,client-1,client-2"}]}


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
    with pytest.raises(ExperimentError, match="all clients on one node.*here 2 nodes host them: .*--nodes 1"):
        problem.run("centralised")


def test_beats_fedavg_where_clients_differ(digits_tables, run_experiment):
    digits_tables["train"]["learning-rate"] = 0.05
    means = {}
    for method in ("centralised", "fedavg"):
        folder = run_experiment({**digits_tables, "experiment": {"method": method, "rounds": 5}}, nodes=1)
        summary = json.loads((folder.path / "summary.json").read_text())
        means[method] = summary["metrics"]["test"]["accuracy"]["mean"]
    assert means["centralised"] > means["fedavg"] + 0.1, means
