"""Clients' tables for methods that train a model of one label."""

import numpy as np
import pytest
import torch

from fedgraph.data import open_source, parse_data
from fedgraph.data.encoding import read_values
from fedgraph.data.schema import infer_schema
from fedgraph.data.tables.client_tables import client_table_source
from fedgraph.support.errors import DataError, ExperimentError


@pytest.fixture
def source(table_tables, tmp_path):
    """``source(label, **data)`` -> the data set of ``table_tables`` with a label."""

    def opened(label, **data):
        return open_source(parse_data({**table_tables["data"], "label": label, **data}), tmp_path)

    return opened


def rows_of(data, split, client):
    rows = data.splits[split].rows[client]
    rows = rows[rows >= 0]
    return data.splits[split].inputs[rows], data.splits[split].targets[rows]


def test_rows_are_those_that_graphical_models_have(source):
    opened = source("ill")
    data = opened.load(["east", "west"])
    assert data.task.classes == ("n", "y")
    assert data.task.positive == 1
    # Nothing that a client has to itself, and not the label.
    assert data.task.features == ("height", "weight", "ward=a", "ward=b", "ward=c", "stay")
    held, public = opened.load_table("west"), opened.public_table()
    schema = infer_schema(public).select(["weight", "ill"])
    values, known = read_values(held.table, schema)[held.rows("train").numpy()], read_values(public, schema)
    inputs, targets = rows_of(data, "train", 1)
    assert targets.tolist() == values[:, 1].tolist()
    scaled = (values[:, 0] - known[:, 0].mean()) / known[:, 0].std()
    assert np.allclose(inputs[:, 1], scaled, atol=1e-6)
    assert (inputs[:, 2:5].sum(1) == 1).all()
    assert data.label_counts[1].tolist() == torch.bincount(targets).tolist()
    assert "label 'ill'" in opened.describe()


def test_all_clients_may_be_tested_on_the_public_rows(source):
    own, shared = source("ill").load(["east", "west"]), source("ill", test="shared").load(["east", "west"])
    public = len(source("ill").public_table().columns["ill"])
    assert shared.splits["test"].num_examples.tolist() == [public, public]
    assert max(own.splits["test"].num_examples.tolist()) < public
    assert torch.equal(rows_of(shared, "test", 0)[0], rows_of(shared, "test", 1)[0])
    assert torch.equal(rows_of(shared, "train", 0)[0], rows_of(own, "train", 0)[0])


def test_a_number_is_a_regression_on_the_scale_of_public_rows(source):
    opened = source("weight")
    data = opened.load(["north"])
    assert data.task.kind == "regression"
    public = opened.public_table().columns["weight"].to_numpy(zero_copy_only=False).astype(float)
    assert data.mean.tolist() == [pytest.approx(public.mean(), rel=1e-6)]
    assert data.std.tolist() == [pytest.approx(public.std(), rel=1e-6)]
    _, targets = rows_of(data, "train", 0)
    held = opened.load_table("north")
    weights = held.table.columns["weight"].to_numpy(zero_copy_only=False).astype(float)[held.rows("train").numpy()]
    assert np.allclose(targets[:, 0] * data.std + data.mean, weights, atol=1e-3)


def test_what_is_missing_is_told_and_rows_without_the_label_are_left_out(source):
    opened = source("ill", **{"gaps": 0.3, "table-schema": {"unknown": "missing"}})
    data = opened.load(["north"])
    assert "height missing" in data.task.features
    inputs, _ = rows_of(data, "train", 0)
    place = data.task.features.index("height missing")
    missing = inputs[:, place] == 1
    assert 0.2 < missing.float().mean() < 0.4
    assert (inputs[missing, data.task.features.index("height")] == 0).all()
    assert bool(torch.isfinite(inputs).all())
    known = opened.load_table("north").table.columns["ill"].drop_null()
    assert sum(int(data.splits[split].num_examples) for split in ("train", "validation", "test")) == len(known)


def test_what_cannot_be_is_said(source, table_tables, tmp_path):
    with pytest.raises(DataError, match="label: .*'pulse'; .*height"):
        source("pulse").load(["east"])
    with pytest.raises(DataError, match="'ecg' .*private"):
        source("ecg").load(["east"])
    table_tables["data"]["public-share"] = 0.0
    with pytest.raises(DataError, match='label .*public-share; .*set = "tab'):
        source("ill").load(["east"])
    with pytest.raises(ExperimentError, match='test = "shared"'):
        parse_data({**table_tables["data"], "test": "shared"})
    with pytest.raises(DataError, match="'fedngm' .*leave it out"):
        client_table_source(source("ill"), "fedngm")


def test_a_linear_model_is_averaged_over_the_same_clients(table_tables, run_experiment):
    """Illness follows weight, and the ward illness."""
    del table_tables["fedngm"]
    table_tables["experiment"] |= {"method": "fedavg", "rounds": 10}
    table_tables["data"] |= {"label": "ill", "test": "shared"}
    table_tables |= {"model": {"name": "mlp", "hidden": []}, "train": {"learning-rate": 0.1}}
    test = run_experiment(table_tables).summary()["metrics"]["test"]
    assert 0.9 < test["auc"]["mean"] < 0.99
    assert test["auc"]["std"] == 0, "one model, tested on the same rows by everybody"
    assert {"aupr", "ece", "macro-precision", "macro-recall", "accuracy"} <= set(test)
