import pytest
import torch

from fedgraph.support.errors import ExperimentError

KEPT = {"parameters": torch.zeros(650), "trained": torch.tensor(0.0)}


def by_hand(problem, weight, momentum=0.0, present=lambda client, server_round: True):
    """Algorithm 1; returns the global model and the clients' own."""
    w, own = problem.initial, [problem.initial] * 3
    for server_round in (1, 2, 3):
        here = [client for client in range(3) if present(client, server_round)]
        for client in here:
            pull = lambda v, w=w: weight * (v - w)  # noqa: E731
            own[client] = problem.train(client, own[client], pull, momentum=momentum)
        models = torch.stack([problem.train(client, w, momentum=momentum) for client in here])
        w = problem.sizes[here] @ models / problem.sizes[here].sum()
    return w, torch.stack(own)


@pytest.mark.parametrize(("weight", "train"), [(1.5, {}), (0.5, {"momentum": 0.5})])
def test_whole_run(problem, close, weight, train):
    folder = problem.run("ditto", {"lambda-personal": weight}, train)
    w, own = by_hand(problem, weight, **train)
    close(problem.global_model(folder), w)
    close(problem.kept(folder, "personal-model", **KEPT)["parameters"], own)
    assert problem.measured(folder) == problem.losses(own)


def test_a_client_that_is_away_does_not_train_its_own_model_either(problem, close):
    folder = problem.run("ditto", {"lambda-personal": 1.0}, away=(1, 3))
    w, own = by_hand(problem, 1.0, present=lambda client, server_round: client != 1 or server_round == 2)
    # Before its first training a client's own model is the global one, which by then has moved.
    first = problem.run("ditto", {"lambda-personal": 1.0}, away=(1,), experiment={"rounds": 1})
    own[1] = problem.train(1, moved := problem.global_model(first), lambda v: v - moved)
    close(problem.global_model(folder), w)
    close(problem.kept(folder, "personal-model", **KEPT)["parameters"], own)


def test_without_a_pull_the_own_models_are_those_of_local_training(digits_tables, run_experiment):
    """To the last bit, moments included: those of the global model's training do not get in."""
    digits_tables["train"] |= {"momentum": 0.9, "keep-optimizer": True, "learning-rate": 0.02, "batch-size": 16}
    digits_tables["evaluation"] = {"splits": ["train", "test"]}
    ditto = run_experiment(
        {**digits_tables, "experiment": {"method": "ditto", "rounds": 3}, "ditto": {"lambda-personal": 0.0}}
    )
    local = run_experiment({**digits_tables, "experiment": {"method": "local", "rounds": 3}})
    lines = [(folder.path / "metrics.jsonl").read_text().splitlines() for folder in (ditto, local)]
    ours, theirs = ([line for line in each if '"evaluation"' in line] for each in lines)
    assert len(ours) == 4 * 2
    assert ours == theirs


def test_the_global_model_is_that_of_fedavg_whatever_the_pull(problem, close):
    train = {"momentum": 0.9, "keep-optimizer": True, "learning-rate": 0.05, "batch-size": 16}
    ditto = problem.run("ditto", {"lambda-personal": 2.0}, train)
    close(problem.global_model(ditto), problem.global_model(problem.run("fedavg", train=train)))


def test_what_does_not_fit_is_refused_at_the_server(problem):
    with pytest.raises(ExperimentError, match="restore-best .*'ditto'"):
        problem.run("ditto", evaluation={"monitor": "test/loss", "patience": 1})
    with pytest.raises(ExperimentError, match="average-last .*'ditto'"):
        problem.run("ditto", evaluation={"average-last": 2})
