"""Scores of a node's clients: what is measured beside graphical models, and that nothing is fitted twice."""

from __future__ import annotations

import pytest

import fedgraph.clients.engine.table_scores as module
from fedgraph.algorithms.fedngm_settings import FedNGMSettings
from fedgraph.clients.engine.table_rows import TableRows
from fedgraph.clients.engine.table_scores import TableScores
from fedgraph.data import open_source
from fedgraph.data.encoding.scaling import ScalingSettings
from fedgraph.data.tables.client_tables import client_table_source
from fedgraph.experiment.experiment import parse_experiment

NAMES = ("east", "north", "west")
YARDSTICKS = ("trees", "weighted-trees", "linear", "mean", "median")


@pytest.fixture
def scored(table_tables, data_dir, monkeypatch):
    """``scored(pooled)`` -> scores of all clients without graphical models, and what was fitted."""

    def found(pooled):
        source = client_table_source(open_source(parse_experiment(table_tables).data, data_dir), "fedngm")
        held = TableRows(source, NAMES, ScalingSettings())
        common = held.schema("east").select(("height", "weight", "ill", "ward", "stay"))
        how = "pooled" if pooled else "distilled"
        settings = FedNGMSettings(yardsticks=True, targets=("weight", "ill"), hidden=0.3, global_model=how)
        fitted = []

        def fit_targets(yardstick, schema, training, *others):
            fitted.append((yardstick, len(training)))
            return original(yardstick, schema, training, *others)

        original = module.fit_targets
        with monkeypatch.context() as patched:
            patched.setattr(module, "fit_targets", fit_targets)
            scores = TableScores(held, NAMES, common, settings, 0)
            told = {name: scores.of(name, {}) for name in NAMES}
        return told, fitted, [len(held.values(name, common)["train"]) for name in NAMES]

    return found


def test_simple_models_of_a_client_are_fitted_once_for_all_that_is_asked_of_them(scored):
    told, fitted, rows = scored(pooled=False)
    assert sorted(fitted) == sorted((yardstick, count) for yardstick in YARDSTICKS for count in rows)
    for suffix in ("linear", "trees", "mean", "median"):
        for split in ("test", "public"):
            assert {f"{split}/weight-rmse-{suffix}", f"{split}/hidden-ill-ece-{suffix}"} <= set(told["east"])
    assert told["east"]["public/weight-mae-linear"] != told["west"]["public/weight-mae-linear"]
    assert told["east"]["public/weight-mae-linear"] < told["east"]["public/weight-mae-median"]
    assert told["east"]["public/ill-auc-mean"] == 0.5


def test_simple_models_of_pooled_rows_are_fitted_once_for_all_clients(scored):
    told, fitted, rows = scored(pooled=True)
    assert fitted == [(yardstick, sum(rows)) for yardstick in YARDSTICKS]
    assert told["east"]["public/weight-mae-linear"] == told["west"]["public/weight-mae-linear"]
    assert told["east"]["test/weight-mae-linear"] != told["west"]["test/weight-mae-linear"]
