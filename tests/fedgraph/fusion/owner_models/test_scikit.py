"""scikit-learn models of owners."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import SplineTransformer

from fedgraph.fusion.owner_models.scikit import fitted
from fedgraph.models import build, parse_model
from fedgraph.models.base import TaskSpec
from fedgraph.models.choice import ModelChoice
from fedgraph.support.errors import ExperimentError

RANDOM = torch.Generator().manual_seed(0)
INPUTS = torch.randn(60, 2, 3, generator=RANDOM)
LABELS = (INPUTS[:, 0, 0] > 0).long() + (INPUTS[:, 1, 2] > 0.5).long()
SPLINES = "sklearn.preprocessing:SplineTransformer"
FOREST = "sklearn.ensemble:RandomForestClassifier"


def settings(**table):
    return parse_model({"name": "scikit-learn", **table})


def fit(inputs=INPUTS, labels=LABELS, classes=3, seed=1, owner="a", **table):
    return fitted(settings(**table), inputs, labels, classes, seed, owner)


def test_equals_scikit_learn_itself():
    found = fit(
        **{"transformer": SPLINES, "transformer-options": {"n_knots": 4}, "estimator-options": {"C": 0.5}}
    ).represent(INPUTS[:7])
    rows = INPUTS.flatten(1).numpy()
    splines = SplineTransformer(n_knots=4).fit(rows)
    expected = LogisticRegression(C=0.5).fit(splines.transform(rows), LABELS.numpy())
    np.testing.assert_allclose(found.embeddings, splines.transform(rows[:7]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        found.probabilities, expected.predict_proba(splines.transform(rows[:7])), rtol=1e-4, atol=1e-5
    )
    assert found.embeddings.dtype == found.probabilities.dtype == torch.float32


def test_without_a_transformer_the_sample_is_its_own_embedding():
    assert torch.equal(fit().represent(INPUTS).embeddings, INPUTS.flatten(1))


def test_sparse_features_become_dense():
    found = fit(**{"transformer": "sklearn.preprocessing:KBinsDiscretizer"}).represent(INPUTS)
    assert found.embeddings.sum(1).tolist() == [6.0] * 60


def test_classes_that_training_lacks_have_no_probability():
    kept = LABELS != 1
    found = fit(INPUTS[kept], LABELS[kept], classes=4).represent(INPUTS).probabilities
    assert not found[:, [1, 3]].any()
    torch.testing.assert_close(found.sum(1), torch.ones(60))
    assert (found[LABELS == 2, 2] > 0.5).float().mean() > 0.7


def test_randomness_follows_from_seed_and_owner():
    table = {"estimator": FOREST, "estimator-options": {"n_estimators": 3}}
    before = np.random.get_state()[1].copy()
    first = fit(**table).represent(INPUTS).probabilities
    assert torch.equal(fit(**table).represent(INPUTS).probabilities, first)
    assert not torch.equal(fit(owner="b", **table).represent(INPUTS).probabilities, first)
    assert not torch.equal(fit(seed=2, **table).represent(INPUTS).probabilities, first)
    assert (np.random.get_state()[1] == before).all()
    given = fit(**table | {"estimator-options": {"n_estimators": 3, "random_state": 5}})
    own = RandomForestClassifier(3, random_state=5).fit(INPUTS.flatten(1).numpy(), LABELS.numpy())
    np.testing.assert_allclose(given.represent(INPUTS).probabilities, own.predict_proba(INPUTS.flatten(1).numpy()))


def test_classes_of_the_users_own(monkeypatch):
    class Doubled(BaseEstimator):
        def fit(self, rows, targets):
            return self

        def transform(self, rows):
            return 2 * rows

    module = types.ModuleType("their_features")
    module.Doubled = Doubled
    monkeypatch.setitem(sys.modules, "their_features", module)
    found = fit(transformer="their_features:Doubled").represent(INPUTS)
    torch.testing.assert_close(found.embeddings, 2 * INPUTS.flatten(1))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"estimator": "sklearn.nothing:Model"}, r"\[model\] estimator = 'sklearn.nothing:Model'.*cannot import"),
        ({"estimator-options": {"c": 1}}, r"\[model\] estimator: .*\{'c': 1\}"),
        ({"estimator": "sklearn.svm:LinearSVC"}, r"'sklearn\.svm:LinearSVC' .*fit and pre"),
        (
            {"transformer": "torch.nn:Linear"},
            r"transformer = 'torch\.nn:Linear' is not a class derived from sklearn\.base\.Base",
        ),
        ({"transformer": "sklearn.cluster:FeatureAgglomeration", "transformer-options": {"memory": "x"}}, "memory"),
        ({"transformer": FOREST}, r"\[model\] transformer: .*fit and transform"),
        ({"estimator-options": {"C": -1}}, "client 'a' .*'C'"),
    ],
)
def test_messages(table, message):
    with pytest.raises(ExperimentError, match=message):
        fit(**table)


def test_inputs_that_do_not_fit_and_numbers_that_are_not_finite_are_refused():
    with pytest.raises(ExperimentError, match=r"client 'a' cannot be evaluated: .*features"):
        fit().represent(INPUTS[:, :1])
    model = fit()
    model.estimator.coef_[:] = np.nan
    with pytest.raises(ExperimentError, match="'a': .*NaN"):
        model.represent(INPUTS)


def test_experiments_may_name_it_beside_others_but_it_cannot_be_stacked():
    table = {"name": "scikit-learn", "estimator": FOREST}
    choice = ModelChoice.of({"name": "mlp", "variants": [{**table, "clients": ["a"]}]})
    assert choice.tables == ({"name": "mlp"}, table)
    with pytest.raises(ExperimentError, match="'scikit-learn' .*'f3'"):
        build(table, TaskSpec("classification", (2, 3), (3,)))
    with pytest.raises(ExperimentError, match="'estimater'; .*estimator-options"):
        settings(estimater=FOREST)
