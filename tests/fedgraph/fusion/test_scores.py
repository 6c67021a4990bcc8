import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, log_loss, roc_auc_score

from fedgraph.fusion.scores import decided, decision_scores, owner_scores, scores


def binary(*second):
    column = torch.tensor(second)
    return torch.stack([1 - column, column], 1)


def test_two_classes_by_hand():
    found = scores(binary(0.9, 0.5, 0.4, 0.2, 0.7), torch.tensor([1, 0, 1, 0, 0]))
    # Predicted: 1 1 0 0 1. Precision 1/3, recall 1/2. Of 6 pairs the positive is above in 3 and 1.
    assert found["accuracy"] == pytest.approx(2 / 5)
    assert found["f1"] == pytest.approx(2 / (3 + 2))
    assert found["auc"] == pytest.approx(4 / 6)
    expected = -(math.log(0.9) + math.log(0.5) + math.log(0.4) + math.log(0.8) + math.log(0.3)) / 5
    assert found["loss"] == pytest.approx(expected)


def test_more_classes_are_averaged():
    probabilities = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.5, 0.4, 0.1], [0.1, 0.2, 0.7]])
    found = scores(probabilities, torch.tensor([0, 1, 1, 2]))
    # F1 of 0: 2 / (2 + 1), of 1: 2 / (1 + 2), of 2: 1.
    assert found["f1"] == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)
    assert found["auc"] == pytest.approx(1.0)
    assert found["accuracy"] == pytest.approx(3 / 4)


def test_the_area_of_more_classes_is_that_of_one_class_against_one_other():
    labels = torch.tensor([0, 1, 1, 2])
    probabilities = torch.tensor([[0.4, 0.5, 0.1], [0.5, 0.4, 0.1], [0.5, 0.4, 0.1], [0.1, 0.2, 0.7]])
    # 0 against 1: 0 by the score of 0, 0 by that of 1. 0 against 2, and 1 against 2: 1 by both.
    assert scores(probabilities, labels)["auc"] == pytest.approx((0 + 1 + 1) / 3)
    # One class against all others: 1 of 3 pairs, 2 of 4, 3 of 3.
    assert scores(probabilities, labels)["auc"] != pytest.approx((1 / 3 + 2 / 4 + 1) / 3)


def area_of_pairs(probabilities, labels):
    """Hand & Till by its definition, pair of samples by pair of samples."""
    there = sorted(set(labels.tolist()))

    def share(first, second):
        ones, others = (probabilities[labels == each, first].tolist() for each in (first, second))
        return np.mean([(one > other) + (one == other) / 2 for one, other in itertools.product(ones, others)])

    pairs = itertools.combinations(there, 2)
    return np.mean([(share(first, second) + share(second, first)) / 2 for first, second in pairs])


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("steps", [4, 10**6])
def test_the_area_is_that_of_hand_and_till_with_ties_and_with_classes_that_are_lacking(classes, steps):
    random = torch.Generator().manual_seed(classes)
    labels = torch.randint(classes, (80,), generator=random)
    probabilities = torch.rand(80, classes, generator=random).mul(steps).round().double() + 1
    probabilities[torch.arange(80), labels] *= 1.3
    probabilities /= probabilities.sum(1, keepdim=True)
    probabilities = torch.where(labels[:, None] % 2 == 0, probabilities, probabilities.round(decimals=2))
    assert scores(probabilities, labels)["auc"] == pytest.approx(area_of_pairs(probabilities, labels))
    if classes == 2:
        expected = roc_auc_score(labels, probabilities[:, 1])
    else:
        probabilities /= probabilities.sum(1, keepdim=True)
        expected = roc_auc_score(labels, probabilities, multi_class="ovo", average="macro", labels=range(classes))
    assert scores(probabilities, labels)["auc"] == pytest.approx(expected)
    if classes == 5:
        rows = (labels != 1) & (labels != 4)
        some, present = probabilities[rows], labels[rows]
        expected = roc_auc_score(present, some, multi_class="ovo", average="macro", labels=range(5))
        assert scores(some, present)["auc"] == pytest.approx(expected)
        assert expected == pytest.approx(area_of_pairs(some, present))


def test_classes_without_samples_have_no_area():
    assert math.isnan(scores(binary(0.2, 0.6), torch.tensor([1, 1]))["auc"])
    probabilities = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1]])
    assert scores(probabilities, torch.tensor([0, 1]))["auc"] == 1.0
    assert math.isnan(scores(probabilities, torch.tensor([2, 2]))["auc"])
    assert all(math.isnan(value) for value in scores(probabilities[:0], torch.tensor([]).long()).values())


def test_certain_and_wrong_has_a_finite_loss():
    assert 20 < scores(binary(1.0, 1.0), torch.tensor([0, 0]))["loss"] < 30


def test_of_two_classes_the_second_wins_a_tie():
    assert decided(binary(0.5, 0.49)).tolist() == [1, 0]
    assert decided(torch.tensor([[0.2, 0.5, 0.3]])).tolist() == [1]


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_owners_are_scored_by_the_samples_that_they_have(classes):
    random = torch.Generator().manual_seed(classes)
    labels = torch.randint(classes, (60,), generator=random)
    predictions = torch.randint(1, 6, (60, 5, classes), generator=random).double()
    predictions /= predictions.sum(2, keepdim=True)
    present = torch.rand(60, 5, generator=random) > 0.4
    present[:, 3] = False
    present[:, 4] = labels == 1
    found = owner_scores(predictions, present, labels)
    for owner in range(3):
        known, labelled = predictions[present[:, owner], owner], labels[present[:, owner]]
        own, truth = known.numpy(), labelled.numpy()
        chosen, averaged = decided(known).numpy(), "binary" if classes == 2 else "macro"
        if classes == 2:
            area = roc_auc_score(truth, own[:, 1])
        else:
            area = roc_auc_score(truth, own, multi_class="ovo", average="macro")
        expected = {
            "accuracy": accuracy_score(truth, chosen),
            "f1": f1_score(truth, chosen, average=averaged),
            "auc": area,
            "loss": log_loss(truth, own, labels=range(classes)),
        }
        assert {name: float(values[owner]) for name, values in found.items()} == pytest.approx(expected)
        assert scores(known, labelled) == pytest.approx(expected)
    assert all(math.isnan(values[3]) for values in found.values()), "it has no sample"
    assert math.isnan(found["auc"][4])
    own = decided(predictions[present[:, 4], 4])
    average = "binary" if classes == 2 else "macro"
    assert float(found["f1"][4]) == pytest.approx(f1_score(np.ones(len(own)), own.numpy(), average=average))
    for name, values in decision_scores(predictions, present, labels).items():
        torch.testing.assert_close(values, found[name], rtol=0, atol=0, equal_nan=True)


def test_a_class_that_nobody_has_nor_predicts_is_no_part_of_the_mean_f1():
    probabilities = torch.tensor([[0.8, 0.1, 0.1], [0.7, 0.2, 0.1]])
    assert scores(probabilities, torch.tensor([0, 0]))["f1"] == 1.0
    assert scores(binary(0.1, 0.2), torch.tensor([0, 0]))["f1"] == 0.0


@pytest.mark.parametrize("classes", [2, 3])
def test_an_owner_whose_predictions_are_not_finite_has_no_scores(classes):
    predictions = torch.full((4, 3, classes), 1 / classes)
    predictions[1, 0, 1] = torch.nan
    predictions[2, 1] = torch.nan
    present = torch.ones(4, 3, dtype=torch.bool)
    present[2, 1] = False
    found = owner_scores(predictions, present, torch.arange(4) % classes)
    assert all(values[0].isnan() and values[1:].isfinite().all() for values in found.values())
