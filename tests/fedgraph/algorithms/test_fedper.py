import json

import pytest
import torch

from fedgraph.clients.app import app as client_app
from fedgraph.runs.result_files import load_models
from fedgraph.support.errors import ExperimentError


def by_hand(problem, shared, present=lambda client, server_round: True):
    """FedAvg of the columns ``shared`` of the model, weighted by examples; the others stay with their client."""
    models = [problem.initial.clone() for _ in problem.names]
    for server_round in (1, 2, 3):
        trained = [problem.train(client, v) for client, v in enumerate(models)]
        here = [client for client in range(3) if present(client, server_round)]
        weights = problem.sizes[here] / problem.sizes[here].sum()
        mean = weights @ torch.stack([trained[client] for client in here])
        for client in range(3):
            models[client] = trained[client].clone()
            models[client][shared] = mean[shared]
    return torch.stack(models)


WEIGHTS, BIASES = slice(0, 640), slice(640, 650)
CASES = {
    "fedper": ({"personal-layers": ["*.bias"]}, WEIGHTS, BIASES, {"head.weight"}),
    "lg-fedavg": ({"personal-layers": ["!*.bias"]}, BIASES, WEIGHTS, {"head.bias"}),
}


@pytest.mark.parametrize("method", CASES)
def test_whole_run(problem, close, method):
    table, shared, personal, names = CASES[method]
    folder = problem.run(method, table)
    expected = by_hand(problem, shared)
    _, ours = load_models(folder.models)
    assert set(ours) == names
    close(ours[names.pop()].flatten(), expected[0, shared])
    kept = problem.kept(folder, "personal-layers", personal=torch.zeros(len(range(650)[personal])))
    close(kept["personal"], expected[:, personal])


def test_a_client_whose_reply_is_lost_has_trained_its_own_layers(problem, close):
    folder = problem.run("fedper", CASES["fedper"][0], lost=(2,))
    expected = by_hand(problem, WEIGHTS, lambda client, server_round: (client, server_round) != (1, 2))
    close(load_models(folder.models)[1]["head.weight"].flatten(), expected[0, WEIGHTS])
    close(problem.kept(folder, "personal-layers", personal=torch.zeros(10))["personal"], expected[:, BIASES])


@pytest.mark.parametrize(("method", "private", "shared"), [("fedper", "head", 1040), ("lg-fedavg", "hidden", 170)])
def test_private_layers_are_in_no_message(digits_tables, run_experiment, method, private, shared):
    seen = []

    def listen(message, context):
        reply = client_app(message, context)
        seen.extend((message.content, reply.content))
        return reply

    del digits_tables["graph"]  # made from label counts, which would be seen too
    folder = run_experiment({**digits_tables, "experiment": {"method": method, "rounds": 2}}, client=listen)
    widths = [
        array.shape[-1]
        for content in seen
        for record in content.array_records.values()
        for array in record.values()
    ]  # fmt: skip
    assert len(seen) == 2 * (1 + 3) * 2
    # Of 2 nodes: 3 requests with a model each, 2 replies to train.
    assert widths == [shared] * 10
    clients, ours = load_models(folder.models)
    assert not [name for name in {**ours, **clients["client-0"]} if name.startswith(private)]


@pytest.mark.parametrize("method", ["fedper", "lg-fedavg"])
def test_evaluated_are_whole_models_whoever_shares_a_node(digits_tables, run_experiment, method):
    digits_tables["experiment"] = {"method": method, "rounds": 4}
    digits_tables["train"]["local-epochs"] = 5
    summaries = [
        json.loads((run_experiment(digits_tables, nodes=nodes).path / "summary.json").read_text()) for nodes in (1, 3)
    ]
    first, second = (summary["per_client"]["test"]["loss"] for summary in summaries)
    assert first == pytest.approx(second, rel=1e-4)
    # With the last layer of the initial model, or that of another client, this cannot be.
    assert summaries[0]["metrics"]["test"]["accuracy"]["mean"] > 0.85


def test_the_best_models_cannot_be_brought_back(digits_tables, run_experiment):
    digits_tables["experiment"]["method"] = "fedper"
    digits_tables["evaluation"] = {"monitor": "validation/loss", "patience": 1}
    with pytest.raises(ExperimentError, match="'fedper' cannot restore completely: clients keep.*restore-best = false"):
        run_experiment(digits_tables)
