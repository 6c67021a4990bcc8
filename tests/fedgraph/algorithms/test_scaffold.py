import pytest
import torch
from torch.nn.functional import cross_entropy

from fedgraph.algorithms.drift import Scaffold, ScaffoldSettings
from fedgraph.models.parameters import Layout
from fedgraph.strategies.engine.replies import Replies
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import parse
from fedgraph.training.batches import shuffling_keys, training_batches
from fedgraph.training.settings import TrainSettings

LAYOUT = Layout.of({"w": torch.zeros(4), "mean": torch.zeros(2)}, buffers=["mean"])


@pytest.fixture(scope="session")
def strategy(serve):
    def of(counts=(5, 1, 9), train="{}", **table):
        algorithm = Scaffold(parse(ScaffoldSettings, table, "[scaffold]"))
        return serve(algorithm, counts, {"w": torch.arange(4.0), "mean": torch.ones(2)}, ["mean"], train=train)

    return of


def updated(served, replies):
    """The model after the first round."""
    begun, _ = served.algorithm.begin(served.clients, served.state, 1)
    with pytest.raises(StopIteration) as end:
        begun.send(replies.answers())
    served.state = end.value.value
    return served.readout()


def control(served):
    return served.algorithm.ask(served.clients, served.state).shared["control"]


def by_hand(problem, eta=1.0, present=lambda client, server_round: True, **sgd):
    """Algorithm 1 with option II; the server knows only the changes of those present."""
    x, c = problem.initial, torch.zeros(650).double()
    own = [torch.zeros(650).double() for _ in problem.names]
    # How much of its gradients a way adds up: the way where the gradient is 1 everywhere.
    unit = problem.descend(torch.ones_like, torch.zeros(1).double(), **sgd)
    for server_round in (1, 2, 3):
        ways, changes = [], []
        for client in range(3):
            if not present(client, server_round):
                continue
            y = problem.train(client, x, lambda v, i=client, c=c: c - own[i], **sgd)
            new = own[client] - c + (x - y) / -unit
            ways.append(y - x)
            changes.append(new - own[client])
            own[client] = new
        x = x + eta * torch.stack(ways).mean(0)
        c = c + len(changes) / 3 * torch.stack(changes).mean(0)
    return x, torch.stack(own)


KINDS = {
    "plain": ({}, {}, {}),
    "momentum": ({"momentum": 0.9}, {"momentum": 0.9, "learning-rate": 0.05}, {"rate": 0.05}),
    "nesterov": (
        {"momentum": 0.5, "nesterov": True}, {"momentum": 0.5, "nesterov": True, "learning-rate": 0.1}, {"rate": 0.1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_whole_run(problem, close, kind):
    sgd, train, more = KINDS[kind]
    folder = problem.run("scaffold", {"server-learning-rate": 0.8}, train)
    x, own = by_hand(problem, 0.8, **sgd, **more)
    close(problem.global_model(folder), x)
    close(problem.kept(folder, "control-variates", control=torch.zeros(650))["control"], own)
    assert own.abs().max() > 0.01


def test_decay_from_round_to_round_counts_in_the_control_variates(problem, close):
    folder = problem.run("scaffold", train={"learning-rate-decay": 0.5}, experiment={"rounds": 2})
    x, c, own = problem.initial, torch.zeros(650).double(), torch.zeros(3, 650).double()
    for rate in (0.2, 0.1):
        ys = torch.stack([problem.train(i, x, lambda v, d=c - own[i]: d, rate=rate) for i in range(3)])
        own = own - c + (x - ys) / (3 * rate)
        x, c = ys.mean(0), own.mean(0)
    close(problem.global_model(folder), x)


def test_clients_with_different_numbers_of_steps(problem, close):
    """Each divides its way by its own K times the rate, and still counts as much as the others."""
    train = {"learning-rate": 0.1, "batch-size": 30, "local-epochs": 2}
    folder = problem.run("scaffold", train={**train, "local-steps": None})
    x, c, own = problem.initial, torch.zeros(650).double(), torch.zeros(3, 650).double()
    for server_round in (1, 2, 3):
        drawn = training_batches(
            shuffling_keys(0, problem.names), problem.sizes.long(), parse(TrainSettings, train, "t"), server_round
        )
        new, models, steps = own.clone(), [], set()
        for client in range(3):
            inputs, targets = problem.examples[client]
            rows = [batch[batch >= 0] for batch in drawn[:, client] if bool((batch >= 0).any())]
            y = x
            for batch in rows:
                v = y.detach().requires_grad_()
                loss = cross_entropy(inputs[batch] @ v[:-10].view(10, 64).T + v[-10:], targets[batch])
                y = y - 0.1 * (torch.autograd.grad(loss, v)[0] - own[client] + c)
            new[client] += -c + (x - y) / (len(rows) * 0.1)
            models.append(y)
            steps.add(len(rows))
        assert len(steps) > 1
        x, c, own = torch.stack(models).mean(0), new.mean(0), new
    close(problem.global_model(folder), x)
    close(problem.kept(folder, "control-variates", control=torch.zeros(650))["control"], own)


def test_clients_that_are_away(problem, close):
    """A client that no request reaches in a round keeps its control variate, and the server what it knows of it."""
    away = problem.run("scaffold", experiment={"on-missing": "skip"}, away=(2,))
    x, own = by_hand(problem, present=lambda client, server_round: (client, server_round) != (1, 2))
    close(problem.global_model(away), x)
    close(problem.kept(away, "control-variates", control=torch.zeros(650))["control"], own)


@pytest.mark.parametrize("policy", ["skip", "keep-last"])
def test_a_lost_reply_leaves_no_trace_in_the_control_variates(problem, policy):
    """The client has moved on, the server has not heard: after the next reply they agree again."""
    lost = problem.run("scaffold", experiment={"on-missing": policy}, lost=(2,))
    controls = problem.kept(lost, "control-variates", control=torch.zeros(650))["control"]
    state = problem.strategy_state(lost)
    torch.testing.assert_close(state["controls"], controls)


def test_one_client_without_others_is_sgd(problem, close):
    """With a single client c equals c_i, so the correction is nothing."""
    alone = problem.run("scaffold", node_configs=[{"clients": "client-1"}])
    x = problem.initial
    for _ in range(3):
        x = problem.train(1, x)
    close(problem.global_model(alone), x)


def test_buffers_are_averaged_and_clients_count_alike(strategy):
    served = strategy(**{"server-learning-rate": 3.0})
    random = torch.Generator().manual_seed(0)
    theta, controls = torch.randn(2, 6, generator=random), torch.randn(2, 4, generator=random)
    replies = Replies.of(
        served.federation, torch.tensor([0, 2]), {"parameters": theta, "control": controls}, {}, {"b": "gone"}
    )
    x = torch.arange(4.0)
    got = updated(served, replies)
    torch.testing.assert_close(got[:4], x + 3 * (theta[:, :4].mean(0) - x))
    torch.testing.assert_close(got[4:], theta[:, 4:].mean(0))
    torch.testing.assert_close(control(served), controls.sum(0) / 3)


def test_clients_without_examples_do_not_thin_the_means(strategy):
    served = strategy(counts=(5, 0, 9))
    theta, controls = torch.arange(18.0).reshape(3, 6), torch.tensor([[2.0] * 4, [0.0] * 4, [4.0] * 4])
    replies = Replies.of(served.federation, torch.arange(3), {"parameters": theta, "control": controls}, {}, {})
    torch.testing.assert_close(updated(served, replies), (theta[0] + theta[2]) / 2)
    assert control(served).tolist() == [3.0] * 4


def test_a_checkpoint_brings_the_control_variates_back(strategy):
    served, other = strategy(), strategy()
    served.state["controls"] = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    other.load(served.saved())
    assert torch.equal(control(other), control(served))
    assert torch.equal(other.readout(), served.readout())


def test_only_sgd_with_fresh_momentum(strategy):
    with pytest.raises(ExperimentError, match=r"\[train\] optimizer: scaffold .*'adam'"):
        strategy(train='{"optimizer": "adam"}')
    with pytest.raises(ExperimentError, match=r"\[train\] keep-optimizer"):
        strategy(train='{"momentum": 0.9, "keep-optimizer": true}')
    strategy(train='{"keep-optimizer": true}')
