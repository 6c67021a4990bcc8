import torch

from fedgraph.models import build
from fedgraph.models.architectures import initial_model
from fedgraph.models.base import TaskSpec
from fedgraph.support.randomness import derive_seed


def by_hand(problem):
    """The mean over clients by their examples; only the first round begins with models of their own."""
    model = build(problem.tables["model"], TaskSpec("classification", (1, 8, 8), (10,)))
    starts = [initial_model(model, derive_seed(0, "own initial model", name)).double() for name in problem.names]
    share = problem.sizes / problem.sizes.sum()
    for _ in (1, 2, 3):
        found = torch.stack([problem.train(k, start, torch.zeros_like) for k, start in enumerate(starts)])
        starts = [share.double() @ found] * 3
    return starts[0]


def test_whole_run(problem, close):
    folder = problem.run("fedavg-own-start")
    close(problem.global_model(folder), by_hand(problem))
    assert folder.summary()["exchanges"] == 1 + 3 + 1


def test_a_run_that_was_stopped_goes_on(problem, close):
    close(problem.global_model(problem.resumed("fedavg-own-start")), by_hand(problem))


def test_clients_are_measured_with_their_own_models_before_they_train(problem):
    folder = problem.run("fedavg-own-start")
    before, after = problem.measured(folder, 0), problem.measured(folder, 1)
    assert len(set(before)) == 3
    assert before != after
