"""Metrics of a classification in which one class is looked for."""

import math

import pytest
import torch
from sklearn import metrics

from fedgraph.models.base import TaskSpec
from fedgraph.support.probability_scores import calibration_error
from fedgraph.training.tallies import ClassificationTally, tally

NONE = torch.zeros(3)


def test_a_tally_agrees_with_scikit_learn_for_every_client_whatever_the_batches():
    """The second client has five examples fewer, the third none of the positive class."""
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 40, 2, generator=random)
    targets = (torch.rand(3, 40, generator=random) < 0.3).long()
    targets[2] = 0
    weights = torch.ones(3, 40)
    weights[1, 35:] = 0
    task = TaskSpec("classification", (4,), (2,), classes=("alive", "dead"), positive=1)
    sums = tally(task, NONE, NONE)
    for start in (0, 16, 32):
        part = slice(start, start + 16)
        sums.add(logits[:, part], targets[:, part], weights[:, part])
    found = sums.result()
    for client, count in ((0, 40), (1, 35)):
        truth, chances = targets[client, :count].numpy(), logits[client, :count].double().softmax(-1)[:, 1].numpy()
        guesses = chances > 0.5
        wanted = {
            "auc": metrics.roc_auc_score(truth, chances),
            "aupr": metrics.average_precision_score(truth, chances),
            "ece": calibration_error(chances, truth == 1),
            "macro-precision": metrics.precision_score(truth, guesses, average="macro"),
            "macro-recall": metrics.recall_score(truth, guesses, average="macro"),
            "accuracy": metrics.accuracy_score(truth, guesses),
        }
        assert {name: found[name][client].item() for name in wanted} == pytest.approx(wanted)
    assert math.isnan(found["auc"][2])
    assert 0 < found["ece"][2] < 1


def test_a_task_without_a_positive_class_has_the_metrics_that_it_had():
    assert type(tally(TaskSpec("classification", (4,), (2,)), NONE, NONE)) is ClassificationTally
