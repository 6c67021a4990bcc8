"""Model and data: how diabetes goes on within a year, from a table of patients; a client has those of an age band."""

from functools import cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes

TARGET = "progression"
COLUMNS = ("sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")


@cache
def patients() -> pd.DataFrame:
    """Return the table of all patients."""
    return load_diabetes(as_frame=True, scaled=False).frame.rename(columns={"target": TARGET})


def load_table(partition: int, num_partitions: int) -> pd.DataFrame:
    """Return the table of a client, whose neighbours in age are the clients before and after it."""
    table = patients()
    bands = np.array_split(table["age"].argsort(kind="stable"), num_partitions)
    return table.iloc[bands[partition]]


def rows_of(table: pd.DataFrame, test: bool) -> tuple[NDArray, NDArray]:
    """Return inputs ``[rows, columns + 1]``, the last one a constant, and targets; every fourth row is for testing."""
    everybody, chosen = patients()[[*COLUMNS]], table[(np.arange(len(table)) % 4 == 3) == test]
    scaled = (chosen[[*COLUMNS]] - everybody.mean()) / everybody.std()
    return np.column_stack([scaled, np.ones(len(scaled))]), (chosen[TARGET].to_numpy() - 152) / 77


def train(weights: NDArray, x: NDArray, y: NDArray, steps: int, learning_rate: float) -> NDArray:
    """Return the weights of a linear model after some steps of gradient descent on the squared error."""
    for _ in range(steps):
        weights = weights - learning_rate * x.T @ (x @ weights - y) / len(y)
    return weights


def error(weights: NDArray, x: NDArray, y: NDArray) -> float:
    """Return the mean absolute error, in units of the target's standard deviation."""
    return float(np.abs(x @ weights - y).mean())
