import numpy as np
import pytest
import torch

from fedgraph.data.encoding.encoding import Encoding
from fedgraph.data.encoding.scaling import Scaling
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.graphical.learning.ngm import fit_ngm
from fedgraph.graphical.model import GraphicalModel
from fedgraph.graphical.network.settings import NGMSettings
from fedgraph.graphical.scores.model_scores import hide_values, score_model, score_samples

SCHEMA = Schema((Feature("a", "real"), Feature("b", "real"), Feature("c", "categorical", ("x", "y", "z"))))
LINKED = torch.tensor([[0, 1, 1], [1, 0, 0], [1, 0, 0]], dtype=torch.bool)


def rows(count, seed=0):
    draw = np.random.default_rng(seed)
    a = draw.normal(size=count)
    values = np.stack(
        [a, 2 * a + 0.5 * draw.normal(size=count), np.digitize(a + 0.3 * draw.normal(size=count), [-0.5, 0.5])], 1
    )
    values[draw.random(values.shape) < 0.05] = np.nan
    return values


@pytest.fixture(scope="module", params=["masked", "path-norm"])
def model(request):
    encoding = Encoding(SCHEMA, Scaling({"a": (-3.0, 3.0), "b": (-6.0, 6.0)}))
    # The penalty of the perceptron would win over the fit.
    settings = NGMSettings(architecture=request.param, hidden=8, epochs=60, learning_rate=0.01, path_weight=0.0)
    parts = [[encoding.encode(rows(count, seed))] for count, seed in ((600, 0), (200, 1))]
    fit = fit_ngm(SCHEMA, LINKED, *parts, ["one"], settings, 0)
    return GraphicalModel.of_one(fit.network, fit.parameters, encoding)


def test_targets_are_predicted_from_all_others_and_not_from_themselves(model):
    values = rows(300, 2)
    found = score_model(model, values, ["a", "b", "c"])
    for target in ("a", "b"):
        place = SCHEMA.names.index(target)
        predicted = model.predict(np.where(np.arange(3) == place, np.nan, values), target)
        # Only where nothing else is missing inference has nothing to fill in.
        whole = ~np.isnan(values).any(1)
        alone = score_model(model, values[whole], [target])[target]["mae"]
        assert alone == pytest.approx(np.abs(predicted - values[:, place])[whole].mean(), rel=1e-4)
    # The perceptron, which sees targets in training, is lost without them.
    if model.network.masked:
        assert 0.2 < found["b"]["mae"] < 0.8, "0.4 is the noise, 1.6 what the mean alone would do"
        assert found["c"]["micro-recall"] > 0.6


def test_own_values_of_targets_do_not_count(model):
    values = rows(50, 3)
    values = values[~np.isnan(values).any(1)]
    before = score_model(model, values, ["b"])["b"]
    changed = values.copy()
    changed[:, 1] += 1
    after = score_model(model, changed, ["b"])["b"]
    errors = before["rmse"] ** 2, after["rmse"] ** 2
    # Predictions stay where they were: the truth alone has moved, by 1.
    predicted = model.predict(values, "b")
    assert errors[1] == pytest.approx(float(np.square(predicted - changed[:, 1]).mean()), rel=1e-3)
    assert errors[0] == pytest.approx(float(np.square(predicted - values[:, 1]).mean()), rel=1e-3)


def test_rows_with_gaps_are_scored_as_the_model_predicts_them(model):
    values = rows(400, 6)
    values[np.random.default_rng(0).random(400) < 0.5, 0] = np.nan
    gaps = np.isnan(values[:, [0, 2]]).any(1)
    found = {most: score_model(model, values, ["b"], most)["b"]["rmse"] for most in (1000, 100, 0)}
    if not model.network.masked:
        assert found[1000] == found[100] == found[0], "the authors' network has the authors' way"
        return
    predicted = model.predict(np.where(np.arange(3) == 1, np.nan, values), "b")
    assert found[1000] == pytest.approx(np.sqrt(np.nanmean(np.square(predicted - values[:, 1]))), rel=0.03)
    assert found[1000] < found[100] < found[0], "c tells something of a, and so of b"
    whole = values[~gaps]
    assert score_model(model, whole, ["b"]) == score_model(model, whole, ["b"], 0)


def test_samples_are_compared_with_rows(model):
    found = score_samples(model, rows(400, 4), "one", 0)
    assert found == score_samples(model, rows(400, 4), "one", 0)
    assert found["marginal-distance"] <= found["marginal-distance-largest"] < 0.3
    assert 0.4 < found["told-apart"] <= 1


def test_a_share_of_the_values_is_hidden_but_of_no_target():
    schema = Schema((Feature("x", "real"), Feature("y", "real"), Feature("scan", "embedding", size=3)))
    values = np.ones((1500, 5))
    rows = hide_values(schema, values, ["y"], 0.4, seed=0)
    assert rows.shape == (1000, 5)
    assert not np.isnan(values).any()
    assert not np.isnan(rows[:, 1]).any()
    assert 0.35 < np.isnan(rows[:, 0]).mean() < 0.45
    assert (np.isnan(rows[:, 2:]).sum(1) % 3 == 0).all(), "all of an embedding, or nothing"
    np.testing.assert_array_equal(rows, hide_values(schema, values, ["y"], 0.4, seed=0))
