import pytest
import torch

from fedgraph.clients.feddc import FedDCClient
from fedgraph.clients.feddyn import DriftClient

METHOD = {"alpha": 0.5}


@pytest.fixture
def node(one_node):
    return one_node(DriftClient, METHOD)


def ask(node, server_round, heard, seed=0, **fields):
    names = fields.get("clients", node.clients)
    stacked = {"heard": torch.tensor(heard, dtype=torch.float32)[: len(names), None]}
    return node.ask(server_round, {"parameters": node.model(seed)}, stacked, **fields).stacked["parameters"]


def remembered(node):
    nothing = torch.zeros(node.layout.num_trainable)
    return node.remembered("drift", drift=nothing, before=nothing, round=torch.zeros(1))


def test_a_round_that_was_heard_counts_and_another_does_not(node):
    first = ask(node, 1, (0, 0)) - node.model()
    torch.testing.assert_close(remembered(node)["drift"], first)
    second = ask(node, 2, (1, 0), seed=1) - node.model(1)
    kept = remembered(node)
    torch.testing.assert_close(kept["drift"], second + first * torch.tensor([[1.0], [0.0]]))
    torch.testing.assert_close(kept["before"], first * torch.tensor([[1.0], [0.0]]))


def test_the_term_is_that_of_the_rows_in_training(one_node):
    drift = torch.randn(2, one_node(DriftClient, METHOD).layout.num_trainable)
    v = torch.randn_like(drift)
    for kind, more in ((DriftClient, 0), (FedDCClient, 1)):
        node = one_node(kind, METHOD)
        x, c = node.model(), torch.randn(node.layout.num_trainable)
        served = node.served(2, {"parameters": x, "control": c}, {"heard": torch.zeros(2, 1)})
        served.drift, served.controls = drift, torch.randn_like(drift)
        for clients in (slice(1, 2), torch.tensor([1, 0])):
            term = served.gradient_term()(v[clients], clients, torch.ones(2))
            wanted = 0.5 * (v[clients] - x + drift[clients])
            if more:
                wanted = wanted + c - served.controls[clients]
            torch.testing.assert_close(term, wanted)


@pytest.mark.parametrize("trouble", ["diverged", "untrained"])
def test_a_client_that_diverged_or_did_not_train_keeps_its_drift(node, first_client_fails, trouble):
    first = ask(node, 1, (0, 0)) - node.model()
    first_client_fails(DriftClient, trouble)
    ask(node, 2, (1, 1))
    kept = remembered(node)
    torch.testing.assert_close(kept["drift"][0], first[0])
    assert not torch.allclose(kept["drift"][1], first[1])
