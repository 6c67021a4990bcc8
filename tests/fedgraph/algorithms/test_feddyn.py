import pytest
import torch

from fedgraph.algorithms.drift import FedDC, FedDCSettings, FedDyn, FedDynSettings
from fedgraph.models.parameters import Layout
from fedgraph.strategies.engine.replies import Replies
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import parse

ALPHA = 0.3
NOTHING = torch.zeros(650)
LAYOUT = Layout.of({"w": torch.zeros(4), "mean": torch.zeros(2)}, buffers=["mean"])


def by_hand(problem, rounds=(1, 2, 3), present=lambda client, server_round: True):
    """Algorithm 1 of the paper, with its g_k and h, in which a client that is not heard has no part."""
    theta, h = problem.initial, NOTHING.double()
    g = [NOTHING.double() for _ in problem.names]
    for server_round in rounds:
        heard = [client for client in range(3) if present(client, server_round)]
        found = {}
        for k in heard:
            found[k] = problem.train(k, theta, lambda v, k=k, theta=theta: -g[k] + ALPHA * (v - theta))
        for k in heard:
            g[k] = g[k] - ALPHA * (found[k] - theta)
        h = h - ALPHA / 3 * sum(found[k] - theta for k in heard)
        theta = torch.stack(list(found.values())).mean(0) - h / ALPHA
    return theta, torch.stack(g)


def drifts(problem, folder, heard=(3, 3, 3)):
    """What the clients go on from: their drift, or that before a round of which nobody has heard."""
    kept = problem.kept(folder, "drift", drift=NOTHING, before=NOTHING, round=torch.zeros(1))
    return torch.where(kept["round"] <= torch.tensor(heard)[:, None], kept["drift"], kept["before"])


def test_whole_run(problem, close):
    folder = problem.run("feddyn", {"alpha": ALPHA})
    theta, g = by_hand(problem)
    close(problem.global_model(folder), theta)
    close(-ALPHA * drifts(problem, folder), g)
    close(problem.strategy_state(folder)["drift"], -g.mean(0) / ALPHA)
    assert g.abs().max() > 0.01


@pytest.mark.parametrize("how", ["away", "lost"])
@pytest.mark.parametrize("server_rounds", [(2,), (1, 2), (2, 3)])
def test_a_client_that_is_not_heard_has_no_part(problem, close, how, server_rounds):
    """Whether the request did not come or the reply was lost: client and server go on from the same drift."""
    folder = problem.run("feddyn", {"alpha": ALPHA}, **{how: server_rounds})
    theta, g = by_hand(problem, present=lambda client, r: client != 1 or r not in server_rounds)
    close(problem.global_model(folder), theta)
    last = max(r for r in (0, 1, 2, 3) if r not in server_rounds)
    close(-ALPHA * drifts(problem, folder, (3, last, 3)), g)


def test_a_reply_of_an_earlier_round_adds_no_drift(problem):
    kept = problem.run("feddyn", {"alpha": ALPHA}, experiment={"on-missing": "keep-last"}, lost=(2,))
    state = problem.strategy_state(kept)
    torch.testing.assert_close(state["drift"], drifts(problem, kept).mean(0), rtol=1e-4, atol=1e-6)
    assert state["heard"].flatten().tolist() == [3, 3, 3]


def by_hand_dc(problem):
    """Algorithm 1 of FedDC, with the control variates of the released program, which are those of SCAFFOLD."""
    w, c = problem.initial, NOTHING.double()
    h, own = torch.zeros(3, 650).double(), torch.zeros(3, 650).double()
    for _ in (1, 2, 3):
        found = torch.stack(
            [problem.train(i, w, lambda v, d=ALPHA * (h[i] - w) + c - own[i]: ALPHA * v + d) for i in range(3)]
        )
        h = h + found - w
        own = own - c + (w - found) / (3 * 0.2)
        w, c = (found + h).mean(0), own.mean(0)
    return w, h, own


def test_whole_run_of_feddc(problem, close):
    folder = problem.run("feddc", {"alpha": ALPHA})
    w, h, own = by_hand_dc(problem)
    close(problem.global_model(folder), w)
    close(drifts(problem, folder), h)
    close(problem.kept(folder, "control-variates", control=NOTHING)["control"], own)


@pytest.fixture
def served(serve):
    def of(kind, settings, train="{}"):
        initial = {"w": torch.arange(4.0), "mean": torch.ones(2)}
        return serve(kind(parse(settings, {}, "t")), (5, 0, 9), initial, ["mean"], train=train)

    return of


def test_buffers_are_averaged_and_clients_without_examples_do_not_count(served):
    strategy = served(FedDyn, FedDynSettings)
    theta = torch.arange(18.0).reshape(3, 6)
    answers = Replies.of(strategy.federation, torch.arange(3), {"parameters": theta}, {}, {}).answers()
    strategy.state = strategy.algorithm.moved(strategy.clients, strategy.state, answers, 1)
    got = strategy.readout()
    drift = ((theta[0] + theta[2]) / 2)[:4] - torch.arange(4.0)
    torch.testing.assert_close(got[:4], ((theta[0] + theta[2]) / 2)[:4] + drift)
    torch.testing.assert_close(got[4:], ((theta[0] + theta[2]) / 2)[4:])
    assert strategy.algorithm.ask(strategy.clients, strategy.state).stacked["heard"].flatten().tolist() == [1, 1, 1]


def test_feddc_needs_sgd(served):
    with pytest.raises(ExperimentError, match=r"\[train\] optimizer: feddc .*'adam'"):
        served(FedDC, FedDCSettings, train='{"optimizer": "adam"}')
    served(FedDyn, FedDynSettings, train='{"optimizer": "adam"}')
