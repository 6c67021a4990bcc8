import numpy as np
import torch

from fedgraph.fusion.graphs.feature_neighbours import FeatureNeighbours

OWNERS, INPUTS = 7, 4


def random(seed=0):
    return torch.Generator().manual_seed(seed)


def batch(samples=5, seed=1):
    return torch.randn(samples, OWNERS, INPUTS, generator=random(seed)), torch.ones(samples, OWNERS)


def by_hand(graph, aligned, k):
    """The graph of a batch, owner by owner."""
    weight, bias = graph.weight.detach().numpy(), graph.bias.detach().numpy()
    features = [
        np.concatenate([weight @ sample[owner] + bias for sample in aligned.numpy()]) for owner in range(OWNERS)
    ]
    similarity = np.array([[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in features] for a in features])
    result = np.zeros((OWNERS, OWNERS))
    for owner in range(OWNERS):
        others = sorted(set(range(OWNERS)) - {owner}, key=lambda other: -similarity[owner, other])
        for other in others[:k]:
            result[owner, other] = result[other, owner] = max(similarity[owner, other], 0)
    return result


def test_graph_of_a_batch_links_the_k_most_similar_others_from_either_side():
    for k in (1, 2):
        graph = FeatureNeighbours(OWNERS, INPUTS, random(), k)
        aligned, present = batch()
        found = graph(aligned, present).detach().numpy()
        np.testing.assert_allclose(found, by_hand(graph, aligned, k), atol=1e-5)


def test_an_edge_found_only_below_the_diagonal_stays():
    graph = FeatureNeighbours(3, INPUTS, random(), 1)
    similarity = torch.tensor([[1.0, 0.9, 0.5], [0.9, 1.0, 0.1], [0.5, 0.1, 1.0]])
    expected = torch.tensor([[0.0, 0.9, 0.5], [0.9, 0.0, 0.0], [0.5, 0.0, 0.0]])
    assert torch.equal(graph.graph(similarity), expected)


def test_more_neighbours_than_others_are_all_others():
    graph = FeatureNeighbours(OWNERS, INPUTS, random(), 10)
    aligned, present = batch()
    np.testing.assert_allclose(graph(aligned, present).detach(), by_hand(graph, aligned, OWNERS - 1), atol=1e-5)
    assert torch.equal(FeatureNeighbours(1, INPUTS, random())(aligned[:, :1], present[:, :1]), torch.zeros(1, 1))


def test_evaluation_takes_the_training_samples_whatever_is_evaluated(monkeypatch):
    monkeypatch.setattr("fedgraph.fusion.graphs.feature_neighbours._BLOCK_SAMPLES", 2)
    graph = FeatureNeighbours(OWNERS, INPUTS, random(), 2)
    training, others = batch(5, 1), batch(3, 2)
    graph.settle(*training)
    in_training = graph(*training).detach()
    graph.eval()
    torch.testing.assert_close(graph(*others), in_training)
    assert "similarity" in graph.state_dict()


def test_the_linear_map_is_learned_and_registered():
    graph = FeatureNeighbours(OWNERS, INPUTS, random(), 2)
    graph(*batch()).sum().backward()
    assert all(each.grad.abs().sum() > 0 for each in graph.parameters())
    assert {each.device.type for each in graph.to("meta").parameters()} == {"meta"}


def test_absent_owners_have_no_features_and_no_links():
    graph = FeatureNeighbours(OWNERS, INPUTS, random(), 2)
    aligned, present = batch()
    present[:, 3] = 0
    found = graph(aligned, present)
    assert found.isfinite().all()
    assert (found[3] == 0).all()
    found.sum().backward()
    assert graph.weight.grad.isfinite().all()
