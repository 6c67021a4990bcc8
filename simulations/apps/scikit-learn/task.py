"""Model and data: tumours, benign or malignant, of clinics whose region decides how many of them are malignant."""

from functools import cache

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import SGDClassifier

MALIGNANT = (0.15, 0.4, 0.7)
"""Share of malignant tumours by region."""
CLASSES = np.array([0, 1])
FEATURES = 30


def region_of(partition: int) -> int:
    """Return the region of a clinic."""
    return partition % len(MALIGNANT)


@cache
def tumours() -> tuple[NDArray, NDArray]:
    """Return standardised features ``[tumours, 30]`` and labels, 0 for malignant ones."""
    data = load_breast_cancer()
    return (data.data - data.data.mean(0)) / data.data.std(0), data.target


def load_data(partition: int, num_partitions: int) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """Return features and labels for training, and those for testing, of a clinic."""
    features, labels = tumours()
    random = np.random.default_rng(partition)
    rows = max(10, len(features) // num_partitions)
    malignant = round(rows * MALIGNANT[region_of(partition)])
    counts = {0: malignant, 1: rows - malignant}
    own = np.concatenate([random.choice(np.flatnonzero(labels == label), n) for label, n in counts.items()])
    random.shuffle(own)
    cut = rows * 4 // 5
    return features[own[:cut]], labels[own[:cut]], features[own[cut:]], labels[own[cut:]]


def model_of(weights: NDArray, intercept: NDArray, learning_rate: float, seed: int) -> SGDClassifier:
    """Return a logistic regression with given parameters."""
    model = SGDClassifier("log_loss", learning_rate="constant", eta0=learning_rate, random_state=seed)
    model.classes_, model.coef_, model.intercept_ = CLASSES, weights, intercept
    return model
