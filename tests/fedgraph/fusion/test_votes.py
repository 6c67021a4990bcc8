import pytest
import torch

from fedgraph.fusion.scores import decided, scores
from fedgraph.fusion.votes import best_owner, best_threshold, majority_vote, ranked_owners, thresholded
from fedgraph.support.errors import ExperimentError


def binary(rows):
    second = torch.tensor(rows)
    return torch.stack([1 - second, second], -1)


def test_majority_counts_votes_of_those_who_have_the_sample():
    predictions = binary([[0.9, 0.6, 0.1], [0.9, 0.6, 0.1], [0.2, 0.2, 0.2]])
    present = torch.tensor([[True, True, True], [True, False, True], [False, False, False]])
    expected = torch.tensor([[1 / 3, 2 / 3], [0.5, 0.5], [0.5, 0.5]])
    torch.testing.assert_close(majority_vote(predictions, present), expected)


def test_majority_of_several_classes():
    predictions = torch.tensor([[[0.5, 0.3, 0.2], [0.4, 0.35, 0.25], [0.1, 0.2, 0.7]]])
    found = majority_vote(predictions, torch.ones(1, 3, dtype=torch.bool))
    torch.testing.assert_close(found, torch.tensor([[2 / 3, 0.0, 1 / 3]]))


def test_sharpened_votes_are_between_votes_and_the_mean_probability():
    predictions = binary([[0.9, 0.6, 0.1]])
    present = torch.ones(1, 3, dtype=torch.bool)
    p = torch.tensor([0.9, 0.6, 0.1])
    expected = (p**2 / (p**2 + (1 - p) ** 2)).mean()
    torch.testing.assert_close(majority_vote(predictions, present, "sharpened", 0.5)[0, 1], expected)
    sharp = majority_vote(predictions, present, "sharpened", 1e-3)
    torch.testing.assert_close(sharp, majority_vote(predictions, present))


def test_threshold_is_the_one_with_the_best_f1():
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (100,), generator=random)
    # Few owners see a positive: half the votes would be too many to ask for.
    predictions = binary((0.35 * torch.rand(100, 9, generator=random) + 0.3 * labels[:, None]).tolist())
    present = torch.rand(100, 9, generator=random) > 0.1
    threshold = best_threshold(predictions, present, labels)

    def f1(at):
        return scores(thresholded(predictions, present, at), labels)["f1"]

    assert f1(threshold) == max(f1(at) for at in torch.linspace(0.01, 1, 60).tolist())
    assert f1(threshold) > scores(majority_vote(predictions, present), labels)["f1"] + 0.05
    shares = majority_vote(predictions, present)[:, 1]
    expected = shares >= threshold
    assert torch.equal(decided(thresholded(predictions, present, threshold)).bool(), expected)
    order = thresholded(predictions, present, threshold)[:, 1][shares.argsort()]
    assert (order.diff() >= 0).all(), "the order of shares stays"
    assert ((order >= 0) & (order <= 1)).all()


def test_thresholds_are_for_two_classes():
    predictions = torch.full((2, 2, 3), 1 / 3)
    with pytest.raises(ExperimentError, match="require two classes; got 3"):
        best_threshold(predictions, torch.ones(2, 2, dtype=torch.bool), torch.tensor([0, 1]))


def test_unanimous_votes_have_a_threshold_too():
    everybody = torch.ones(3, 2, dtype=torch.bool)
    for value in (0.0, 1.0):
        predictions = binary([[value, value]] * 3)
        threshold = best_threshold(predictions, everybody, torch.tensor([1, 1, 1]))
        assert thresholded(predictions, everybody, threshold).isfinite().all()


def test_best_owner_of_validation_speaks_where_it_can():
    labels = torch.tensor([1, 0, 1, 0])
    predictions = binary([[0.9, 0.4, 0.6, 0.0], [0.1, 0.6, 0.6, 0.0], [0.8, 0.4, 0.6, 0.0], [0.2, 0.6, 0.3, 0.0]])
    present = torch.ones(4, 4, dtype=torch.bool)
    present[:, 3] = False
    ranking = ranked_owners(predictions, present, labels)
    assert ranking.tolist() == [0, 2, 1, 3]
    there = torch.tensor([[True] * 4, [False, True, True, True], [False, False, False, True], [False] * 4])
    found = best_owner(predictions, there, ranking)
    expected = torch.tensor([0.9, 0.6, 0.0, 0.5])
    torch.testing.assert_close(found[:, 1], expected)
    # By accuracy the first two would be right alike often; F1 and accuracy need not agree.
    one_sided = binary([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.9, 0.1]])
    two = torch.ones(4, 2, dtype=torch.bool)
    rare = torch.tensor([1, 0, 0, 0])
    assert ranked_owners(one_sided, two, rare, "f1").tolist() == [0, 1]
    assert ranked_owners(one_sided, two, rare, "accuracy").tolist() == [1, 0]
