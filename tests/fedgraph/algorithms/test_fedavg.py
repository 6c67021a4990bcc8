import json

import pytest
import torch

from fedgraph.models import build, initial_model
from fedgraph.models.base import TaskSpec
from fedgraph.runs.result_files import load_models
from fedgraph.support.errors import ExperimentError
from fedgraph.support.randomness import derive_seed


@pytest.mark.parametrize(
    ("table", "tuning"),
    [
        ({}, {}),
        ({"local-steps": 8}, {"steps": 8}),
        ({"local-epochs": 5, "learning-rate": 0.4}, {"steps": 5, "rate": 0.4}),
    ],
)
def test_measured_are_fine_tuned_copies_of_the_global_model(problem, close, table, tuning):
    """After every round, also the last, which no training follows; the rate falls from round to round."""
    folder = problem.run("fedavg-ft", table, {"learning-rate": 0.5, "learning-rate-decay": 0.5})
    w, rate = problem.initial, 0.5
    for server_round in range(4):
        tuned = [problem.train(client, w, **{"rate": rate, **tuning}) for client in range(3)]
        assert problem.measured(folder, server_round) == problem.losses(tuned)
        if server_round < 3:
            w, rate = problem.mean([problem.train(client, w, rate=rate) for client in range(3)]), rate / 2
    close(problem.global_model(folder), w)


@pytest.mark.parametrize(
    ("table", "tuning"), [({}, {}), ({"local-steps": 8, "learning-rate": 0.1}, {"steps": 8, "rate": 0.1})]
)
def test_after_sfl_measured_are_fine_tuned_copies_of_the_personalised_models(problem, table, tuning):
    """They are trained without the distances, go nowhere, and the run is that of SFL."""
    own = {"alpha": 0.6, "hops": 1, "lambda-global": 0.2, "lambda-personal": 0.1}
    problem.tables["graph"] = {"source": "complete"}
    folder, plain = problem.run("sfl-ft", {**own, **table}), problem.run("sfl", own)
    (models, _), (expected, _) = (load_models(each.models) for each in (folder, plain))
    for name in problem.names:
        assert all(torch.equal(models[name][key], expected[name][key]) for key in expected[name])
    personalised = [
        torch.cat([expected[name]["head.weight"].flatten(), expected[name]["head.bias"]]).double()
        for name in problem.names
    ]
    assert problem.measured(plain) == problem.losses(personalised)
    tuned = [problem.train(client, u, **tuning) for client, u in enumerate(personalised)]
    assert problem.measured(folder) == problem.losses(tuned)
    assert problem.measured(folder) != problem.losses(personalised)


def test_fine_tuning_has_an_order_of_examples_and_moments_of_its_own(problem, close):
    """The training that it stands beside is that of FedAvg, to the last bit of what it remembers."""
    train = {"momentum": 0.9, "keep-optimizer": True, "learning-rate": 0.05, "batch-size": 16}
    tuned, plain = (problem.run(method, train=train) for method in ("fedavg-ft", "fedavg"))
    close(problem.global_model(tuned), problem.global_model(plain))
    moments = [problem.kept(folder, "optimiser", momentum=torch.zeros(650))["momentum"] for folder in (tuned, plain)]
    assert moments[0].abs().max() > 0.01
    torch.testing.assert_close(*moments, rtol=1e-4, atol=1e-6)


def test_restored_models_are_fine_tuned_as_when_they_were_best(problem):
    stop = {"monitor": "train/loss", "patience": 1}
    train = {"learning-rate": 0.05, "learning-rate-decay": 0.2, "batch-size": 16, "momentum": 0.95}
    folder = problem.run("fedavg-ft", {"local-steps": 12}, train, experiment={"rounds": 20}, evaluation=stop)
    lines = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["phase"] == "evaluation" and line["split"] == "train"]
    *measured, restored = lines
    assert restored["restored"]
    assert restored["round"] == measured[-1]["round"]
    assert restored["per_client"] == min(measured, key=lambda line: line["metrics"]["loss"]["mean"])["per_client"]


@pytest.mark.parametrize("key", ["local-steps", "local-epochs"])
def test_nothing_to_fine_tune_with_is_fedavg(digits_tables, run_experiment, key):
    digits_tables["train"]["learning-rate"] = 0.05
    tuned = run_experiment({**digits_tables, "experiment": {"method": "fedavg-ft", "rounds": 3}, "fedavg-ft": {key: 0}})
    plain = run_experiment({**digits_tables, "experiment": {"method": "fedavg", "rounds": 3}})
    first, second = (json.loads((folder.path / "summary.json").read_text())["per_client"] for folder in (tuned, plain))
    for split in ("validation", "test"):
        assert first[split]["loss"] == pytest.approx(second[split]["loss"], rel=1e-4)


def test_what_does_not_fit_is_refused_at_the_server(problem):
    with pytest.raises(ExperimentError, match=r"\[fedavg-ft\] .*warmup"):
        problem.run("fedavg-ft", {"local-steps": 1}, {"warmup-epochs": 0.5, "local-epochs": 1, "local-steps": None})
    problem.tables["graph"] = {"source": "complete"}
    with pytest.raises(ExperimentError, match=r"\[sfl-ft\] .*warmup"):
        problem.run("sfl-ft", {"local-steps": 1}, {"warmup-epochs": 0.5, "local-epochs": 1, "local-steps": None})


def by_hand(problem, away=()):
    """The mean over clients by their examples; only the first round begins with models of their own.

    In the rounds ``away`` the second client takes no part.
    """
    model = build(problem.tables["model"], TaskSpec("classification", (1, 8, 8), (10,)))
    starts = [initial_model(model, derive_seed(0, "own initial model", name)).double() for name in problem.names]
    for server_round in (1, 2, 3):
        found = torch.stack([problem.train(k, start, torch.zeros_like) for k, start in enumerate(starts)])
        sizes = problem.sizes.double() * torch.tensor([1, server_round not in away, 1])
        starts = [sizes / sizes.sum() @ found] * 3
    return starts[0]


def test_models_of_their_own_in_the_first_round_alone(problem, close):
    folder = problem.run("fedavg-own-start")
    close(problem.global_model(folder), by_hand(problem))
    assert folder.summary()["exchanges"] == 1 + 3 + 1


def test_a_client_that_is_away_in_the_first_round_is_given_the_mean_of_the_others(problem, close):
    close(problem.global_model(problem.run("fedavg-own-start", away=(1,))), by_hand(problem, away=(1,)))


def test_clients_are_measured_with_their_own_models_before_they_train(problem):
    folder = problem.run("fedavg-own-start")
    before, after = problem.measured(folder, 0), problem.measured(folder, 1)
    assert len(set(before)) == 3
    assert before != after
