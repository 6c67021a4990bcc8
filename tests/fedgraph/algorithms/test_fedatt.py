import numpy as np
import pytest
import torch

from fedgraph.algorithms.global_model import FedAtt, FedAttSettings
from fedgraph.strategies.engine.replies import Replies
from fedgraph.support.settings import parse

SHAPES = {"first": (3, 2), "gain": (), "mean": (4,)}


@pytest.fixture(scope="session")
def strategy(serve):
    def of(counts=(5, 1, 1, 9), **table):
        random = torch.Generator().manual_seed(0)
        state = {name: torch.randn(shape, generator=random) for name, shape in SHAPES.items()}
        return serve(FedAtt(parse(FedAttSettings, table, "[fedatt]")), counts, state, ["mean"])

    return of


def updated(served, replies):
    return served.algorithm.update(served.clients, served.readout(), replies.answers())


def by_hand(w, clients, step):
    """Equations 3 to 5 layer by layer."""
    moved, start = [], 0
    for size in (6, 1, 4):
        layer, own = w[start : start + size], clients[:, start : start + size]
        s = np.array([np.sqrt(((layer - each) ** 2).sum()) for each in own])
        alpha = np.exp(s) / np.exp(s).sum()
        moved.append(layer - step * sum(a * (layer - each) for a, each in zip(alpha, own, strict=True)))
        start += size
    return np.concatenate(moved)


@pytest.mark.parametrize("step", [1.0, 0.3])
def test_update_is_the_formula(step, strategy):
    served = strategy(step=step)
    theta = torch.randn(4, 11, generator=torch.Generator().manual_seed(1))
    replies = Replies.of(served.federation, torch.arange(4), {"parameters": theta}, {}, {})
    expected = by_hand(served.readout().double().numpy(), theta.double().numpy(), step)
    np.testing.assert_allclose(updated(served, replies).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_clients_without_examples_pay_no_heed(strategy):
    served = strategy(counts=(5, 0, 2, 0))
    theta = torch.randn(4, 11, generator=torch.Generator().manual_seed(1))
    replies = Replies.of(served.federation, torch.arange(4), {"parameters": theta}, {}, {})
    expected = by_hand(served.readout().double().numpy(), theta[[0, 2]].double().numpy(), 1.0)
    np.testing.assert_allclose(updated(served, replies).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_whole_run_with_a_lost_reply(problem, close):
    folder = problem.run("fedatt", {"step": 0.7}, lost=(2,))
    w = problem.initial
    for server_round in (1, 2, 3):
        present = [0, 2] if server_round == 2 else [0, 1, 2]
        models = torch.stack([problem.train(client, w) for client in present])
        layers = []
        for columns in (slice(0, 640), slice(640, 650)):
            difference = w[columns] - models[:, columns]
            layers.append(w[columns] - 0.7 * difference.norm(dim=1).softmax(0) @ difference)
        w = torch.cat(layers)
    close(problem.global_model(folder), w)
    unweighted = problem.run("fedatt", {"step": 0.7})
    assert not torch.allclose(problem.global_model(unweighted), w, atol=1e-4)
