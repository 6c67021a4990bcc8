"""F3 in scikit-learn's manner: the estimator's contract, owners who lack samples, and the same model as a run's."""

import doctest
import importlib
import inspect
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import fedgraph
from fedgraph.fusion import FusionClassifier, FusionSettings, JoinedSamples
from fedgraph.graph import ClientGraph
from fedgraph.support.errors import RunError
from fedgraph.support.files import load_state, save_state

FAST = {"epochs": 40, "learning_rates": (0.05,), "draws": 2, "batch_size": 20, "workers": 1, "device": "cpu"}
"""Enough to learn flowers."""


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def by_owner(iris):
    X, _ = iris
    return {"sepals": X[:, :2], "petals": X[:, 2:]}


@pytest.fixture
def classifier():
    return FusionClassifier(**FAST, scaling="owner", random_state=0)


def test_probabilities_of_a_sample_are_the_same_among_any_others():
    random = np.random.default_rng(0)
    rows, labels = random.normal(size=(60, 20)), random.integers(0, 3, 60)
    fitted = FusionClassifier(owners=2, epochs=3, learning_rates=(0.1,), workers=1, device="cpu").fit(rows, labels)
    whole = fitted.predict_proba(rows)
    for size in (60, 31, 7, 1):
        some = random.permutation(60)[:size]
        np.testing.assert_allclose(fitted.predict_proba(rows[some]), whole[some], rtol=1e-7, atol=1e-9)


@pytest.mark.process
def test_it_keeps_the_contract_of_scikit_learn():
    few = {"epochs": 40, "learning_rates": (0.1,), "draws": 1, "batch_size": 40, "hidden": 32}
    few |= {"workers": 1, "device": "cpu"}
    found = check_estimator(FusionClassifier(owners=2, **few), on_skip=None)
    assert {each["check_name"] for each in found if each["status"] == "skipped"} <= {"check_array_api_input"}
    assert len([each for each in found if each["status"] == "passed"]) > 40


def test_parameters_are_the_settings_of_f3_with_their_defaults():
    parameters = inspect.signature(FusionClassifier).parameters
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters.values())
    defaults = {name: each.default for name, each in parameters.items()}
    settings = FusionSettings()
    own = {"owners": None, "validation_fraction": 0.1, "random_state": None}
    told = {name: defaults.pop(name) for name in own}
    assert told == own
    filled = dict.fromkeys(("members", "reference_options"))
    assert defaults == {name: getattr(settings, name) for name in FusionSettings.model_fields} | filled
    assert FusionClassifier().settings == settings


def test_owners_of_different_sizes_are_fused_and_their_graph_is_learned(iris, classifier):
    X, y = iris
    words = np.array(["setosa", "versicolor", "virginica"])[y]
    found = classifier.fit({"b": X[:, 1:], "a": torch.from_numpy(X[:, :1])}, words)
    assert found is classifier
    assert (found.classes_.tolist(), found.owners_) == (["setosa", "versicolor", "virginica"], ("a", "b"))
    assert found.graph_.names == ("a", "b")
    assert 0 < float(found.graph_.dense()[0, 1]) < 1
    assert found.score({"a": X[:, :1], "b": X[:, 1:]}, words) > 0.9
    proba = found.predict_proba({"b": X[:, 1:], "a": X[:, :1]})
    assert proba.shape == (150, 3)
    np.testing.assert_allclose(proba.sum(1), 1, atol=1e-5)
    assert (found.classes_[proba.argmax(1)] == found.predict({"a": X[:, :1], "b": X[:, 1:]})).all()
    assert list(found.history_.columns) == ["learning_rate", "epoch", "training_loss", "validation_loss"]
    assert found.validation_loss_ == found.history_.validation_loss[found.n_iter_ - 1]


def test_samples_are_joined_by_id_whatever_form_owners_have_them_in(iris, classifier):
    X, y = iris
    ids = [f"flower-{number:03}" for number in range(150)]
    there, shuffled = np.arange(0, 150, 2), np.random.default_rng(0).permutation(150)
    frame = pd.DataFrame(X[shuffled, :2], index=[ids[place] for place in shuffled])
    pair = [ids[place] for place in there], X[there, 2:]
    labels = pd.Series(y, index=ids)
    joined = classifier.fit({"sepals": frame, "petals": pair}, labels)
    told = joined.predict({"petals": pair})
    assert list(told.index) == pair[0]
    assert (told.to_numpy() == y[there]).mean() > 0.9
    proba = joined.predict_proba({"sepals": frame, "petals": pair})
    assert list(proba.columns) == [0, 1, 2]
    assert set(proba.index) == set(ids)
    # The same as arrays with rows of NaN, for samples are sorted by id before they are learned from.
    petals = X[:, 2:].copy()
    petals[1::2] = np.nan
    same = clone(classifier).fit({"petals": petals, "sepals": X[:, :2]}, y)
    arrays = same.predict_proba({"petals": petals, "sepals": X[:, :2]})
    np.testing.assert_allclose(proba.loc[ids].to_numpy(), arrays, rtol=1e-5)
    for given in (dict(zip(ids, y, strict=True)), (ids[::-1], y[::-1]), labels[::-1]):
        assert joined.score({"petals": pair}, given) == joined.score({"petals": pair}, labels)
    weights = pd.Series(np.where(told == labels[pair[0]], 1.0, 3.0), index=pair[0])
    expected = (told == labels[pair[0]]).mul(weights).sum() / weights.sum()
    assert joined.score({"petals": pair}, labels, weights[::-1]) == pytest.approx(expected)


def test_labels_without_ids_do_where_all_owners_have_the_same_samples_in_the_same_order(iris, classifier):
    X, y = iris
    frames = {"a": pd.DataFrame(X[:, :2]), "b": pd.DataFrame(X[:, 2:])}
    assert classifier.fit(frames, y).score(frames, y) > 0.9
    frames["b"] = frames["b"][::-1]
    with pytest.raises(ValueError, match="samples have ids"):
        classifier.fit(frames, y)


def test_owners_without_an_id_in_common_are_told(iris, classifier):
    X, y = iris
    rows = np.arange(150)
    owners = {"a": pd.DataFrame(X[:, :2], index=rows), "b": pd.DataFrame(X[:, 2:], index=[f"P{row}" for row in rows])}
    labels = {**dict(zip(owners["a"].index, y, strict=True)), **dict(zip(owners["b"].index, y, strict=True))}
    with pytest.raises(ValueError, match="no two owners share a labelled sample.*such as '0'.*such as 'P0'"):
        classifier.fit(owners, labels)
    owners["c"] = owners["a"]
    with pytest.warns(UserWarning, match="owner 'b' shares no labelled sample with other owners; it has 150 samples"):
        classifier.fit(owners, labels)


def test_columns_of_data_frames_have_to_be_those_of_fit(iris, classifier, tmp_path):
    X, y = iris
    sepals, petals = pd.DataFrame(X[:, :2], columns=["sl", "sw"]), pd.DataFrame(X[:, 2:], columns=["pl", "pw"])
    classifier.fit({"sepals": sepals, "petals": petals}, y)
    classifier.save(tmp_path / "fusion.safetensors")
    whole = clone(classifier).set_params(owners={"sepals": [0, 1], "petals": [2, 3]}).fit(sepals.join(petals), y)
    for model in (classifier, FusionClassifier.load(tmp_path / "fusion.safetensors"), whole):
        assert model.predict({"sepals": sepals, "petals": petals}).shape == (150,)
        assert model.predict({"sepals": X[:, :2], "petals": X[:, 2:]}).shape == (150,)
        should = "owner 'petals': The feature names should match those that were passed during fit"
        with pytest.raises(ValueError, match=f"{should} \\(they are in another order than during fit\\)"):
            model.predict({"sepals": sepals, "petals": petals[["pw", "pl"]]})
        with pytest.raises(ValueError, match=f"{should} .*unseen at fit time: 'width'; .* now missing: 'pw'"):
            model.score({"sepals": sepals, "petals": petals.rename(columns={"pw": "width"})}, y)
        with pytest.raises(ValueError, match=should):
            model.predict_proba({"petals": (range(150), petals[["pw", "pl"]])})
    numbered = {"sepals": pd.DataFrame(X[:, :2]), "petals": pd.DataFrame(X[:, 2:])}
    classifier.fit(numbered, y)
    with pytest.raises(ValueError, match="owner 'sepals': .* another order"):
        classifier.predict(numbered | {"sepals": numbered["sepals"][[1, 0]]})
    named = {"sepals": sepals, "petals": petals}
    with pytest.raises(ValueError, match="'petals': .*feature names"):
        classifier.fit(named, y, validation=(named | {"petals": petals[["pw", "pl"]]}, y))


@pytest.mark.parametrize(
    "classes",
    [
        np.array([0, 5, 10]),
        np.array([-1, 3, 12], dtype=np.int16),
        np.array([0.0, 5.0, 1e15]),
        np.array([0, 5, 10], dtype=np.float32),
        np.array(["0", "5", "10"]),
        np.array([False, True, True]),
    ],
)
def test_classes_are_saved_as_what_they_are(classes, by_owner, iris, tmp_path):
    y = classes[iris[1]]
    saved = FusionClassifier(**FAST | {"epochs": 3}, random_state=0).fit(by_owner, y)
    saved.save(tmp_path / "fusion.safetensors")
    read = FusionClassifier.load(tmp_path / "fusion.safetensors")
    assert read.classes_.dtype == saved.classes_.dtype
    np.testing.assert_array_equal(read.classes_, saved.classes_)
    assert read.score(by_owner, y) == saved.score(by_owner, y) > 0
    assert (read.predict(by_owner) == saved.predict(by_owner)).all()


def test_files_that_do_not_say_what_classes_are_have_text(by_owner, iris, classifier, tmp_path):
    path = tmp_path / "fusion.safetensors"
    classifier.fit(by_owner, iris[1]).save(path)
    state = load_state(path)
    assert state.pop("class-type") == "int64"
    save_state(path, state)
    assert FusionClassifier.load(path).classes_.tolist() == ["0", "1", "2"]
    for broken in ("object", "bool", "number"):
        save_state(path, state | {"class-type": broken})
        with pytest.raises(RunError, match="not a fusion model"):
            FusionClassifier.load(path)


def test_single_arrays_work_with_the_tools_of_scikit_learn(iris, classifier):
    X, y = iris
    columns = clone(classifier).set_params(owners={"sepals": slice(0, 2), "petals": [2, 3]})
    assert cross_val_score(make_pipeline(StandardScaler(), columns), X, y, cv=3).min() > 0.85
    search = GridSearchCV(columns, {"graph": ["none", "icdf"], "owners": [2]}, cv=2).fit(X, y)
    assert search.best_estimator_.owners_ == ("owner-0", "owner-1")
    frame = pd.DataFrame(X, columns=["sl", "sw", "pl", "pw"])
    named = clone(classifier).set_params(owners={"sepals": ["sl", "sw"], "petals": ["pl", "pw"]}).fit(frame, y)
    np.testing.assert_array_equal(named.predict(frame), columns.fit(X, y).predict(X))


def test_the_same_model_as_a_run_of_f3_bit_for_bit(patches_tables, run_experiment, tmp_path):
    patches_tables["data"] |= {"lacking-share": 0.2}
    patches_tables["f3"] |= {"epochs": 3, "draws": 2, "learning-rates": [0.01, 0.003]}
    folder = run_experiment(patches_tables)
    joined = JoinedSamples.of_state(load_state(folder.checkpoint)["samples"])
    names = np.array(joined.classes)

    def samples(split):
        rows = joined.of_split(split)
        keys = [joined.keys[place] for place in rows.tolist()]
        found = {}
        for column, owner in enumerate(joined.owners):
            there = joined.present[rows, column]
            mine = [key for key, held in zip(keys, there.tolist(), strict=True) if held]
            found[owner] = mine[::-1], joined.embeddings[rows][there, column, : joined.sizes[column]].flip(0)
        return found, dict(zip(keys, names[joined.labels[rows]], strict=True))

    settings = {"epochs": 3, "learning_rates": (0.01, 0.003), "draws": 2, "batch_size": 200}
    classifier = FusionClassifier(**settings, workers=1, device="cpu", random_state=0)
    classifier.fit(*samples("train"), validation=samples("validation"))
    ran = load_state(folder.path / "fusion.safetensors")
    ours = classifier.fusion_.network.state_dict()
    assert ours.keys() == ran["network"].keys()
    assert all(torch.equal(ours[name], value) for name, value in ran["network"].items())
    # And what a run has written can be used without a federation.
    loaded = FusionClassifier.load(folder.path / "fusion.safetensors")
    test, labels = samples("test")
    assert (loaded.predict(test) == classifier.predict(test)).all()
    assert loaded.score(test, labels) == pytest.approx(folder.summary()["metrics"]["test"]["accuracy"]["mean"])
    assert loaded.graph_ == classifier.graph_ == fedgraph.load_run(folder.path).learned_graph
    classifier.save(tmp_path / "again.safetensors")
    again = FusionClassifier.load(tmp_path / "again.safetensors")
    np.testing.assert_array_equal(again.predict_proba(test), classifier.predict_proba(test))


def test_a_graph_may_be_given(by_owner, iris, classifier):
    given = ClientGraph.from_edges([("sepals", "petals", 0.5)], names=["petals", "sepals", "leaves"])
    found = classifier.set_params(graph=given).fit(by_owner, iris[1])
    assert found.graph_.dense().tolist() == [[0, 0.5], [0.5, 0]]
    assert clone(found).graph == given
    with pytest.raises(ValueError, match="no client 'sepals'"):
        classifier.set_params(graph=ClientGraph.complete(["petals", "leaves"])).fit(by_owner, iris[1])
    assert classifier.set_params(graph="none").fit(by_owner, iris[1]).graph_ is None


def test_validation_samples_may_be_given(by_owner, iris, classifier):
    _, y = iris
    some = np.arange(0, 150, 5)
    held = {owner: values[some] for owner, values in by_owner.items()}
    chosen = clone(classifier).fit(by_owner, y, validation=(held, y[some]))
    assert chosen.validation_loss_ != classifier.fit(by_owner, y).validation_loss_
    with pytest.raises(ValueError, match="'7'"):
        classifier.fit(by_owner, y, validation=(held, np.full(30, 7)))


def test_owners_without_training_samples_are_warned_of(iris, classifier, caplog):
    X, y = iris
    petals = np.where(np.arange(150)[:, None] < 10, X[:, 2:], np.nan)
    some, others = slice(10, None), slice(0, 10)
    held = {"sepals": X[others, :2], "petals": petals[others]}
    classifier.fit({"sepals": X[some, :2], "petals": petals[some]}, y[some], validation=(held, y[others]))
    assert "petals: no training samples" in caplog.text


def test_random_states_are_scikit_learns(by_owner, iris, classifier):
    def told(state):
        return clone(classifier).set_params(random_state=state, epochs=2).fit(by_owner, iris[1]).predict_proba(by_owner)

    np.testing.assert_array_equal(told(3), told(3))
    np.testing.assert_array_equal(told(np.random.RandomState(3)), told(np.random.RandomState(3)))
    assert (told(3) != told(4)).any()
    assert (told(None) != told(None)).any()


def test_fitted_classifiers_are_pickled(by_owner, iris, classifier):
    classifier.fit(by_owner, iris[1])
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(by_owner), classifier.predict_proba(by_owner))


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"alignment": "sof"}, ValueError, "alignment: .*'sof'"),
        ({"alignment": "hard", "aligned_size": 3}, ValueError, "aligned-size = 3.* alignment = 'hard'"),
        ({"learning_rates": (1e30,)}, RunError, "diverged"),
    ],
)
def test_parameters_that_cannot_be_used(by_owner, iris, classifier, parameters, error, message):
    with pytest.raises(error, match=message):
        clone(classifier).set_params(**parameters).fit(by_owner, iris[1])


def test_what_cannot_be_used_is_said(by_owner, iris, classifier):
    X, y = iris
    with pytest.raises(NotFittedError):
        classifier.predict(by_owner)
    with pytest.raises(ValueError, match="one array, .*owners"):
        classifier.fit(X, y)
    with pytest.raises(ValueError, match="only one class"):
        classifier.fit(by_owner, np.zeros(150))
    classifier.fit(by_owner, y)
    with pytest.raises(ValueError, match="'leaves'; .*'petals', 'sepals'"):
        classifier.predict({"leaves": X})
    with pytest.raises(ValueError, match="'petals' .*4 numbers"):
        classifier.predict({"petals": X})
    with pytest.raises(ValueError, match="by owner, .*one array"):
        classifier.predict(X)


def test_the_example_runs():
    assert doctest.testmod(importlib.import_module("fedgraph.fusion.classifier")).failed == 0


@pytest.mark.parametrize("missing", [None, np.nan, float("nan")])
@pytest.mark.parametrize("kind", [list, np.array, pd.Series, lambda y: pd.Series(y, dtype="category")])
def test_samples_without_a_label_are_no_class(missing, kind):
    X, y = load_iris(return_X_y=True)
    texts = [missing if place == 7 else f"kind {label}" for place, label in enumerate(y)]
    labels = np.array(texts, dtype=object) if kind is np.array else kind(texts)
    owners = {"sepals": X[:, :2], "petals": X[:, 2:]}
    with pytest.raises(ValueError, match="1 of 150 samples have no label"):
        FusionClassifier(epochs=1).fit(owners, labels)
    frames = {name: pd.DataFrame(values) for name, values in owners.items()}
    with pytest.raises(ValueError, match="1 of 150 samples have no label"):
        FusionClassifier(epochs=1).fit(frames, pd.Series(texts))
