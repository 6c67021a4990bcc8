import pytest
import torch

from fedgraph.algorithms.ipa import IPASettings
from fedgraph.clients.ipa import IPAClient
from fedgraph.support.errors import ReplyError


def shared(node, peers=2):
    others = torch.stack([node.model(seed) for seed in range(1, 1 + peers)])
    return {"others": others, "weights": torch.full((peers,), 0.5), "there": torch.ones(peers)}


@pytest.fixture
def node(one_node):
    train = {"optimizer": "adam", "learning-rate": 0.01, "keep-optimizer": True}
    return one_node(IPAClient, IPASettings().as_table(), train)


def test_peers_take_turns(node):
    with pytest.raises(ReplyError, match="take turns"):
        node.ask(1, shared(node), {"parameters": torch.stack([node.model(), node.model()])})


def test_what_is_measured_is_what_the_turn_has_made(node):
    start = {"parameters": node.model()[None]}
    reply = node.ask(1, shared(node), start, clients=("client-0",), evaluate=("test",))
    served = node.served(2, shared(node), {"parameters": reply.stacked["parameters"]}, clients=("client-0",),
                         evaluate=("test",))  # fmt: skip
    assert torch.equal(reply.metrics["test/loss"], served.evaluate()["test/loss"])
    assert reply.stacked["others"].shape == (1, 2, node.layout.num_parameters)


def test_a_turn_that_diverged_leaves_the_moments_as_they_were(node, monkeypatch):
    start = {"parameters": node.model()[None]}
    node.ask(1, shared(node), start, clients=("client-0",))
    before = node.served(2, shared(node), start, clients=("client-0",))._moments
    assert float(before["second-moment"].abs().max()) > 0
    spoilt = shared(node)
    spoilt["others"][0, 0] = torch.nan
    node.ask(2, spoilt, start, clients=("client-0",))
    after = node.served(3, shared(node), start, clients=("client-0",))._moments
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_newcomer_among_the_others_has_fresh_moments_and_the_rest_keep_theirs(node):
    start = {"parameters": node.model()[None]}
    few = shared(node, 2)
    node.ask(1, {**few, "there": torch.tensor([1.0, 0.0, 1.0])}, start, clients=("client-0",))
    served = node.served(2, shared(node, 3), start, clients=("client-0",))
    kept = served._moments["second-moment"][0]
    assert kept.shape[0] == 3
    assert [bool(row.any()) for row in kept] == [True, False, True]
    steps = float(kept.new_tensor(served._moments["step"][0, 0]))
    assert served.alignment.moments["step"].tolist() == [steps, 0.0, steps]


def test_others_that_stay_are_not_sent_back_and_leave_nothing_behind(one_node):
    train = {"optimizer": "adam", "learning-rate": 0.01, "keep-optimizer": True}
    node = one_node(IPAClient, {**IPASettings().as_table(), "moves-others": False}, train)
    start = {"parameters": node.model()[None]}
    reply = node.ask(1, shared(node), start, clients=("client-0",))
    assert set(reply.stacked) == {"parameters"}
    assert node.served(2, shared(node), start, clients=("client-0",))._moments == {}
