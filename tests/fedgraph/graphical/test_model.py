import numpy as np
import pandas as pd
import pytest
import torch

from fedgraph.data.encoding.encoding import Encoding
from fedgraph.data.encoding.rows import to_values
from fedgraph.data.encoding.scaling import Scaling
from fedgraph.data.encoding.values import as_table
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.graphical.learning.ngm import fit_ngm
from fedgraph.graphical.learning.ngr import fit_ngr
from fedgraph.graphical.model import GraphicalModel
from fedgraph.graphical.network.settings import NGMSettings, NGRSettings
from fedgraph.support.errors import DataError, RunError
from fedgraph.support.files import load_state, save_state

GRAPH = torch.tensor([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]).bool()
RANGES = Scaling({"size": (100.0, 200.0), "age": (20.0, 80.0)})


@pytest.fixture(scope="module")
def fitted(mixed):
    """A model of a table in own units, and such a table."""
    schema, rows = mixed(4000)
    fit = fit_ngm(schema, GRAPH, [rows[:3500]], [rows[3500:]], ["a"], NGMSettings(epochs=15, learning_rate=0.01), 0)
    encoding = Encoding(schema, RANGES)
    return GraphicalModel(fit.network, fit.parameters[0], encoding), as_table(encoding.decode(rows), schema)


def test_a_model_is_told_in_a_line_and_shown_as_a_table_and_a_picture(fitted):
    model, _ = fitted
    features, edges = model.encoding.schema.names, model.graph.edges
    assert repr(model).startswith(f"GraphicalModel({len(features)} features, {len(edges)} dependencies, ")
    assert len(repr(model)) < 80
    shown = model._repr_html_()
    assert all(f"<td>{name}</td>" in shown for name in features)
    (axes,) = model.plot().axes
    assert {text.get_text() for text in axes.texts} == set(features)


def test_numbers_are_predicted_in_their_own_units(fitted):
    model, table = fitted
    found = model.predict(table, "age")
    values = to_values(table, model.encoding.schema)
    # Age is 0.3 place + noise of 0.1, in a range of 60 from 20 on, cut at 0.
    assert found.shape == (4000,)
    for place in (1, 2):
        assert found[values[:, 2] == place].mean() == pytest.approx(20 + 60 * 0.3 * place, abs=1.5)
    assert not np.allclose(found, found.round())


def test_categories_are_predicted_by_name_and_with_probabilities(fitted):
    model, table = fitted
    rows = [{"size": 105, "place": "a"}, {"size": 195, "place": "c"}, {}]
    assert model.predict(rows[:2], "ill").tolist() == ["no", "yes"]
    shares = model.predict_proba(rows, "ill")
    assert shares.shape == (3, 2)
    np.testing.assert_allclose(shares.sum(1), 1)
    assert shares[0, 0] > 0.95
    assert shares[1, 1] > 0.95
    assert shares[2, 0] == pytest.approx(0.5, abs=0.1)
    assert set(model.predict(table, "place")) <= {"a", "b", "c"}
    assert model.predict_proba(table, "place").shape == (4000, 3)
    with pytest.raises(DataError, match="'age' is integer"):
        model.predict_proba(rows, "age")


def test_the_target_in_the_rows_does_not_count(fitted):
    model, _ = fitted
    with_and_without = [{"size": 120, "age": 30, "ill": ill} for ill in ("yes", None)]
    shares = model.predict_proba(with_and_without, "ill")
    assert shares[0, 1] == shares[1, 1]


def test_conditional_distributions_are_in_own_units(fitted):
    model, table = fitted
    found = model.conditional({"ill": "no"}, ["age", "place"], quantiles=(0.1, 0.9), draws=1000)
    values = to_values(table, model.encoding.schema)
    healthy = values[values[:, 1] == 0]
    assert found["age"].mean[0] == pytest.approx(healthy[:, 3].mean(), abs=2)
    assert found["age"].deviation[0] == pytest.approx(healthy[:, 3].std(), abs=2)
    assert found["age"].quantiles[0.1][0] == pytest.approx(np.quantile(healthy[:, 3], 0.1), abs=4)
    assert found["age"].quantiles[0.9][0] == pytest.approx(np.quantile(healthy[:, 3], 0.9), abs=4)
    np.testing.assert_allclose(found["place"].probabilities, [[2 / 3, 1 / 3, 0]], atol=0.08)
    assert found["place"].categories == ("a", "b", "c")


def test_what_is_far_from_all_that_was_learned_is_warned_of(fitted, caplog):
    model, _ = fitted
    model.conditional({"age": 95, "size": 120}, "ill", draws=100)
    assert caplog.text == ""
    model.conditional({"age": 500, "size": 120}, "ill", draws=100)
    assert "age = 500 is far outside the range 20 to 80" in caplog.text
    assert "size" not in caplog.text


def test_samples_are_tables_in_own_units(fitted):
    model, table = fitted
    samples = model.sample(5000)
    assert samples.num_rows == 5000
    assert samples.names == ["size", "ill", "place", "age"]
    ours, theirs = (to_values(rows, model.encoding.schema) for rows in (samples, table))
    np.testing.assert_allclose(ours.mean(0), theirs.mean(0), rtol=0.05)
    np.testing.assert_allclose(ours.std(0), theirs.std(0), rtol=0.12)
    assert (ours[:, 3] == ours[:, 3].round()).all()
    assert samples.column("place").equals(model.sample(5000).column("place"))
    assert not samples.column("place").equals(model.sample(5000, seed=1).column("place"))


def test_given_features_stay_as_they_are(fitted):
    model, _ = fitted
    samples = model.sample(2000, given={"ill": "yes", "size": 133.7777777})
    assert set(samples.column("ill").to_pylist()) == {"yes"}
    assert set(samples.column("size").to_pylist()) == {133.7777777}
    shares = [samples.column("place").to_pylist().count(place) / 2000 for place in "abc"]
    assert shares == pytest.approx([0, 1 / 3, 2 / 3], abs=0.05)
    with pytest.raises(DataError, match="1.5 rows cannot be drawn: it is a whole number"):
        model.sample(1.5)
    each = model.sample(2, given=[{"place": "a"}, {"place": "b"}])
    assert each.column("place").to_pylist() == ["a", "b"]
    with pytest.raises(DataError, match="2 rows .*3 rows"):
        model.sample(3, given=[{}, {}])
    with pytest.raises(DataError, match="-1 rows"):
        model.sample(-1)


def test_ordered_words_are_predicted_as_words():
    schema = Schema((Feature("pain", "ordinal", ("none", "some", "much")), Feature("dose", "real")))
    dose = torch.rand(1000, 1, generator=torch.Generator().manual_seed(0))
    rows = torch.cat([(2 * dose).round() / 2, dose], 1)
    fit = fit_ngm(schema, torch.ones(2, 2).bool(), [rows], [rows], ["a"], NGMSettings(epochs=30, learning_rate=0.01), 0)
    model = GraphicalModel(fit.network, fit.parameters[0], Encoding(schema, Scaling({"dose": (0.0, 10.0)})))
    assert model.predict([{"dose": 0.5}, {"dose": 5}, {"dose": 9.5}], "pain").tolist() == ["none", "some", "much"]


def test_a_skewed_number_is_drawn_as_skewed():
    """Two lognormal numbers with a correlation of 0.8 of their logarithms."""
    schema = Schema((Feature("dose", "real"), Feature("effect", "real")))
    logs = np.random.default_rng(0).multivariate_normal([0, 1], [[1, 0.8], [0.8, 1]], 4000)
    values = np.exp(logs)
    encoding = Encoding(schema, Scaling.measured(values, schema, 0.01))
    rows = encoding.encode(values)
    settings = NGMSettings(epochs=30, learning_rate=0.01)
    fit = fit_ngm(schema, torch.ones(2, 2).bool(), [rows[:3500]], [rows[3500:]], ["a"], settings, 0)
    model = GraphicalModel(fit.network, fit.parameters[0], encoding)
    levels = [0.05, 0.25, 0.5, 0.75, 0.95]
    drawn = to_values(model.sample(4000), schema)
    np.testing.assert_allclose(np.quantile(drawn, levels, 0), np.quantile(values, levels, 0), rtol=0.3)
    found = model.conditional({"dose": 2.0}, ["effect"], levels)["effect"]
    # Of a lognormal number with a mean of 1 + 0.8 log 2 and a deviation of 0.6 of its logarithm.
    middle = np.exp(1 + 0.8 * np.log(2))
    assert found.quantiles[0.5][0] == pytest.approx(middle, rel=0.1)
    assert found.quantiles[0.95][0] == pytest.approx(middle * np.exp(0.6 * 1.645), rel=0.15)
    assert found.mean[0] == pytest.approx(middle * np.exp(0.6**2 / 2), rel=0.1)
    assert found.deviation[0] == pytest.approx(found.mean[0] * np.sqrt(np.expm1(0.6**2)), rel=0.2)
    assert model.predict({"dose": 2.0}, "effect")[0] == pytest.approx(middle, rel=0.1)


def test_a_saved_model_says_the_same(fitted, tmp_path):
    model, table = fitted
    model.save(tmp_path / "folder" / "model.safetensors")
    again = GraphicalModel.load(tmp_path / "folder" / "model.safetensors")
    np.testing.assert_array_equal(again.predict(table, "age"), model.predict(table, "age"))
    assert again.sample(100).column("size").equals(model.sample(100).column("size"))
    assert again.graph == model.graph
    assert again.graph.edges == (("size", "ill"), ("ill", "place"), ("place", "age"))


def test_a_model_of_a_revealer_can_be_saved_too(chain, numbers, tmp_path):
    rows = chain(300, 3)
    settings = NGRSettings(epochs=2)
    found = fit_ngr(numbers(3), [rows], [rows], ["a"], settings, 0).fit
    ranges = Scaling(dict.fromkeys(numbers(3).names, (0.0, 1.0)))
    assert found.network.adjacency.shape == (1, 3, 3)
    model = GraphicalModel.of_one(found.network, found.parameters, Encoding(numbers(3), ranges))
    model.save(tmp_path / "it")
    again = GraphicalModel.load(tmp_path / "it")
    np.testing.assert_array_equal(again.predict({"x1": 0.3}, "x0"), model.predict({"x1": 0.3}, "x0"))
    with pytest.raises(RunError, match="a single model over a single graph"):
        GraphicalModel.of_one(found.network, found.parameters.repeat(2, 1), model.encoding)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema", "[]"),
        ("ranges", "{}"),
        ("settings", {"hidden": 5}),
        ("adjacency", torch.zeros(3, 3).bool()),
        ("parameters", torch.full((10,), 1.0)),
        ("outside", 3),
    ],
)
def test_damaged_files_are_refused(fitted, tmp_path, key, value):
    model, _ = fitted
    model.save(tmp_path / "it")
    save_state(tmp_path / "it", {**load_state(tmp_path / "it"), key: value})
    with pytest.raises(RunError, match="is a damaged graphical model"):
        GraphicalModel.load(tmp_path / "it")


@pytest.mark.parametrize("limits", [(3.0, 1.0), (float("nan"), 1.0), (0.0,), "low"])
def test_a_range_that_is_none_is_no_damage_of_the_file(fitted, tmp_path, limits):
    model, _ = fitted
    model.save(tmp_path / "it")
    with pytest.raises(DataError, match="'size' .*used"):
        GraphicalModel.load(tmp_path / "it", ranges={"size": limits})


def test_foreign_files_are_refused(fitted, tmp_path):
    model, _ = fitted
    save_state(tmp_path / "other", {"a": 1})
    with pytest.raises(RunError, match="not a graphical model"):
        GraphicalModel.load(tmp_path / "other")
    model.save(tmp_path / "it")
    (tmp_path / "it").write_bytes((tmp_path / "it").read_bytes()[:-50])
    for name in ("it", "nothing"):
        with pytest.raises(RunError, match="cannot read"):
            GraphicalModel.load(tmp_path / name)
    broken = torch.full_like(model.parameters, torch.nan)
    GraphicalModel(model.network, broken, model.encoding).save(tmp_path / "it")
    with pytest.raises(RunError, match="not finite"):
        GraphicalModel.load(tmp_path / "it")


def test_rows_may_be_a_data_frame(fitted):
    model, table = fitted
    frame = table.to_pandas().head(5)
    assert isinstance(frame, pd.DataFrame)
    dicts = [{name: row[name] for name in ("size", "age")} for row in frame.to_dict("records")]
    np.testing.assert_array_equal(
        model.predict_proba(frame[["size", "age"]].assign(other=1), "ill"), model.predict_proba(dicts, "ill")
    )
    assert model.conditional(frame, ["ill"])["ill"].probabilities.shape == (5, 2), "its own column is ignored"
    assert model.sample(5, given=frame[["ill"]]).column("ill").to_pylist() == frame["ill"].tolist()


def test_a_single_feature_is_asked_for_by_its_name(fitted):
    model, _ = fitted
    one, several = model.conditional({"ill": "no"}, "age"), model.conditional({"ill": "no"}, ["age"])
    assert list(one) == ["age"]
    np.testing.assert_array_equal(one["age"].mean, several["age"].mean)
    for ask in (model.predict, model.predict_proba):
        with pytest.raises(DataError, match=r"\['ill'\]"):
            ask({"age": 30}, ["ill"])


def test_what_is_given_in_a_dict_is_not_asked_for(fitted):
    model, _ = fitted
    for rows in ({"ill": "yes"}, [{"ill": np.nan}, {"ill": "yes"}]):
        with pytest.raises(DataError, match="'ill' .*both"):
            model.conditional(rows, ["age", "ill"])
    assert "ill" in model.conditional({"ill": None}, "ill"), "it is unknown"


def test_samples_can_be_read(fitted):
    model, _ = fitted
    samples = model.sample(1000)
    assert repr(samples) == "<Table of 1,000 rows: size, ill, place, age>"
    assert list(samples.to_pandas()["place"]) == samples.column("place").to_pylist()
