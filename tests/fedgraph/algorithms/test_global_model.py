import json

import numpy as np
import pytest
import torch

from fedgraph.algorithms import GlobalModel
from fedgraph.graph.means import weighted_mean
from fedgraph.runs.result_files import load_models
from fedgraph.strategies.engine.replies import Replies
from fedgraph.support.errors import RunError
from fedgraph.support.settings import Settings

NAMES = ("a", "b", "c")
PLAIN = {"method": None, "strategy": "fedgraph.algorithms.global_model:GlobalModel"}


@pytest.mark.parametrize("weights", [[3, 1, 2], [0, 5, 0], [0, 0, 0]])
def test_weighted_mean(weights):
    rows = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    expected = np.average(rows.numpy(), axis=0, weights=weights if any(weights) else None)
    np.testing.assert_allclose(weighted_mean(rows, torch.tensor(weights)).numpy(), expected, rtol=1e-6)


@pytest.fixture
def made(serve):
    """``made(kind)``: a run of an algorithm."""
    return lambda kind=GlobalModel: serve(kind(Settings()), [30, 10, 20], {"w": torch.arange(4.0)})


def one_round(run, theta, positions, absent=()):
    replies = Replies.of(run.federation, positions, {"parameters": theta}, {}, dict.fromkeys(absent, "gone"))
    begun, _ = run.algorithm.begin(run.clients, run.state, 1)
    try:
        begun.send(replies.answers())
    except StopIteration as end:
        run.state = run.algorithm.after(run.state, end.value)


def test_one_model_is_for_everybody_also_for_the_absent(made):
    run = made()
    theta = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    one_round(run, theta, torch.tensor([0, 2]), absent="b")
    expected = (30 * theta[0] + 20 * theta[1]) / 50
    torch.testing.assert_close(run.models, expected.expand(3, -1))
    assert torch.equal(run.readout(), run.models[1])
    ask = run.algorithm.ask(run.clients, run.state)
    assert ask.stacked == {}
    assert torch.equal(ask.shared["parameters"], run.models[0])


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, r"Mine\.update, in round 1, .*None"),
        (np.zeros(4), r"numpy.ndarray .*\[4\]"),
        ([0.0] * 4, r"returned a list in place of a float tensor \[4\]"),
        (torch.zeros(4).long(), "returned .*torch.int64"),
        (torch.zeros(1, 4), r"\[1, 4\] .*\[4\]"),
    ],
)
def test_an_update_that_is_no_model_is_said_to_be_none(made, returned, message):
    class Mine(GlobalModel):
        def update(self, clients, model, answers):
            return returned

    with pytest.raises(RunError, match=message):
        one_round(made(Mine), torch.zeros(3, 4), torch.arange(3))


def test_a_checkpoint_holds_the_model_once(made):
    run = made()
    saved = run.saved()
    assert saved["models"].shape == (1, 4)
    run.replace_models(torch.ones(3, 4))
    run.load(saved)
    assert torch.equal(run.models, torch.arange(4.0).expand(3, -1))


def test_whole_run_is_that_of_the_stock_strategy_and_of_a_few_lines(problem, close):
    ours = problem.run("fedavg", experiment=PLAIN)
    assert json.loads((ours.path / "summary.json").read_text())["method"] == "GlobalModel"
    w = problem.initial
    for _ in range(3):
        w = problem.mean([problem.train(client, w) for client in range(3)])
    close(problem.global_model(ours), w)
    close(problem.global_model(problem.run("fedavg")), w)


def test_clients_whose_replies_are_lost_are_left_out_for_a_round(problem, close):
    lost = problem.run("fedavg", experiment=PLAIN, lost=(2,))
    w = problem.initial
    for server_round in (1, 2, 3):
        models = torch.stack([problem.train(client, w) for client in range(3)])
        weights = problem.sizes * torch.tensor([1.0, server_round != 2, 1.0])
        w = weights @ models / weights.sum()
    close(problem.global_model(lost), w)


# ---- what holds for every method of one global model

METHODS = ("fedatt", "scaffold", "fedper", "lg-fedavg", "ditto", "fedavg-ft", "centralised")
MOMENTUM = {"momentum": 0.5, "learning-rate": 0.1}


@pytest.mark.parametrize("method", METHODS)
def test_a_round_that_was_cut_short_is_repeated_alike(problem, method):
    """Its clients have worked, and remember; the server has not heard of it."""
    train = {**MOMENTUM, "keep-optimizer": method != "scaffold", "batch-size": 32}
    nodes = {"node_configs": [{"clients": ",".join(problem.names)}]} if method == "centralised" else {}
    table = {"personal-layers": ["head.bias"]} if method in ("fedper", "lg-fedavg") else {}
    resumed, whole = (run(method, table, train, **nodes) for run in (problem.resumed, problem.run))
    first, second = (json.loads((folder.path / "summary.json").read_text()) for folder in (resumed, whole))
    assert first["weights_sha256"] == second["weights_sha256"]
    assert first["metrics"] == second["metrics"]


@pytest.mark.parametrize("method", [method for method in METHODS if method != "centralised"])
def test_who_shares_a_node_is_of_no_matter(digits_tables, run_experiment, method):
    digits_tables["experiment"] |= {"method": method, "rounds": 3}
    digits_tables["train"] |= {**MOMENTUM, "keep-optimizer": method != "scaffold"}
    packings = ({"nodes": 1}, {"node_configs": [{"clients": f"client-{i},client-{5 - i}"} for i in range(3)]})
    one, three = (run_experiment(digits_tables, **packing) for packing in packings)
    models = [load_models(folder.models)[1] for folder in (one, three)]
    for name, tensor in models[0].items():
        torch.testing.assert_close(models[1][name], tensor, rtol=1e-5, atol=1e-6)
    losses = [json.loads((folder.path / "summary.json").read_text())["per_client"]["test"] for folder in (one, three)]
    assert losses[1]["loss"] == pytest.approx(losses[0]["loss"], rel=1e-4)
