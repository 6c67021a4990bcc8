"""F3 on small tables cut by columns, as it is trained by default."""

import csv

import numpy as np
import pytest

from fedgraph.experiment.experiment import load_experiment

OWNERS, COLUMNS, ROWS = 4, 12, 600


def write(path, seed):
    """Every column tells a little of a label that one row in seven has."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(ROWS, COLUMNS))
    labels = random.random(ROWS) < 1 / (1 + np.exp(2.4 - values @ np.tile([0.5, -0.5, 0.4], OWNERS)))
    with path.open("w", newline="") as stream:
        lines = csv.writer(stream)
        lines.writerow([*(f"column-{number:02d}" for number in range(COLUMNS)), "label"])
        lines.writerows(
            [*(f"{value:.4f}" for value in row), int(label)] for row, label in zip(values, labels, strict=True)
        )


@pytest.fixture
def reached(tmp_path, run_experiment):
    """Mean area under the ROC curve of the owners alone, over tables."""

    def reached(*overrides):
        found = []
        for seed in range(3):
            write(tmp_path / f"{seed}.csv", seed)
            data = f'data={{set = "table-columns", path = "{tmp_path}/{seed}.csv", num-owners = {OWNERS}}}'
            tables = load_experiment("f3/pima.toml", [data, "f3.fusion=vote", "train.workers=1", *overrides]).as_dict()
            found.append(run_experiment(tables).summary()["metrics"]["test"]["auc-local"]["mean"])
        return float(np.mean(found))

    return reached


@pytest.mark.process
def test_owners_of_few_columns_learn_more_than_the_largest_class(reached):
    by_loss, by_accuracy = reached(), reached('f3.local-monitor="accuracy"')
    assert by_loss > by_accuracy + 0.05, "accuracy is that of the largest class from the first epoch on"
    assert by_loss > 0.6
