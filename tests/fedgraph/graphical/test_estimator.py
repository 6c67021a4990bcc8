"""A neural graphical model of one data frame, in scikit-learn's manner."""

import doctest
import importlib
import inspect
import logging
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import check_estimator

import fedgraph
from fedgraph.data.schema import Feature, Schema
from fedgraph.graph import FeatureGraph
from fedgraph.graphical import NeuralGraphicalModel
from fedgraph.graphical.network import NGMSettings, NGRSettings
from fedgraph.support.files import load_state

FAST = {"epochs": 60, "learning_rate": 0.02, "hidden": 8, "random_state": 0}

OF_CATEGORIES = "predict_proba is for categories, and the target of this check is a number"
CANNOT_APPLY = dict.fromkeys(
    [
        "check_dict_unchanged",
        "check_estimators_dtypes",
        "check_estimators_pickle",
        "check_fit_idempotent",
        "check_methods_sample_order_invariance",
        "check_methods_subset_invariance",
    ],
    OF_CATEGORIES,
)


@pytest.fixture(scope="module")
def patients():
    """Blood pressure depends on age and smoking, a ward on the pressure; some cells are empty."""
    random, rows = np.random.default_rng(0), 600
    age, smoker = random.normal(60, 12, rows), random.random(rows) < 0.3
    pressure = 120 + 0.8 * (age - 60) + 15 * smoker + random.normal(0, 5, rows)
    ward = pd.Categorical(np.where(pressure > 130, "cardiology", "general"), ["general", "cardiology", "closed"])
    frame = pd.DataFrame({"age": age, "smoker": smoker, "pressure": pressure, "ward": ward}, index=range(7, 607))
    frame["children"] = random.integers(0, 2, rows)
    frame.loc[frame.index[::20], "age"] = np.nan
    return frame


@pytest.fixture(scope="module")
def fitted(patients):
    return NeuralGraphicalModel(**FAST).fit(patients)


def test_it_keeps_the_contract_of_scikit_learn_where_that_applies():
    made = NeuralGraphicalModel(epochs=3, recovery={"penalty": 0.1}, targets=("x0",))
    found = check_estimator(made, expected_failed_checks=CANNOT_APPLY, on_skip=None)
    by_status = {status: [each for each in found if each["status"] == status] for status in ("xfail", "passed")}
    assert len(by_status["passed"]) > 30
    assert {each["check_name"] for each in by_status["xfail"]} == set(CANNOT_APPLY)
    assert all("has no probabilities" in str(each["exception"]) for each in by_status["xfail"])


def test_parameters_are_the_settings_of_fedngm_with_their_defaults():
    parameters = inspect.signature(NeuralGraphicalModel).parameters
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters.values())
    assert parameters.keys() >= NGRSettings.model_fields.keys()
    assert NeuralGraphicalModel()._settings() == NGMSettings()
    assert NeuralGraphicalModel(graph="learn")._settings() == NGRSettings()


def test_questions_are_answered_in_the_values_of_the_data_frame(patients, fitted):
    assert set(fitted.graph_.edges) >= {("age", "pressure"), ("smoker", "pressure")}
    assert not any("children" in edge for edge in fitted.graph_.edges)
    old, young = fitted.predict([{"age": 80}, {"age": 40}], "pressure")
    assert old - young == pytest.approx(32, abs=6)
    smokers = fitted.predict(patients, "smoker")
    assert smokers.dtype == bool
    assert (smokers == patients.smoker).mean() > 0.85
    assert set(fitted.predict(patients, "children")) <= {0, 1}
    proba = fitted.predict_proba(patients[["pressure"]], "ward")
    assert list(proba.columns) == ["cardiology", "general"]
    assert (proba.idxmax(axis=1).to_numpy() == patients.ward).mean() > 0.9
    told = fitted.conditional({"age": 75, "smoker": True}, "pressure")["pressure"]
    assert told.mean[0] == pytest.approx(147, abs=5)
    assert fitted.r_squared_["pressure"] > 0.6
    assert fitted.score(patients) > 0.3
    assert clone(fitted).set_params(targets=("pressure",)).fit(patients).score(patients) > 0.7


def test_answers_have_the_index_of_the_rows(patients, fitted):
    asked = patients.iloc[[5, 2, 9]]
    assert list(fitted.predict_proba(asked, "ward").index) == list(asked.index)
    assert list(fitted.predict_proba(asked.iloc[1], "ward").index) == [asked.index[1]]
    assert list(fitted.predict_proba([{"age": 80}], "ward").index) == [0]
    given = asked[["age", "smoker"]].dropna()
    pd.testing.assert_frame_equal(fitted.sample(len(given), given=given)[["age", "smoker"]], given)
    assert list(fitted.sample(4, given=asked.iloc[:1]).index) == [0, 1, 2, 3]


@pytest.mark.parametrize("constant", [1.0, "Oslo", True])
def test_a_constant_column_is_predicted_and_sampled(patients, constant):
    model = NeuralGraphicalModel(**FAST | {"epochs": 3}).fit(patients[["age", "smoker"]].assign(place=constant))
    assert model.predict(patients.iloc[:2], "place").tolist() == [constant] * 2
    proba = model.predict_proba(patients.iloc[:2], "place")
    assert list(proba.columns) == [constant]
    assert proba.to_numpy().tolist() == [[1.0], [1.0]]
    assert model.conditional({"age": 50}, "place")["place"].probabilities.tolist() == [[1.0]]
    assert set(model.sample(5).place) == {constant}


def test_categories_of_pandas_are_categories_also_where_they_are_numbers(patients):
    ward, floor = pd.Categorical(np.arange(600) % 3 * 10), pd.Categorical(np.arange(600) % 2 + 0.5)
    model = NeuralGraphicalModel(**FAST | {"epochs": 3}).fit(patients[["age"]].assign(ward=ward, floor=floor))
    assert [model.schema_[name].kind for name in ("ward", "floor")] == ["categorical", "binary"]
    assert list(model.predict_proba([{}], "ward").columns) == [0, 10, 20]
    assert set(model.predict([{}], "floor")) <= {0.5, 1.5}
    drawn = model.sample(20, given={"ward": 10})
    assert drawn.dtypes["ward"] == ward.dtype
    assert set(drawn.ward) == {10}
    told = NeuralGraphicalModel(**FAST | {"epochs": 3}, schema={"kinds": {"ward": "integer"}})
    assert told.fit(patients[["age"]].assign(ward=ward)).schema_["ward"].kind == "integer"


def test_a_column_without_values_is_told(patients, caplog):
    NeuralGraphicalModel(**FAST | {"epochs": 3}).fit(patients[["age", "smoker"]].assign(dose=np.nan))
    assert "columns without any value are left out: 'dose'" in caplog.text


def test_samples_are_rows_like_those_of_the_data_frame(patients, fitted):
    drawn = fitted.sample(2000, random_state=0)
    assert list(drawn.columns) == list(patients.columns)
    assert (drawn.dtypes.drop("children") == patients.dtypes.drop("children")).all()
    assert set(drawn.children) == {0, 1}
    assert drawn.pressure.mean() == pytest.approx(patients.pressure.mean(), abs=1.5)
    assert drawn.smoker.mean() == pytest.approx(0.3, abs=0.06)
    assert drawn[["age", "pressure"]].corr().iloc[0, 1] == pytest.approx(
        patients[["age", "pressure"]].corr().iloc[0, 1], abs=0.12
    )
    pd.testing.assert_frame_equal(drawn, fitted.sample(2000, random_state=0))
    given = fitted.sample(5, given={"smoker": True})
    assert given.smoker.tolist() == [True] * 5


def test_data_frames_of_other_libraries_are_read_alike(patients, fitted):
    same = NeuralGraphicalModel(**FAST).fit(pa.Table.from_pandas(patients, preserve_index=False))
    assert torch.equal(same.model_.parameters, fitted.model_.parameters)
    np.testing.assert_array_equal(same.predict(patients, "pressure"), fitted.predict(patients, "pressure"))


def test_the_graph_is_given_or_learned_in_training(patients):
    edges = [("age", "pressure"), ("smoker", "pressure")]
    given = FeatureGraph(tuple(patients.columns), edges)
    model = NeuralGraphicalModel(**FAST, graph=given).fit(patients)
    assert model.graph_ == given
    assert clone(model).graph == given
    learned = NeuralGraphicalModel(**FAST, graph="learn", threshold=0.2).fit(patients)
    assert set(learned.graph_.edges) >= set(edges)
    assert len(learned.graph_.edges) < 10
    searched = NeuralGraphicalModel(**FAST, recovery={"method": "ges"}).fit(patients)
    assert ("age", "pressure") in searched.graph_.edges
    with pytest.raises(ValueError, match="pressure"):
        NeuralGraphicalModel(graph=FeatureGraph(("age", "smoker"), [])).fit(patients)


def test_columns_are_described_or_given_as_a_schema(patients):
    about = {"drop": ("children",), "kinds": {"ward": {"kind": "categorical", "categories": ["general", "cardiology"]}}}
    model = NeuralGraphicalModel(**FAST, schema=about).fit(patients)
    assert model.schema_.names == ("age", "smoker", "pressure", "ward")
    assert model.schema_["ward"].categories == ("general", "cardiology")
    schema = Schema((Feature("age", "real"), Feature("pressure", "real")))
    assert NeuralGraphicalModel(**FAST, schema=schema).fit(patients).schema_ == schema
    codes = patients.assign(age=patients.age.fillna(-1))
    coded = NeuralGraphicalModel(**FAST, schema={"missing-codes": {"age": (-1,)}}).fit(codes)
    assert coded.r_squared_["pressure"] > 0.6
    np.testing.assert_allclose(coded.predict([{}], "age"), 60, atol=3)


def test_the_same_model_as_a_run_of_one_client_bit_for_bit(table_tables, run_experiment, tmp_path):
    table_tables["experiment"] |= {"min-clients": 1}
    table_tables["data"] |= {"clients": ["east"], "private": {}}
    table_tables["data"].pop("public-share")
    table_tables["fedngm"] |= {"global-model": "pooled", "scaling": {"source": "own"}, "merge": {"min-clients": 1}}
    table_tables["fedngm"]["recovery"] |= {"target-neighbours": 2}
    folder = run_experiment(table_tables, nodes=1)
    from fedgraph.data import open_source, parse_data

    held = open_source(parse_data(table_tables["data"]), tmp_path).load_table("east")
    parts = {split: held.table.part(held.rows(split).numpy()) for split in ("train", "validation", "test")}
    ngm = {key.replace("-", "_"): value for key, value in table_tables["fedngm"]["ngm"].items()}
    model = NeuralGraphicalModel(
        **ngm,
        targets=("weight", "ill", "ward"),
        recovery={"penalty": 0.02, "target_neighbours": 2},
        schema={"least_rows": 5},
        random_state=0,
    ).fit(parts["train"], validation=parts["validation"])
    saved = load_state(folder.path / "graphical-model.safetensors")
    assert torch.equal(saved["parameters"], model.model_.parameters)
    assert fedgraph.load_run(folder.path).graphical_model.graph == model.graph_


def test_models_are_saved_and_read_and_pickled(patients, fitted, tmp_path):
    fitted.save(tmp_path / "model.safetensors")
    again = NeuralGraphicalModel.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict(patients, "pressure"), fitted.predict(patients, "pressure"))
    assert again.graph_ == fitted.graph_
    assert again.sample(3, random_state=0).age.tolist() == fitted.sample(3, random_state=0).age.tolist()
    copied = pickle.loads(pickle.dumps(fitted))
    assert (copied.predict(patients, "smoker") == fitted.predict(patients, "smoker")).all()


def test_the_tools_of_scikit_learn_work(patients):
    model = NeuralGraphicalModel(**FAST, targets=("pressure",))
    assert cross_val_score(model, patients, cv=3).min() > 0.6
    array = patients[["age", "pressure"]].to_numpy()
    assert NeuralGraphicalModel(**FAST, targets=("x1",)).fit(array).predict(array).shape == (600,)


def test_what_cannot_be_used_is_said(patients, fitted):
    with pytest.raises(NotFittedError):
        NeuralGraphicalModel().predict(patients, "age")
    for wrong, problem in (
        ({"graph": "recovr"}, "graph is 'recover', 'learn' or a FeatureGraph; got 'recovr'"),
        ({"loss": "square"}, "loss: Input should be 'cross-entropy' or 'squared'"),
        ({"recovery": {"method": "lasso"}}, r"NeuralGraphicalModel\(recovery=...\): method: Input should be"),
        ({"schema": {"drop": ("childern",)}}, "the data frame has no column 'childern'; its columns: age"),
        ({"targets": ("wheight",)}, "no feature 'wheight'"),
        ({"validation_fraction": 0}, "validation_fraction is above 0"),
    ):
        with pytest.raises(ValueError, match=problem):
            NeuralGraphicalModel(**wrong).fit(patients)
    with pytest.raises(TypeError, match="'penalti'.*'penalty'"):
        NeuralGraphicalModel(recovery={"penalti": 1}).fit(patients)
    with pytest.raises(ValueError, match="name the target"):
        fitted.predict(patients)
    with pytest.raises(ValueError, match="there is no feature 'presure'"):
        fitted.predict(patients, "presure")
    with pytest.raises(ValueError, match="a data frame"):
        NeuralGraphicalModel().fit({"age": 3})
    with pytest.raises(ValueError, match="'age' .*both"):
        fitted.conditional({"age": 3}, "age")
    with pytest.raises(ValueError, match="pilot"):
        fitted.predict(patients.assign(ward="pilot"), "age")


def test_columns_that_are_missing_or_unknown(patients, caplog):
    model = NeuralGraphicalModel(**FAST | {"epochs": 3}, schema={"drop": ("children",)}).fit(patients)
    with pytest.raises(ValueError, match="columns 'pressure'"):
        model.score(patients.drop(columns="pressure"))
    with pytest.raises(ValueError, match="'pressure'.*'pressure' .*'presure'"):
        model.score(patients.rename(columns={"pressure": "presure"}))
    with caplog.at_level(logging.WARNING, "fedgraph"):
        model.score(patients)
        model.predict(patients.drop(columns="ward"), "age")
        assert not caplog.records
        renamed = patients.rename(columns={"pressure": "presure"})
        for _ in range(2):
            model.predict(renamed, "age")
    assert [record.message for record in caplog.records] == [
        "columns that the model does not know are ignored: 'presure'; did you mean 'pressure' for 'presure'?"
    ]
    caplog.clear()
    with pytest.raises(ValueError, match="there is no feature 'wardd'"):
        model.predict([{"wardd": "east"}], "age")
    assert not caplog.records


def test_one_row_of_pandas_is_a_row(patients, fitted):
    for place in (0, 5):
        row, frame = patients.iloc[place], patients.iloc[place : place + 1]
        for target in ("pressure", "smoker", "ward"):
            assert fitted.predict(row, target).tolist() == fitted.predict(frame, target).tolist()
    told = fitted.conditional(row.drop("pressure"), "pressure")["pressure"]
    assert told.mean == fitted.conditional(frame.drop(columns="pressure"), "pressure")["pressure"].mean
    assert len(fitted.sample(3, given=patients.iloc[5][["age", "smoker"]])) == 3
    with pytest.raises(ValueError, match="age, smoker"):
        fitted.predict(patients.pressure, "age")


def test_names_of_columns_may_be_numbers(patients):
    numbered = patients[["age", "smoker", "pressure"]].set_axis([0, 1, 2], axis=1)
    model = NeuralGraphicalModel(**FAST, targets=(2,)).fit(numbered)
    assert model.score(numbered) > 0.6
    told = model.predict(numbered, 2)
    assert told.tolist() == model.predict(numbered, "2").tolist() == model.predict(numbered).tolist()
    assert model.predict(numbered.iloc[0], np.int64(2))[0] == pytest.approx(told[0])
    assert model.predict([{0: 80}], 2)[0] > model.predict({0: 40}, 2)[0] + 20
    assert model.conditional({0: 80, 1: True}, 2)[2].mean[0] == pytest.approx(151, abs=6)
    assert list(model.predict_proba(numbered, 1).columns) == [False, True]


def test_a_single_target_and_quantile_need_no_list(patients):
    # Not the columns a, g and e.
    frame = patients[["age", "pressure"]].assign(a=1.0 * np.arange(600), g=0.5, e=2.5)
    model = NeuralGraphicalModel(**FAST | {"epochs": 3}, targets="age").fit(frame)
    assert model.predict(frame.iloc[:2]).tolist() == model.predict(frame.iloc[:2], "age").tolist()
    assert model.score(frame) == clone(model).set_params(targets=("age",)).fit(frame).score(frame)
    told = model.conditional({"pressure": 120}, "age", 0.5)["age"]
    assert told.quantiles.keys() == {0.5}
    assert model.conditional({"pressure": 120}, "age", np.float32(0.5))["age"].quantiles == told.quantiles
    assert model.model_.conditional({"pressure": 120}, "age", 0.5)["age"].quantiles[0.5] == told.quantiles[0.5]
    assert model.conditional({"pressure": 120}, "age", ())["age"].quantiles == {}
    with pytest.raises(ValueError, match="between 0 and 1; got 1"):
        model.conditional({"pressure": 120}, "age", 1)


def test_the_example_runs():
    assert doctest.testmod(importlib.import_module("fedgraph.graphical.estimator")).failed == 0


@pytest.mark.parametrize(("noise", "warned"), [(1.0, True), (6.0, False)])
def test_a_number_that_others_nearly_determine_is_warned_of_once(noise, warned, caplog):
    random = np.random.default_rng(0)
    step, kind = random.integers(0, 4, 600), random.choice(["u", "v"], 600)
    total = 10 * step + 10 * (kind == "v") + noise * random.normal(size=600)
    frame = pd.DataFrame({"step": step, "kind": kind, "total": total})
    model = NeuralGraphicalModel(random_state=0, sampling={"kept": 200, "sweeps": 2}, epochs=60).fit(frame)
    caplog.clear()
    model.conditional({"step": 2}, ["kind"])
    model.sample(3)
    said = [record.getMessage() for record in caplog.records if "nearly determine" in record.getMessage()]
    assert len(said) == warned
    assert all("'total'" in text for text in said)


def test_a_number_far_from_all_others_is_warned_of(caplog):
    rows = pd.DataFrame({"pressure": [-999.0, *range(100, 130), -999.0, -999.0], "age": range(33)})
    NeuralGraphicalModel(epochs=1, hidden=2).fit(rows)
    assert "column 'pressure' holds -999, far from its other values: make it None" in caplog.text
    caplog.clear()
    NeuralGraphicalModel(epochs=1, hidden=2, schema={"missing_codes": {"pressure": (-999,)}}).fit(rows)
    NeuralGraphicalModel(epochs=1, hidden=2).fit(rows.replace(-999, np.nan))
    assert "far from" not in caplog.text


def test_a_mark_of_missing_values_in_a_data_frame_is_warned_of(caplog):
    frame = pd.DataFrame({"smoker": ["yes", "no", "?"] * 40, "age": np.arange(120.0)})
    NeuralGraphicalModel(random_state=0, epochs=2).fit(frame)
    assert "'?' is a category of column 'smoker', as in the data frame: make it None" in caplog.text
    caplog.clear()
    NeuralGraphicalModel(random_state=0, epochs=2).fit(frame.replace("?", None))
    assert "is a category of" not in caplog.text
