import csv

import numpy as np
import pytest
import torch

from fedgraph.fusion.joined_samples import JoinedSamples
from fedgraph.fusion.prediction_files import entropies, write_entropies, write_predictions

PREDICTIONS = torch.tensor(
    [
        [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9]],
        [[0.6, 0.4], [0.7, 0.3], [0.9, 0.1]],
        [[0.5, 0.5], [0.1, 0.9], [0.0, 0.0]],
    ]
)
PRESENT = torch.tensor([[True, True, True], [True, True, True], [True, True, False]])


@pytest.fixture
def joined():
    return JoinedSamples(
        owners=("a", "b", "c"),
        keys=("k1", "k,2", "k3"),
        classes=("calm", "storm"),
        split=torch.tensor([0, 2, 3], dtype=torch.int8),
        labels=torch.tensor([1, 0, -1]),
        embeddings=torch.zeros(3, 3, 1),
        present=PRESENT,
        predictions=PREDICTIONS,
        sizes=torch.ones(3, dtype=torch.int64),
        fingerprints=("", "", ""),
    )


def lines(path):
    with path.open(newline="") as stream:
        return list(csv.reader(stream))


def test_predictions_are_a_line_per_sample(joined, tmp_path):
    probabilities = torch.tensor([[0.25, 0.75], [0.875, 0.125], [0.5, 0.5]])
    write_predictions(tmp_path / "p.csv", joined, probabilities, torch.full((3, 2), 0.0625))
    names = ["probability calm", "probability storm", "deviation calm", "deviation storm"]
    assert lines(tmp_path / "p.csv") == [
        ["key", "split", "label", "predicted", "owners", *names],
        ["k1", "train", "storm", "storm", "3", "0.25", "0.75", "0.0625", "0.0625"],
        ["k,2", "test", "calm", "calm", "3", "0.875", "0.125", "0.0625", "0.0625"],
        # As the scores count it: of two classes the second from a half on.
        ["k3", "new", "", "storm", "2", "0.5", "0.5", "0.0625", "0.0625"],
    ]


def test_entropies_are_those_of_the_owners_votes(joined, tmp_path):
    third = -(2 / 3 * np.log2(2 / 3) + 1 / 3 * np.log2(1 / 3))
    np.testing.assert_allclose(entropies(PREDICTIONS, PRESENT).numpy(), [third, 0.0, 0.0], atol=1e-12)
    write_entropies(tmp_path / "e.csv", joined)
    assert lines(tmp_path / "e.csv") == [
        ["key", "split", "entropy"],
        ["k1", "train", f"{third:.6f}"],
        ["k,2", "test", "0.000000"],
        ["k3", "new", "0.000000"],
    ]


def test_entropies_of_many_classes_against_numpy():
    draw = torch.Generator().manual_seed(0)
    predictions, present = torch.rand(40, 9, 4, generator=draw), torch.rand(40, 9, generator=draw) < 0.7
    present[0] = False
    wanted = []
    for own, there in zip(predictions.numpy(), present.numpy(), strict=True):
        votes = own[there].argmax(1)
        shares = np.bincount(votes, minlength=4)[np.unique(votes)] / max(len(votes), 1)
        wanted.append(-(shares * np.log2(shares)).sum())
    np.testing.assert_allclose(entropies(predictions, present).numpy(), wanted, atol=1e-12)
    assert not torch.signbit(entropies(predictions, present)[0]), "no minus before a zero"
