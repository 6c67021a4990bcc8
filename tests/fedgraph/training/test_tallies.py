"""Metrics of a classification in which one class is looked for."""

import math

import pytest
import torch
from sklearn import metrics

import fedgraph
from fedgraph.models.base import TaskSpec
from fedgraph.support.errors import FedgraphError
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


def test_accuracy_on_classes_that_a_client_has_not_in_training():
    """The first client lacks class 2, the second classes 0 and 1, the third none."""
    targets = torch.tensor([[0, 2, 2, 1], [0, 1, 2, 2], [0, 1, 2, 2]])
    predicted = torch.tensor([[0, 2, 1, 0], [0, 0, 2, 2], [0, 1, 2, 2]])
    unseen = torch.tensor([[False, False, True], [True, True, False], [False, False, False]])
    logits = torch.nn.functional.one_hot(predicted, 3).float()
    sums = tally(TaskSpec("classification", (4,), (3,)), NONE, NONE, unseen=unseen)
    sums.add(logits, targets, torch.ones(3, 4))
    found = sums.result()["accuracy-unseen"]
    assert found[:2].tolist() == [0.5, 0.5]
    assert math.isnan(found[2])


def test_a_run_measures_classes_that_a_client_has_not(tmp_path):
    experiment = {
        "experiment": {"method": "local", "rounds": 6},
        "data": {"set": "digits", "partition": "classes", "class-groups": [5, 5], "test": "shared", "limit": 300},
        "model": {"name": "mlp", "hidden": [16]},
        "train": {"learning-rate": 0.2, "local-epochs": 2},
        "evaluation": {"unseen-classes": True, "splits": ["test"]},
    }
    run = fedgraph.run(experiment, progress=False, out=tmp_path)
    values = run.summary["per_client"]["test"]
    assert set(values["accuracy-unseen"].values()) == {0.0}
    assert min(values["accuracy"].values()) > 0.3
    series = {"set": "synthetic-traffic", "sensors": 3, "days": 2}
    with pytest.raises(FedgraphError, match="unseen-classes"):
        fedgraph.run({**experiment, "data": series}, progress=False, out=tmp_path)
