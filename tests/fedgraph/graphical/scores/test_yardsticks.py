import warnings

import numpy as np
import pytest

from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.graphical.scores.target_scores import score_targets
from fedgraph.graphical.scores.yardsticks import fit_target, fit_targets
from fedgraph.support.errors import DataError

NAN = float("nan")


def predict_targets(yardstick, schema, training, rows, targets):
    return {name: model.predict(rows) for name, model in fit_targets(yardstick, schema, training, targets).items()}


@pytest.fixture(scope="module")
def table(mixed):
    """The features and values of ``mixed``, the age in years from 0 to 100."""
    schema, units = mixed(1500)
    units = units.double().numpy()
    return schema, np.stack([units[:, 0], units[:, 1], units[:, 2:5].argmax(1), 100 * units[:, 5]], 1)


@pytest.mark.parametrize("yardstick", ["trees", "linear"])
def test_targets_are_predicted_as_well_as_can_be(yardstick, table):
    schema, values = table
    names = ["size", "ill", "place", "age"]
    predictions = predict_targets(yardstick, schema, values[:1000], values[1000:], names)
    scores = score_targets(schema, values[1000:], predictions)
    # The age lies around 30 times its place, with a deviation of 10.
    assert 7 < scores["age"]["rmse"] < 12
    assert scores["size"]["rmse"] < 0.95 * values[1000:, 0].std()
    assert scores["ill"]["auc"] > 0.8
    assert scores["place"]["micro-recall"] > 0.8
    assert np.allclose(predictions["place"].sum(1), 1)
    assert scores["age"]["rows"] == 500


@pytest.mark.parametrize("yardstick", ["trees", "linear"])
def test_the_target_itself_is_not_looked_at(yardstick, table):
    schema, values = table
    model = fit_target(yardstick, schema, values[:300], "age")
    hidden = values[300:320].copy()
    hidden[:, 3] = NAN
    assert np.array_equal(model.predict(hidden), model.predict(values[300:320]))
    again = fit_target(yardstick, schema, values[:300], "age")
    assert np.array_equal(again.predict(hidden), model.predict(hidden))


@pytest.mark.parametrize("yardstick", ["trees", "linear"])
def test_that_a_value_is_missing_tells_something(yardstick):
    """The first feature is known unless the target is large, the second where it is small; one column is empty."""
    numbers = [Feature(name, "real") for name in ("x", "y", "none")]
    schema = Schema((numbers[0], Feature("word", "categorical", ("a", "b")), *numbers[1:]))
    random = np.random.default_rng(0)
    target = random.integers(0, 3, 600).astype(float)
    first = np.where(target == 2, NAN, random.normal(size=600))
    word = np.where(target == 0, random.integers(0, 2, 600), NAN)
    values = np.stack([first, word, target, np.full(600, NAN)], 1)
    values[:20, 2] = NAN
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictions = predict_targets(yardstick, schema, values[:500], values[500:], ["y"])
    assert score_targets(schema, values[500:], predictions)["y"]["rmse"] < 0.1


@pytest.mark.parametrize("yardstick", ["trees", "linear"])
def test_categories_that_were_never_seen_have_no_chance(yardstick, table):
    schema, values = table
    some = values[values[:, 2] > 0]
    found = fit_target(yardstick, schema, some, "place").predict(values)
    assert (found[:, 0] == 0).all()
    assert np.allclose(found.sum(1), 1)
    assert np.isfinite(fit_target(yardstick, schema, some, "age").predict(values)).all()


def test_a_target_that_does_not_vary_is_what_it_is(table):
    schema, values = table
    alike = np.tile(values[:1], (30, 1))
    assert (fit_target("trees", schema, alike, "age").predict(values) == alike[0, 3]).all()
    assert (fit_target("linear", schema, alike, "place").predict(values)[:, int(alike[0, 2])] == 1).all()


def test_trivial_yardsticks_are_the_same_for_every_row():
    """The mean has the least RMSE and the median the least MAE of them; neither tells who is ill."""
    random = np.random.default_rng(0)
    schema = Schema((Feature("x", "real"), Feature("ill", "binary", ("n", "y"))))
    values = np.stack([random.exponential(size=4000), random.random(4000) < 0.1], 1)
    scores = {}
    for yardstick in ("mean", "median"):
        found = predict_targets(yardstick, schema, values[:2000], values[2000:], ["x", "ill"])
        wanted = getattr(np, yardstick)(values[:2000, 0])
        assert np.allclose(found["x"], wanted)
        scores[yardstick] = score_targets(schema, values[2000:], found)
    share = values[:2000, 1].mean()
    assert np.allclose(predict_targets("mean", schema, values[:2000], values[:3], ["ill"])["ill"], [1 - share, share])
    assert (found["ill"] == [1, 0]).all()
    assert scores["mean"]["x"]["rmse"] < scores["median"]["x"]["rmse"]
    assert scores["median"]["x"]["mae"] < scores["mean"]["x"]["mae"]
    prevalence = values[2000:, 1].mean()
    for one in scores.values():
        assert (one["ill"]["auc"], one["ill"]["aupr"]) == (0.5, pytest.approx(prevalence))
        assert one["ill"]["macro-recall"] == 0.5
    assert scores["mean"]["ill"]["ece"] == pytest.approx(abs(share - prevalence))
    assert scores["median"]["ill"]["ece"] == pytest.approx(prevalence)


def test_what_cannot_be_fitted_is_refused(table):
    schema, values = table
    with pytest.raises(DataError, match="yardstick 'forest'"):
        fit_target("forest", schema, values, "age")
    with pytest.raises(DataError, match="there is no feature 'height'"):
        fit_target("trees", schema, values, "height")
    unknown = values.copy()
    unknown[:, 3] = NAN
    with pytest.raises(DataError, match="'age' .*0 and 0"):
        fit_target("trees", schema, unknown, "age")


def test_weighted_trees_give_a_rare_class_as_much_weight_as_the_others():
    random = np.random.default_rng(0)
    schema = Schema((Feature("x", "real"), Feature("rare", "binary", ("n", "y")), Feature("z", "real")))
    x = random.normal(size=4000)
    rare = random.random(4000) < 0.2 * (x > 0)
    values = np.stack([x, rare, random.normal(size=4000)], 1)
    plain, weighted = (
        predict_targets(kind, schema, values[:2000], values[2000:], ["rare"])["rare"][:, 1].mean()
        for kind in ("trees", "weighted-trees")
    )
    assert plain < 0.13 < weighted
    assert predict_targets("weighted-trees", schema, values[:50], values[50:60], ["x"]) == {}, "numbers have no classes"
