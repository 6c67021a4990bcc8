import numpy as np
import pytest
import torch

from fedgraph.data.encoding.encoding import Encoding
from fedgraph.data.encoding.scaling import Scaling
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.settings import NGMSettings
from fedgraph.graphical.scores.target_scores import as_predictions, score, score_targets
from fedgraph.support.errors import DataError

NAN = float("nan")
WEEKS, DEAD = Feature("weeks", "ordinal"), Feature("dead", "binary", ("no", "yes"))
CAUSE = Feature("cause", "categorical", ("none", "a", "b", "c"))


def test_numbers_are_scored_where_they_are_known():
    found = score(WEEKS, np.array([40, NAN, 38, 30.0]), np.array([39, 0, 38, 33.5]))
    assert found == {"rows": 3, "mae": pytest.approx(1.5), "rmse": pytest.approx(((1 + 3.5**2) / 3) ** 0.5)}


def test_binary_features_are_scored_by_how_they_are_ranked():
    truth, chances = np.array([0, 1, 0, 1, 0, NAN]), np.array([0.1, 0.9, 0.6, 0.5, 0.2, 0.9])
    found = score(DEAD, truth, np.stack([1 - chances, chances], 1))
    pairs = [(chances[i] > chances[j]) for i in (1, 3) for j in (0, 2, 4)]
    # Both are found among the first 1 and 3.
    ranked = {"rows": 5, "auc": pytest.approx(np.mean(pairs)), "aupr": pytest.approx((1 / 1 + 2 / 3) / 2)}
    assert {name: found[name] for name in ranked} == ranked
    # The rarer one is positive, whichever it is.
    turned = score(DEAD, 1 - truth, np.stack([chances, 1 - chances], 1))
    assert {name: turned[name] for name in ranked} == ranked
    tied = score(DEAD, truth[:4], np.stack([1 - chances[:4], chances[:4]], 1))
    assert tied["aupr"] == found["aupr"]
    one = score(DEAD, np.zeros(6), np.stack([1 - chances, chances], 1))
    assert one["rows"] == 6
    assert np.isnan([one["auc"], one["aupr"]]).all()


def test_binary_features_have_precision_recall_and_calibration_too():
    """At .9, .6 and .1 of being dead, of whom one, two of three and none are: one bin each."""
    truth = np.array([1, 1, 1, 0, 0, 0.0])
    chances = np.array([0.9, 0.6, 0.6, 0.6, 0.1, 0.1])
    found = score(DEAD, truth, np.stack([1 - chances, chances], 1))
    assert found["macro-precision"] == pytest.approx((1 + 3 / 4) / 2)
    assert found["macro-recall"] == pytest.approx((2 / 3 + 1) / 2)
    assert found["micro-recall"] == pytest.approx(5 / 6)
    assert found["ece"] == pytest.approx((1 * 0.1 + 3 * (2 / 3 - 0.6) + 2 * 0.1) / 6)
    everybody = score(DEAD, np.zeros(4), np.tile([0.75, 0.25], (4, 1)))
    assert (everybody["ece"], everybody["macro-recall"]) == (0.25, 0.5)


def test_calibration_of_categories_is_that_of_the_most_probable_one():
    chances = np.array([[0.5, 0.3, 0.1, 0.1], [0.5, 0.3, 0.1, 0.1], [0.1, 0.1, 0.0, 0.8]])
    assert score(CAUSE, np.array([0, 1, 3.0]), chances)["ece"] == pytest.approx(0.2 / 3)
    assert score(CAUSE, np.array([1, 1, 0.0]), chances)["ece"] == pytest.approx((2 * 0.5 + 0.8) / 3)


def test_categories_without_labels_or_predictions_count_as_zero():
    """As under table 3: b is predicted and never true, c is true and never predicted."""
    truth = np.array([0, 0, 0, 1, 1, 3, NAN])
    guesses = np.array([0, 0, 1, 1, 2, 0, 0])
    found = score(CAUSE, truth, 0.7 * np.eye(4)[guesses] + 0.075)
    precision, recall = [2 / 3, 1 / 2, 0, 0], [2 / 3, 1 / 2, 0, 0]
    assert found == {
        "rows": 6,
        "micro-precision": pytest.approx(0.5),
        "micro-recall": pytest.approx(0.5),
        "macro-precision": pytest.approx(np.mean(precision)),
        "macro-recall": pytest.approx(np.mean(recall)),
        "ece": pytest.approx(0.775 - 0.5),
    }


def test_where_nothing_is_known_there_is_no_score():
    for feature, predicted in ((WEEKS, np.zeros(2)), (DEAD, np.zeros((2, 2))), (CAUSE, np.zeros((2, 4)))):
        found = score(feature, np.full(2, NAN), predicted)
        assert found.pop("rows") == 0
        assert found
        assert np.isnan(list(found.values())).all()


def test_what_a_network_predicts_is_scored_in_the_units_of_the_table():
    schema = Schema((WEEKS, DEAD, CAUSE))
    encoding = Encoding(schema, Scaling({"weeks": (20, 40)}))
    network = Network(schema, torch.ones(3, 3).bool(), NGMSettings(hidden=2))
    units = torch.tensor([[0.5, 0.25, 0.1, 0.2, 0.6, 0.1], [1.125, 0.75, 1.0, 0, 0, 0]])
    found = as_predictions(network, encoding, units, ["weeks", "dead", "cause"])
    assert found["weeks"].tolist() == [30, 42.5]
    assert found["dead"].tolist() == [[0.75, 0.25], [0.25, 0.75]]
    assert np.allclose(found["cause"], units[:, 2:])
    scores = score_targets(schema, np.array([[31, 0, 2], [42, 1, 3.0]]), found)
    assert scores["weeks"]["mae"] == pytest.approx(0.75)
    assert scores["dead"]["auc"] == 1
    assert scores["cause"]["micro-recall"] == 0.5


def test_predictions_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match=r"'cause' .*\[2\]; .*\[2, 4\]"):
        score(CAUSE, np.zeros(2), np.zeros(2))
    with pytest.raises(DataError, match="'weeks' are not all finite"):
        score(WEEKS, np.zeros(2), np.array([0, NAN]))
