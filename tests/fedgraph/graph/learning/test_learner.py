import pytest
import torch

from fedgraph.graph.learning import GraphLearner, kernel_graph
from fedgraph.graph.pairwise import squared_distances
from fedgraph.support.errors import GraphError
from fedgraph.support.files import load_state, save_state

ALL = torch.arange(12)
GROUP = ALL % 2


def two_groups(seed=0, apart=1.0):
    """Features ``[12, 200]`` of two groups."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(12, 200, generator=random) + apart * torch.randn(2, 200, generator=random)[GROUP]


def inside_and_across(weights):
    """Mean weight of a pair in the same group, and of a pair in different ones."""
    same = GROUP[:, None] == GROUP
    return float(weights[same].sum() / 60), float(weights[~same].sum() / 72)


@pytest.mark.parametrize("learner", ["smoothness", "kernel", "encoder"])
@pytest.mark.parametrize("neighbours", [3, 5, 8])
def test_there_is_more_weight_inside_groups_than_across(learner, neighbours):
    learned = GraphLearner(12, learner, neighbours)
    learned.learn(two_groups(), ALL, 1)
    inside, across = inside_and_across(learned.weights)
    assert inside > 2 * across
    assert (learned.weights >= 0).all()
    assert (learned.weights.diagonal() == 0).all()
    assert (learned.weights.sum(dim=1) > 0).all()


def test_the_released_form_cannot_tell_inside_from_across():
    ratios = []
    for seed in range(20):
        learned = GraphLearner(12, "released", seed=seed)
        learned.learn(two_groups(apart=10.0), ALL, 1)
        inside, across = inside_and_across(learned.weights)
        ratios.append(inside / across)
    assert 0.8 < sum(ratios) / len(ratios) < 1.2
    assert min(ratios) < 1


def test_the_released_form_begins_anew_every_round_and_the_encoder_goes_on():
    features = two_groups()
    released = GraphLearner(12, "released")
    released.learn(features, ALL, 1)
    first = released.weights.clone()
    released.learn(features, ALL, 2)
    assert (released.weights - first).norm() > 0.5 * first.norm()
    encoder = GraphLearner(12, "encoder", 5)
    encoder.learn(features, ALL, 1)
    first = encoder.weights.clone()
    encoder.learn(features, ALL, 2)
    assert torch.equal(encoder.weights, first)


@pytest.mark.parametrize("learner", ["smoothness", "kernel", "encoder", "released"])
def test_what_is_known_of_absent_clients_stays(learner):
    learned = GraphLearner(12, learner, 3)
    learned.learn(two_groups(), ALL, 1)
    before = learned.weights.clone()
    present = torch.tensor([0, 2, 3, 5, 6, 7, 10])
    learned.learn(two_groups(seed=1)[present], present, 2)
    among = torch.zeros(12, 12, dtype=torch.bool)
    among[present[:, None], present] = True
    assert torch.equal(learned.weights[~among], before[~among])
    assert not torch.equal(learned.weights[among], before[among])
    assert torch.equal(learned.among(present), learned.weights[present][:, present])
    if learner != "released":
        same = GROUP[present][:, None] == GROUP[present]
        assert learned.among(present)[same].sum() > 2 * learned.among(present)[~same].sum()


def test_one_client_or_none_present_is_no_error():
    learned = GraphLearner(12, "smoothness")
    for present in ([], [3]):
        learned.learn(two_groups()[present], torch.tensor(present, dtype=torch.int64), 1)
    assert learned.weights.sum() == 0
    assert learned.seen.nonzero().flatten().tolist() == [3]


def test_distances_are_averaged_over_rounds():
    learned = GraphLearner(12, "kernel", 3, momentum=0.75)
    rounds = [squared_distances(two_groups(seed)).double() for seed in (0, 1)]
    first, second = (d / (d.sum() / 132) for d in rounds)
    learned.learn(two_groups(0), ALL, 1)
    torch.testing.assert_close(learned.weights, kernel_graph(first, 3))
    learned.learn(100 * two_groups(1), ALL, 2)
    torch.testing.assert_close(learned.weights, kernel_graph(0.75 * first + 0.25 * second, 3), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("learner", ["smoothness", "kernel", "encoder", "released"])
def test_it_goes_on_from_saved_state_as_if_it_had_not_stopped(learner, tmp_path):
    whole = GraphLearner(12, learner, 3, momentum=0.5)
    for server_round in (1, 2, 3):
        whole.learn(two_groups(server_round), ALL, server_round)
    part = GraphLearner(12, learner, 3, momentum=0.5)
    part.learn(two_groups(1), ALL, 1)
    save_state(tmp_path / "state", {"learner": part.state()})
    resumed = GraphLearner(12, learner, 3, momentum=0.5)
    resumed.load_state(load_state(tmp_path / "state")["learner"])
    for server_round in (2, 3):
        resumed.learn(two_groups(server_round), ALL, server_round)
    assert torch.equal(resumed.weights, whole.weights)
    assert torch.equal(resumed.seen, whole.seen)


def test_features_that_do_not_fit_are_refused():
    learned = GraphLearner(12, "kernel")
    with pytest.raises(GraphError, match=r"12, .*\[3, 200\]"):
        learned.learn(two_groups()[:3], ALL, 1)
    features = two_groups()
    features[4, 7] = torch.nan
    with pytest.raises(GraphError, match="not finite"):
        learned.learn(features, ALL, 1)
