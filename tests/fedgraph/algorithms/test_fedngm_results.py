import math

import pytest

from fedgraph.algorithms.fedngm_results import against_truth, excluded_notes, target_metrics, without_neighbours
from fedgraph.algorithms.fedngm_settings import FedNGMRecovery
from fedgraph.data.schema import Feature, Schema, agree
from fedgraph.graph import FeatureGraph


def test_means_over_targets_of_measures_without_a_unit():
    scores = [
        {"test/age-mae": 3.0, "test/sex-auc": 0.6, "test/sex-group-auc": 0.8, "test/sex-auc-local": 0.5},
        {"test/age-mae": 5.0, "test/sex-auc": 1.0, "test/sex-group-auc": math.nan, "validation/sex-auc": 0.9},
    ]
    found = target_metrics(scores, ("age", "sex", "sex-group"))
    assert next(iter(found)) == "test/mean-auc"
    assert found["test/mean-auc"].tolist() == pytest.approx([0.7, 1.0])
    # One target has no mean, and years cannot be added to anything else.
    assert {name for name in found if "mean" in name} == {"test/mean-auc"}
    assert found["test/age-mae"].tolist() == [3.0, 5.0]
    assert found["test/sex-auc-local"].isnan().tolist() == [False, True]
    own = target_metrics([{"test/mean-auc": 0.25, "test/sex-auc": 0.75, "test/tub-auc": 0.75}], ("mean", "sex", "tub"))
    assert own["test/mean-auc"].tolist() == [0.25], "a feature of that name stays what it is"


def test_a_graph_is_held_against_the_true_one():
    truth = FeatureGraph(("a", "b", "c"), (("a", "b"), ("b", "c")))
    said = against_truth(FeatureGraph(("a", "b", "c"), (("a", "b"),)), truth)
    assert said == (
        "edges of the consensus graph: 1; of the moral graph of the network: 2; precision 1.00, recall 0.50, F1 0.67"
    )


def test_targets_without_neighbours_are_named_with_what_helps():
    graph = FeatureGraph(("a", "b", "c"), (("a", "b"),))
    assert without_neighbours(graph, ("a", "b"), FedNGMRecovery()) == []
    (told,) = without_neighbours(graph, ("a", "c"), FedNGMRecovery())
    assert told.startswith("c has no neighbour in the consensus graph")
    assert "target-neighbours" in told
    assert 'source = "summed-statistics"' in told
    (both,) = without_neighbours(FeatureGraph(("a", "b", "c", "d"), (("a", "b"),)), ("c", "d"), FedNGMRecovery())
    assert both.startswith("c, d have no neighbour in the consensus graph and are predicted by their means")
    (summed,) = without_neighbours(graph, ("c",), FedNGMRecovery(source="summed-statistics"))
    assert "summed-statistics" not in summed
    (empty,) = without_neighbours(FeatureGraph(("a", "b"), ()), ("a",), FedNGMRecovery(method="ges"))
    assert empty.startswith("the consensus graph has no edge")
    assert 'method = "graphical-lasso"' in empty


def test_what_is_no_common_feature_is_told_with_who_has_it():
    schemas = {"mercy": ("age", "lactate"), "olav": ("age", "dose"), "ucla": ("age", "dose", "kind")}
    agreement = agree({
        client: Schema(tuple(Feature(name, "real") for name in names)) for client, names in schemas.items()
    })  # fmt: skip
    (note,) = excluded_notes(agreement, {}, expected=("kind",))
    assert note == "not among the common features: 'lactate' (only at 'mercy'); 'dose' (only at 'olav', 'ucla')"
